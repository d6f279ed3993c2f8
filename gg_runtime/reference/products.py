"""Products on the CPU: a loop of the framework's own matrix product."""

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..arrays import is_list
from .activations import GATED, activated
from .arithmetic import check_one_framework, float32, is_torch, namespace, on_cpu, rounded, uncast, zeros
from .scales import Scales, k_blocks, product_of_k_blocks, scaled_product, scales_of


class Activation(NamedTuple):
    """What becomes of the sums of `grouped_mm`: its arguments of these names."""

    activation: str | None = None
    gate_up: str = "gate_first"
    swiglu_limit: float | None = None
    preactivation: Any = None

    def of(self, sums: Any, arrays: Any) -> Any:
        """What becomes of float32 sums."""
        if self.activation is None:
            return sums
        return activated(sums, self.activation, self.gate_up, self.swiglu_limit, arrays)


_NOTHING = Activation()


class Others(NamedTuple):
    """What else `grouped_mm` takes: its arguments of these names."""

    b_index: Any = None
    counts: Any = None
    alpha: Any = 1.0
    beta: Any = 0.0
    k_alignment: int = 1


_NO_OTHERS = Others()


@uncast
def group_gemm(
    group_A: Sequence[Any],
    group_B: Sequence[Any],
    out: Sequence[Any] | None,
    out_dtype: str,
    scale_a: Any = None,
    scale_b: Any = None,
) -> list[Any]:
    """C[i] = A[i] @ B[i] for matrices on the CPU, accumulated in float32, scaled, and rounded once to `out_dtype`.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    by_list = is_list(scale_a)
    given: Sequence[Any] = (*scale_a, *scale_b) if by_list else (scale_a, scale_b)
    check_one_framework("group_gemm", *group_A, *group_B, *(out or ()), *given)
    scales = None if by_list else _scales(scale_a, scale_b)
    outputs: list[Any] = []
    for i, (a, b) in enumerate(zip(group_A, group_B)):
        if by_list:
            of = (float32(scale_a[i]), float32(scale_b[i]))
            sums = scaled_product(float32(a), float32(b), *of, namespace(a))
        else:
            sums = _scaled(float32(a) @ float32(b), scales, i)
        outputs.append(rounded(sums, a, out_dtype))
    if out is None:
        return outputs
    for product, c in zip(outputs, out):
        c[...] = product
    return list(out)


@uncast
def grouped_mm(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out: Any,
    out_dtype: str,
    scale_a: Any = None,
    scale_b: Any = None,
    a_index: Any = None,
    after: Activation = _NOTHING,
    others: Others = _NO_OTHERS,
) -> Any:
    """Each group's product, in the form that the ranks tell, scaled, plus its bias, activated, rounded once.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    others = others._replace(  # None counts as left out, as on a GPU
        **{name: neutral for name, neutral in _NO_OTHERS._asdict().items() if getattr(others, name) is None}
    )
    factors = [factor for factor in (others.alpha, others.beta) if not _is_number(factor)]
    check_one_framework(
        "grouped_mm", mat_a, mat_b, offs, bias, out, scale_a, scale_b, a_index, after.preactivation, others.b_index,
        others.counts, *factors,
    )  # fmt: skip
    scales = scales_of(scale_a, scale_b) or _scales(scale_a, scale_b)
    if mat_a.ndim == 3 and mat_b.ndim == 3:
        return _stack_product(mat_a, mat_b, bias, out, out_dtype, after, others.counts, scales)
    if mat_b.ndim == 2 and mat_a.ndim == 3:
        sums = _grouped_sums(float32(mat_b).T, mat_a.swapaxes(-1, -2), offs, None, None).T
        return _written(_row_major(sums), mat_a, out, out_dtype)
    if mat_b.ndim == 2:
        a, b = _rows_of(mat_a.T, a_index).T, _rows_of(mat_b, others.b_index)
        by_block = scales_of(scale_a, scale_b)
        sums = _sums_of_ragged_k(a, b, offs, others.k_alignment, by_block)
        sums = _scaled(sums, None if by_block else _scales(scale_a, scale_b), 0)
        return _written(_accumulated(sums, out, others), mat_a, out, out_dtype)
    sums = _grouped_sums(_rows_of(mat_a, a_index), mat_b, offs, bias, scales)
    if after.preactivation is not None:
        after.preactivation[...] = rounded(sums, mat_a, out_dtype)
    sums = after.of(sums, namespace(mat_a))
    return _written(sums, mat_a, out, out_dtype)


def _written(sums: Any, like: Any, out: Any, out_dtype: str) -> Any:
    """The sums rounded, in `out` if it is given."""
    product = rounded(sums, like, out_dtype)
    if out is None:
        return product
    out[...] = product
    return out


def _row_major(sums: Any) -> Any:
    """A copy that lies as new outputs do, for frameworks in which that can be told."""
    if is_torch(sums):
        return sums.contiguous()
    arrays = namespace(sums)
    return arrays.ascontiguousarray(sums) if hasattr(arrays, "ascontiguousarray") else sums


