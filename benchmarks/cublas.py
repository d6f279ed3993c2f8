"""cuBLAS: a loop of products, and its grouped call, which torch does not offer."""

import ctypes
import functools

import torch

from .timing import Call
from .workload import Copy

TYPES = {torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_16F, CUDA_R_16BF
COMPUTE_32F = 68


def loop(copy: Copy, layout: str) -> Call:
    triples = list(zip(copy.A, copy.B[layout], copy.C))

    def call():
        for a, b, c in triples:
            torch.mm(a, b, out=c)

    return call


@functools.cache
def library() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The cuBLAS that torch has loaded, and a handle of it."""
    one = torch.ones(8, 8, device="cuda")
    torch.mm(one, one)
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcublas.so" in line)
    cublas, handle = ctypes.CDLL(path), ctypes.c_void_p()
    check(cublas.cublasCreate_v2(ctypes.byref(handle)))
    return cublas, handle


def check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLAS returned status {status}")


def grouped(copy: Copy, layout: str) -> Call:
    """cublasGemmGroupedBatchedEx with a group for each product; column-major, so C^T = B^T A^T."""
    cublas, handle = library()
    A, B, C = copy.A, copy.B[layout], copy.C
    count = len(A)
    ints, floats = ctypes.c_int * count, ctypes.c_float * count
    transposed = layout == "nt"
    pointers = [torch.tensor([x.data_ptr() for x in xs], device="cuda") for xs in (B, A, C)]
    b, a, c = (ctypes.c_void_p(p.data_ptr()) for p in pointers)
    dtype = TYPES[A[0].dtype]
    arguments = (
        ints(*[int(transposed)] * count), ints(*[0] * count),
        ints(*[x.shape[1] for x in B]), ints(*[x.shape[0] for x in A]), ints(*[x.shape[1] for x in A]),
        floats(*[1.0] * count),
        b, dtype, ints(*[x.stride(1 if transposed else 0) for x in B]),
        a, dtype, ints(*[x.stride(0) for x in A]),
        floats(*[0.0] * count),
        c, dtype, ints(*[x.stride(0) for x in C]),
        count, ints(*[1] * count), COMPUTE_32F,
    )  # fmt: skip

    def call(keep=pointers):
        check(cublas.cublasSetStream_v2(handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
        check(cublas.cublasGemmGroupedBatchedEx(handle, *arguments))

    return call
