"""The CPU path: a loop of the framework's own matrix product. Arguments were checked before they come here."""

import sys


def group_gemm(group_A, group_B, out=None) -> list:
    """C[i] = A[i] @ B[i] for torch or NumPy matrices on the CPU, accumulated in float32 and rounded once.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    if len({_is_torch(array) for array in (*group_A, *group_B, *(out or ()))}) > 1:
        raise TypeError(
            "group_gemm: torch tensors and other arrays are in one list; on the CPU the framework multiplies, so all "
            "must be of one: convert with torch.from_numpy or .numpy()"
        )
    if out is None:
        return [_product(a, b) for a, b in zip(group_A, group_B)]
    for a, b, c in zip(group_A, group_B, out):
        c[...] = _product(a, b)
    return list(out)


def _is_torch(array) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _product(a, b):
    if _is_torch(a):
        return (a.detach().float() @ b.detach().float()).to(a.dtype)
    return (a.astype("float32") @ b.astype("float32")).astype(a.dtype)
