"""torch tensors over any device address: for memory that torch did not allocate, and for shapes that lie."""

import torch


class _Array:
    def __init__(self, address: int, shape: tuple[int, ...]):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }


def tensor(address: int, shape: tuple[int, ...], dtype=torch.float16):
    """A row-major array at `address`; nobody checks that it ends where the memory does."""
    *leading, last = shape
    return torch.as_tensor(_Array(address, (*leading, last * dtype.itemsize)), device="cuda").view(dtype)


def overrun() -> None:
    """Multiplies a matrix that claims 16 MiB more rows than it has: what detectors of stray reads must report.

    By a kernel that reads through pointers: not every detector looks into TMA.
    """
    import gg_runtime

    memory = torch.ones(64, 64, device="cuda", dtype=torch.float16)
    liar = tensor(memory.data_ptr(), (64 + (1 << 17), 64))
    wanted = {"kernel": "basic", "sm": 90, "dtype": "fp16", "layout": "nn", "alignment": 16}
    basic = next(kernel["name"] for kernel in gg_runtime.kernels() if wanted.items() <= kernel.items())
    gg_runtime.Plan([liar], [memory], variant=basic).run()
    torch.cuda.synchronize()