def _sums_of_ragged_k(a: Any, b: Any, offs: Any, alignment: int, scales: Scales | None) -> Any:
    """[E, M, N] in float32, of columns of a and rows of b: those past the last end are in no sum."""
    arrays = namespace(a)
    parts: list[Any] = []
    start = block = 0
    for end in offs.tolist():
        end = min(max(end, start), b.shape[0])
        end = min(-(-end // alignment) * alignment, b.shape[0])
        if scales is None:
            parts.append(a[:, start:end] @ b[start:end])
        else:
            parts.append(product_of_k_blocks(a[:, start:end], b[start:end], scales, block))
        start, block = end, block + k_blocks(end - start)
    return arrays.stack(parts) if parts else zeros(a, (0, a.shape[0], b.shape[1]))


def _accumulated(sums: Any, out: Any, others: Others) -> Any:
    """alpha * sums + beta * out in float32; where beta is 0 `out` is not read."""
    alpha, beta = (_number(factor, sums) for factor in (others.alpha, others.beta))
    return alpha * sums + beta * float32(out) if float(beta) != 0 else alpha * sums


def _is_number(factor: Any) -> bool:
    """As csrc/forms/checks.cpp has it: NumPy's scalars too, of which bool_ is no numbers.Real."""
    of_numpy = type(factor).__module__ == "numpy" and not hasattr(factor, "__setitem__")  # as arrays have
    return isinstance(factor, numbers.Real) or of_numpy


def _number(factor: Any, like: Any) -> Any:
    """A factor in float32: a number, or an array of one element."""
    if _is_number(factor):
        return namespace(like).asarray(factor, dtype=namespace(like).float32, **on_cpu(like))
    return float32(factor).reshape(())


def _stack_product(
    mat_a: Any, mat_b: Any, bias: Any, out: Any, out_dtype: str, after: Activation, counts: Any, scales: Any
) -> Any:
    """mat_a[g] @ mat_b[g] of each group, its first counts[g] rows; the others are zeros in a new output."""
    products: list[Any] = []
    rows = mat_a.shape[1]
    kept = [rows] * mat_a.shape[0] if counts is None else [min(max(count, 0), rows) for count in counts.tolist()]
    for group, count in enumerate(kept):
        of_rows = scales.a[group, :count] if isinstance(scales, Scales) else None
        sums = _group_sums(float32(mat_a[group, :count]), mat_b, scales, group, of_rows)
        sums = sums if bias is None else sums + float32(bias[group])
        sums = after.of(sums, namespace(mat_a))
        if out is None:
            rest = zeros(mat_a, (rows - count, sums.shape[1]))
            products.append(rounded(namespace(mat_a).concatenate([sums, rest]), mat_a, out_dtype))
        else:
            out[group, :count] = rounded(sums, mat_a, out_dtype)
    if out is not None:
        return out
    columns = mat_b.shape[2] // (2 if after.activation in GATED else 1)
    return namespace(mat_a).stack(products) if products else rounded(zeros(mat_a, (0, rows, columns)), mat_a, out_dtype)


def _rows_of(mat_a: Any, index: Any) -> Any:
    """Its rows in float32, or those that the index names: zeros where it names none."""
    rows = float32(mat_a)
    if index is None:
        return rows
    arrays = namespace(mat_a)
    kept = (index >= 0) & (index < rows.shape[0])
    if rows.shape[0] == 0:
        return zeros(rows, (index.shape[0], rows.shape[1]))
    return arrays.where(kept[:, None], rows[arrays.where(kept, index, 0)], 0.0)


def _grouped_sums(a: Any, mat_b: Any, offs: Any, bias: Any, scales: Any) -> Any:
    """[rows, N] in float32."""
    arrays = namespace(a)
    parts: list[Any] = []
    start = 0
    for group, end in enumerate(offs.tolist()):
        end = min(max(end, start), a.shape[0])
        of_rows = scales.a[start:end] if isinstance(scales, Scales) else None
        part = _group_sums(a[start:end], mat_b, scales, group, of_rows)
        parts.append(part if bias is None else part + float32(bias[group]))
        start = end
    parts.append(zeros(a, (a.shape[0] - start, mat_b.shape[2])))
    return arrays.concatenate(parts)


def _group_sums(a: Any, mat_b: Any, scales: Any, group: int, of_rows: Any) -> Any:
    """a @ mat_b[group] in float32, scaled: `of_rows` are the scales of a's rows, where they have some."""
    b = float32(mat_b[group])
    if of_rows is None:
        return _scaled(a @ b, scales, group)
    return scaled_product(a, b, float32(of_rows), float32(scales.b[group]), namespace(a))


def _scales(scale_a: Any, scale_b: Any) -> Any:
    """The factor of each product, or one for all; None for 1."""
    given = [float32(scale).reshape(-1) for scale in (scale_a, scale_b) if scale is not None]
    if len(given) == 2:
        return given[0] * given[1]
    return given[0] if given else None


def _scaled(product: Any, scales: Any, index: int) -> Any:
    return product if scales is None else product * scales[index if len(scales) > 1 else 0]
