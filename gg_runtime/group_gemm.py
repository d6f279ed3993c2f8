"""Grouped GEMM over lists of matrices."""

from collections.abc import Sequence

from . import _C, by_torch, reference
from ._C import OnCpu
from .arrays import Array, ArrayT


@by_torch.traced_by_torch
def group_gemm(
    group_A: Sequence[ArrayT],
    group_B: Sequence[ArrayT],
    *,
    out: Sequence[ArrayT] | None = None,
    out_dtype: object = None,
    scale_a: Array | Sequence[Array] | None = None,
    scale_b: Array | Sequence[Array] | None = None,
) -> list[ArrayT]:
    """Multiplies pairs of matrices of unlike sizes: C[i] = A[i] @ B[i].

    It takes one kernel launch, a second where TMA cannot read some matrices and the rest is faster without them, and
    small ones that write a long list to device memory; `explain` tells.

    Args:
        group_A: list or tuple of matrices, A[i] of shape [M_i, K_i].
        group_B: list or tuple of as many matrices, B[i] of shape [K_i, N_i].
        out: list or tuple of matrices to write, C[i] of shape [M_i, N_i]; new row-major ones by default. Outputs of one
            call may be views of one block of memory. None may be read-only, or of JAX, whose arrays never change.
        out_dtype: of the outputs, a dtype of the framework or its name. float8_e4m3fn inputs give float16, bfloat16
            (the default, unless `out` has another), float32 or float8_e4m3fn; 16-bit inputs give their own dtype.
        scale_a, scale_b: float32 factors of the products, for float8_e4m3fn inputs: 1 element, or one for each product,
            in memory of the same device. Or lists of as many arrays with any strides, all alike: scale_a[i] [M_i] of
            rows with scale_b[i] [N_i] of columns, or scale_a[i] [M_i, K_i / 128] of blocks of 1x128 of A[i] with
            scale_b[i] [N_i / 128, K_i / 128] of 128x128 of B[i], rounded up.

    All are float16, all bfloat16 or all float8_e4m3fn, on one device, with any strides and any alignment: transposed,
    sliced and offset views are read where they lie, never copied or padded. Products accumulate in float32 and are
    rounded once; what float8_e4m3fn cannot hold becomes its largest value, 448. Sizes may be 0: M or N = 0 gives an
    empty output, K = 0 gives zeros. float8_e4m3fn needs a GPU of compute capability 9.0.

    Arrays are torch tensors, or any that speak DLPack or `__cuda_array_interface__` (CuPy, JAX). The launch goes to
    their framework's current stream of their device, waits for nothing, and may be captured in a CUDA graph. CPU arrays
    are multiplied by their own framework, so that code can be developed without a GPU. torch
    records gradients of the matrices; `out`, scales and float8_e4m3fn have none.

    Returns:
        list: the outputs, those of `out` if it was given.

    Raises:
        ValueError: lengths, shapes or devices that do not fit, or an output that shares memory, is read-only or
            requires grad.
        TypeError: an unsupported or mixed dtype, or something that is no array.
        UnsupportedError: no driver or GPU, or one that no embedded kernel runs on.
        ArtifactError: an embedded kernel is damaged.
        CudaError: a driver call failed.
        RuntimeError: an input requires grad while torch records gradients, and an argument has none.
    """
    outputs = _C.group_gemm(group_A, group_B, out, out_dtype, scale_a, scale_b)
    if outputs is NotImplemented:
        return by_torch.eager().group_gemm(group_A, group_B, out, out_dtype, scale_a, scale_b)
    if outputs is ...:
        return by_torch.traced().group_gemm(
            group_A, group_B, out=out, out_dtype=out_dtype, scale_a=scale_a, scale_b=scale_b
        )
    if type(outputs) is OnCpu:
        return reference.group_gemm(group_A, group_B, out, outputs.out_dtype, scale_a, scale_b)
    return outputs


def group_gemm_fn(group_A: Sequence[ArrayT], group_B: Sequence[ArrayT]) -> list[ArrayT]:
    """`group_gemm` under the name and with the signature of Triton's grouped GEMM tutorial."""
    return group_gemm(group_A, group_B)
