"""What this GPU does at best in this run: large dense products through cuBLAS, and copies."""

import functools

import torch

from .timing import Graph, elapsed_us, enough, interleaved_us

SIZE = 8192


def dense_tflops(product) -> float:
    return 2 * SIZE**3 / Graph([product]).us() / 1e6


def normal(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16).to(dtype)


def dense_16_bit(dtype: torch.dtype) -> float:
    a, b = normal(dtype), normal(dtype)
    c = torch.empty_like(a)
    return dense_tflops(lambda: torch.mm(a, b, out=c))


def dense_e4m3() -> float:
    """With cuBLAS's fast accumulation, which is its highest rate, to bf16."""
    a, b = normal(torch.float8_e4m3fn), normal(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    multiply = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
    return dense_tflops(lambda: multiply(a, b.t(), one, one, **options))


def copy_gb_per_s() -> float:
    """Bytes read and written."""
    source = torch.empty(1 << 32, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / min(elapsed_us(lambda: target.copy_(source)) for _ in range(10)) / 1e3


def copy_us(bytes_moved: int, copies: int) -> float:
    """Of a copy that reads half of the bytes and writes the other half: the driver's or a kernel's, the faster one.

    Timed as a product is that has so many copies: under a graph, going round over as many pairs of buffers.
    """
    pairs = [torch.zeros(2, bytes_moved // 8, device="cuda") for _ in range(copies)]
    by_driver = [functools.partial(target.copy_, source) for source, target in pairs]
    by_kernel = [functools.partial(torch.neg, source, out=target) for source, target in pairs]
    return min(interleaved_us([Graph(calls, least=enough(calls[0])) for calls in (by_driver, by_kernel)]))


def run() -> dict:
    found = {
        "dense_fp16_8192_tflops": dense_16_bit(torch.float16),
        "dense_bf16_8192_tflops": dense_16_bit(torch.bfloat16),
        "copy_gb_per_s": copy_gb_per_s(),
    }
    if torch.cuda.get_device_capability() >= (8, 9):  # before, no tensor core multiplies e4m3
        found["dense_e4m3_8192_tflops"] = dense_e4m3()
    return found
