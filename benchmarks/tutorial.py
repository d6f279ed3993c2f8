"""The grouped GEMM of Triton's tutorial, basic and with TMA, compiled and tuned just in time as its users run it.

Tuned anew for each list: its own key, the number of groups, keeps what suited the first list of that length.
"""

import functools

import torch
import triton
import triton.language as tl

from .timing import Call
from .workload import Copy

TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _problem(sizes, strides, group):
    m, n, k = tl.load(sizes + group * 3), tl.load(sizes + group * 3 + 1), tl.load(sizes + group * 3 + 2)
    a, b, c = tl.load(strides + group * 3), tl.load(strides + group * 3 + 1), tl.load(strides + group * 3 + 2)
    return m, n, k, a, b, c


@triton.jit
def basic(
    a_pointers, b_pointers, c_pointers, sizes, strides, groups,
    DTYPE: tl.constexpr, CTAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Assumes, as the tutorial does, that the tile divides every size."""
    tile = tl.program_id(0)
    done = 0
    for group in range(groups):
        m, n, k, a_stride, b_stride, c_stride = _problem(sizes, strides, group)
        columns = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * columns
        while tile >= done and tile < done + tiles:
            a = tl.load(a_pointers + group).to(tl.pointer_type(DTYPE))
            b = tl.load(b_pointers + group).to(tl.pointer_type(DTYPE))
            c = tl.load(c_pointers + group).to(tl.pointer_type(DTYPE))
            row = (tile - done) // columns * BLOCK_M + tl.arange(0, BLOCK_M)
            column = (tile - done) % columns * BLOCK_N + tl.arange(0, BLOCK_N)
            depth = tl.arange(0, BLOCK_K)
            a_block = a + row[:, None] * a_stride + depth[None, :]
            b_block = b + depth[:, None] * b_stride + column[None, :]
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for _ in range(tl.cdiv(k, BLOCK_K)):
                tl.multiple_of(a_block, [16, 16])
                tl.multiple_of(b_block, [16, 16])
                accumulator += tl.dot(tl.load(a_block), tl.load(b_block))
                a_block += BLOCK_K
                b_block += BLOCK_K * b_stride
            tl.store(c + row[:, None] * c_stride + column[None, :], accumulator.to(DTYPE))
            tile += CTAS
        done += tiles


@triton.jit
def tma(
    a_pointers, b_pointers, c_pointers, sizes, strides, groups,
    DTYPE: tl.constexpr, CTAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Takes B with K contiguous."""
    tile = tl.program_id(0)
    done = 0
    for group in range(groups):
        m, n, k, a_stride, b_stride, c_stride = _problem(sizes, strides, group)
        columns = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * columns
        if tile >= done and tile < done + tiles:
            a = tl.load(a_pointers + group).to(tl.pointer_type(DTYPE))
            b = tl.load(b_pointers + group).to(tl.pointer_type(DTYPE))
            c = tl.load(c_pointers + group).to(tl.pointer_type(DTYPE))
            a_tensor = tl.make_tensor_descriptor(a, [m, k], [a_stride, 1], [BLOCK_M, BLOCK_K])
            b_tensor = tl.make_tensor_descriptor(b, [n, k], [b_stride, 1], [BLOCK_N, BLOCK_K])
            c_tensor = tl.make_tensor_descriptor(c, [m, n], [c_stride, 1], [BLOCK_M, BLOCK_N])
            while tile >= done and tile < done + tiles:
                row = (tile - done) // columns * BLOCK_M
                column = (tile - done) % columns * BLOCK_N
                accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for step in range(tl.cdiv(k, BLOCK_K)):
                    a_block = a_tensor.load([row, step * BLOCK_K])
                    b_block = b_tensor.load([column, step * BLOCK_K])
                    accumulator = tl.dot(a_block, b_block.T, accumulator)
                c_tensor.store([row, column], accumulator.to(DTYPE))
                tile += CTAS
        done += tiles


def _config(m, n, k, ctas, **options):
    return triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "CTAS": ctas}, **options)


def _configs(kernel, multiprocessors: int) -> list:
    if kernel is basic:
        small = [_config(m, m, 32, ctas) for m in (128, 64) for ctas in (84, 128, multiprocessors)]
        return [*small, _config(128, 128, 64, multiprocessors, num_warps=8)]
    return [
        _config(128, n, k, multiprocessors, num_stages=stages, num_warps=warps)
        for n, k, stages in ((128, 64, 3), (128, 64, 4), (128, 128, 3), (256, 64, 3), (256, 64, 4))
        for warps in (4, 8)
    ]


def _scratch(size: int, alignment: int, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


@functools.cache
def tuned(kernel, shapes: tuple, dtype: torch.dtype):
    """The kernel with a tuning of its own for the list and the dtype."""
    triton.set_allocator(_scratch)
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return triton.autotune(configs=_configs(kernel, multiprocessors), key=["groups"])(kernel)


def call(copy: Copy, layout: str, kernel) -> Call:
    """A call of the kernel alone: its five lists are on the device already."""
    A, B, C = copy.A, copy.B[layout], copy.C
    pointers = [torch.tensor([x.data_ptr() for x in xs], device="cuda") for xs in (A, B, C)]
    shapes = tuple((a.shape[0], b.shape[1], a.shape[1]) for a, b in zip(A, B))
    leading = [(a.stride(0), b.stride(int(layout == "nt")), c.stride(0)) for a, b, c in zip(A, B, C)]
    sizes, strides = (torch.tensor(rows, dtype=torch.int32, device="cuda") for rows in (shapes, leading))
    dtype = A[0].dtype
    run = tuned(kernel, shapes, dtype)
    return lambda: run[lambda meta: (meta["CTAS"],)](*pointers, sizes, strides, len(A), TYPES[dtype])
