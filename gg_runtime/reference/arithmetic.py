"""What the CPU path does with arrays of any framework."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..frameworks import dtype_like

LARGEST_E4M3 = 448.0
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
OTHER_MEANINGS = ("matrix", "MaskedArray")  # NumPy's kinds of arrays whose products are others, or leave elements out


def check_one_framework(function: str, *given: Any) -> None:
    if len({is_torch(array) for array in given if array is not None}) > 1:
        raise TypeError(
            f"{function}: torch tensors and other arrays are in one call; on the CPU the framework multiplies, so all "
            "must be of one: convert with torch.from_numpy or .numpy()"
        )
    for array in given:
        if array is not None and type(array).__module__.startswith("numpy") and type(array).__name__ in OTHER_MEANINGS:
            raise TypeError(
                f"{function}: operators of a {type(array).__module__}.{type(array).__name__} mean something else than "
                "those of arrays; pass numpy.asarray of it"
            )
        if array is not None and not is_torch(array) and not hasattr(array, "astype"):
            raise TypeError(
                f"{function}: on the CPU arrays are multiplied by their framework, and a {type(array).__name__} has no "
                "astype and @; pass torch tensors or NumPy arrays"
            )


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def namespace(array: Any) -> Any:
    """The module of the functions for arrays of this kind."""
    if is_torch(array):
        return sys.modules["torch"]
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    import numpy

    return numpy


def uncast(function: FunctionT) -> FunctionT:
    """Makes torch's autocast leave what is computed in float32 as it is."""

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return cast(FunctionT, computed)


def float32(array: Any) -> Any:
    return array.detach().float() if is_torch(array) else array.astype("float32")


def zeros(like: Any, shape: tuple[int, ...]) -> Any:
    """In float32, of the framework of `like`."""
    arrays = namespace(like)
    return arrays.zeros(shape, dtype=arrays.float32, **on_cpu(like))


def int32(values: list[int], like: Any) -> Any:
    """A list as an array of the framework of `like`, on the CPU."""
    arrays = namespace(like)
    return arrays.asarray(values, dtype=arrays.int32, **on_cpu(like))


def on_cpu(like: Any) -> dict[str, str]:
    """Where new arrays go: torch has a default device, which may be another than the CPU."""
    return {"device": "cpu"} if is_torch(like) else {}


def rounded(product: Any, like: Any, dtype: str) -> Any:
    """`product` as kernels write it: float8_e4m3fn has no infinity, what is too large becomes its largest value."""
    if dtype == "float8_e4m3fn":
        product = product.clip(-LARGEST_E4M3, LARGEST_E4M3)
    return product.to(getattr(namespace(like), dtype)) if is_torch(like) else product.astype(dtype_like(like, dtype))
