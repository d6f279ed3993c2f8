"""What a type checker takes for an array: a torch tensor, and any object that speaks one of the protocols."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar


class DLPackArray(Protocol):
    """torch, CuPy, JAX and NumPy arrays, and whatever else has `__dlpack__`."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class CudaArray(Protocol):
    """Arrays in GPU memory with `__cuda_array_interface__`."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


Array: TypeAlias = DLPackArray | CudaArray

# An output is an array of the same framework as the inputs, so that torch tensors give torch tensors.
ArrayT = TypeVar("ArrayT", bound=Array)


def is_array(thing: object) -> bool:
    """Whether a call is about one array, and not about a list of them."""
    return any(hasattr(thing, name) for name in ("shape", "__dlpack__", "__cuda_array_interface__"))


def is_list(thing: object) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list or a tuple, where one array may be given too."""
    return isinstance(thing, (list, tuple))
