"""What array frameworks besides torch are asked for in Python: outputs, scratch memory, the current stream.

csrc/arrays/tensor.cpp takes one adapter for each array type, at its first use. An adapter has

    empty(like, dtype, shapes)  new row-major arrays of a dtype, by its name, on the device of `like`; shapes are
                                (rows, columns), or (groups, rows, columns)
    scratch(like, size)         (owner, address) of `size` bytes of memory on the device of `like`
    current_stream(device)      the CUDA stream that work on a device belongs on, as an integer; left out where the
                                framework does not tell it
    immutable                   there if its arrays never change
    orders_by_capsule           there if `__cuda_array_interface__` does not wait for pending work and `__dlpack__` does
"""

from collections.abc import Sequence
from typing import Any

Shapes = Sequence[tuple[int, ...]]


def dtype_like(like: Any, name: str) -> Any:
    """The dtype called `name` ("bfloat16") for arrays of the kind of `like`, which NumPy or ml_dtypes defines."""
    if str(like.dtype) == name:
        return like.dtype
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise TypeError(f"NumPy has no {name}: install ml_dtypes, or pass arrays of another framework") from None

        kind: Any = getattr(ml_dtypes, name)
        return numpy.dtype(kind)


class CuPy:
    def __init__(self) -> None:
        import cupy  # pyright: ignore[reportMissingImports]

        self.cupy: Any = cupy

    def empty(self, like: Any, dtype: str, shapes: Shapes) -> list[Any]:
        with like.device:
            return [self.cupy.empty(shape, dtype_like(like, dtype)) for shape in shapes]

    def scratch(self, like: Any, size: int) -> tuple[Any, int]:
        with like.device:
            block = self.cupy.empty(size, "uint8")
        return block, block.data.ptr

    def current_stream(self, device: int) -> int:
        return self.cupy.cuda.get_current_stream(device).ptr


class JAX:
    """JAX fills what it allocates, on streams of its own, so memory is complete before it is handed out: a fill that
    is still to run would come over the product."""

    immutable = True
    orders_by_capsule = True

    def __init__(self) -> None:
        import jax  # pyright: ignore[reportMissingImports]

        self.jax: Any = jax

    def empty(self, like: Any, dtype: str, shapes: Shapes) -> list[Any]:
        (device,) = like.devices()
        with self.jax.default_device(device):
            made = [self.jax.numpy.empty(shape, dtype_like(like, dtype)) for shape in shapes]
            return self.jax.block_until_ready(made)

    def scratch(self, like: Any, size: int) -> tuple[Any, int]:
        (device,) = like.devices()
        with self.jax.default_device(device):
            block = self.jax.numpy.empty(size, "uint8").block_until_ready()
        return block, block.unsafe_buffer_pointer()


_ADAPTERS: dict[str, type[CuPy | JAX]] = {"cupy": CuPy, "jax": JAX, "jaxlib": JAX}


def adapter_of(kind: type) -> CuPy | JAX | None:
    """The adapter for arrays of a type, by the package that it or a class under it comes from; None for others."""
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in _ADAPTERS:
            return _ADAPTERS[package]()
    return None
