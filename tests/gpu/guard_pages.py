"""Run in a child: every kernel on matrices that end, then start, where the mapped pages do; a stray byte is a fault."""

import ctypes

import gg_runtime
import raw
import torch
from cases import DTYPES, LIST_ARTIFACTS, legal

CUDA = ctypes.CDLL("libcuda.so.1")
MATRIX_BYTES = 2 << 20  # of the largest matrix that is placed
PINNED, DEVICE, READ_WRITE = 1, 1, 3


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def cuda(name: str, *arguments) -> None:
    status = getattr(CUDA, name)(*arguments)
    if status:
        raise RuntimeError(f"{name} returned {status}")


class Pages:
    """Device memory between two reserved, unmapped ranges of its own size."""

    def __init__(self):
        here = Location(DEVICE, 0)
        properties = Properties(type=PINNED, location=here)
        granularity, base, handle = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        cuda("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), 0)
        self.size = -(-MATRIX_BYTES // granularity.value) * granularity.value
        size, zero = ctypes.c_size_t(self.size), ctypes.c_uint64(0)
        cuda("cuMemAddressReserve", ctypes.byref(base), ctypes.c_size_t(3 * self.size), ctypes.c_size_t(0), zero, zero)
        self.start = base.value + self.size
        cuda("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), zero)
        cuda("cuMemMap", ctypes.c_uint64(self.start), size, ctypes.c_size_t(0), handle, zero)
        access = Access(here, READ_WRITE)
        cuda("cuMemSetAccess", ctypes.c_uint64(self.start), size, ctypes.byref(access), ctypes.c_size_t(1))

    def matrix(self, rows, columns, dtype, at_end, transposed=False):
        """A matrix [rows, columns] without gaps, at one end of the pages."""
        address = self.start + (self.size - 2 * rows * columns if at_end else 0)
        if transposed:
            return raw.tensor(address, (columns, rows), dtype).t()
        return raw.tensor(address, (rows, columns), dtype)


def check(artifact, pages, at_end) -> None:
    m, n, k = legal(artifact, tuple(artifact[block] + 1 for block in ("block_m", "block_n", "block_k")))
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    A = pages[0].matrix(m, k, dtype, at_end, transposed=layout[0] == "t")
    B = pages[1].matrix(k, n, dtype, at_end, transposed=layout in ("nt", "tt"))
    C = pages[2].matrix(m, n, dtype, at_end)
    for matrix in (A, B):
        matrix.copy_(torch.randint(-2, 3, matrix.shape, device="cuda"))
    C.fill_(float("nan"))
    gg_runtime.Plan([A], [B], out=[C], variant=artifact["name"]).run()
    torch.cuda.synchronize()
    assert torch.equal(C, (A.float() @ B.float()).to(dtype)), artifact["name"]


def main() -> None:
    torch.ones(1, device="cuda")  # makes the primary context current
    pages = [Pages() for _ in range(3)]
    for artifact in LIST_ARTIFACTS:
        for at_end in (True, False):
            print(artifact["name"], "at the end" if at_end else "at the start", flush=True)
            check(artifact, pages, at_end)
    print(f"{len(LIST_ARTIFACTS)} kernels stayed inside", flush=True)


def overrun() -> None:
    """The detector's own test: rows that are not mapped are read."""
    torch.ones(1, device="cuda")
    pages = Pages()
    A = raw.tensor(pages.start + pages.size - 2 * 64 * 64, (65, 64))
    gg_runtime.group_gemm([A], [torch.ones(64, 64, device="cuda", dtype=torch.float16)])
    torch.cuda.synchronize()


