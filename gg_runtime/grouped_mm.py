"""Grouped GEMM over a matrix whose rows fall into groups, as the tokens of a mixture of experts do."""

from . import _C, reference
from ._C import OnCpu
from .arrays import Array, ArrayT


def grouped_mm(
    mat_a: ArrayT,
    mat_b: ArrayT,
    *,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: object = None,
    out: ArrayT | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    batch_invariant: bool = False,
) -> ArrayT:
    """Multiplies each group of rows with a matrix of its own, in one kernel launch.

    Rows [end[g-1], end[g]) of the output are those of `mat_a` @ mat_b[g] (+ bias[g]), where end[g] is offs[g]: the
    meaning of `torch.nn.functional.grouped_mm` for a 2-D and a 3-D matrix. The ends are read on the device when the
    kernel runs; one that is less than the end before it, or more than rows, counts as that. Rows past the last end are
    zeros.

    Args:
        mat_a: [rows, K].
        mat_b: [E, K, N], the matrices of the groups.
        offs: int32 [E], where each group's rows end; contiguous, on the same device.
        bias: [E, N] of the output's dtype, added before the sum is rounded.
        out_dtype: of the output, a dtype of the framework or its name. float8_e4m3fn inputs give float16, bfloat16 (the
            default, unless `out` has another), float32 or float8_e4m3fn; 16-bit inputs give their own dtype.
        out: [rows, N] to write; a new row-major array by default.
        scale_a: float32, 1 element: a factor of all products, for float8_e4m3fn inputs.
        scale_b: float32, 1 or E elements: a factor of each group's products, for float8_e4m3fn inputs.
        batch_invariant: takes a kernel that N, K, dtypes, strides and alignment alone decide, so that the bits of a row
            do not depend on the other rows, on how many there are (up to 2**30), or on how they fall into groups.

    `mat_a` and `mat_b` are both float16, both bfloat16 or both float8_e4m3fn, on one device, with any strides and any
    alignment: views are read where they lie, never copied or padded. Products accumulate in float32 and are rounded
    once; what float8_e4m3fn cannot hold becomes its largest value, 448. Any size may be 0. float8_e4m3fn needs a GPU of
    compute capability 9.0.

    Arrays are those that `group_gemm` takes, on a GPU or the CPU. The launch goes to the current stream of mat_a's
    framework and device, waits for nothing, and may be captured in a CUDA graph; a replay reads `offs` anew. Gradients
    are not recorded: an input that requires one is refused.

    Returns:
        the output, [rows, N]; `out` if it was given.

    Raises:
        ValueError: shapes, strides, devices or a dtype wanted that do not fit, an output that shares memory, is
            read-only or requires grad, or a form other than this one: `group_gemm` takes lists of matrices.
        TypeError: an unsupported or mixed dtype, or something that is no array.
        UnsupportedError: no driver or GPU, or one that no embedded kernel for these dtypes runs on.
        ArtifactError: an embedded kernel is damaged.
        CudaError: a driver call failed.
        RuntimeError: an input requires grad while torch records gradients, which would be lost.
    """
    output = _C.grouped_mm(mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b, batch_invariant)
    if type(output) is OnCpu:
        return reference.grouped_mm(mat_a, mat_b, offs, bias, out, output.out_dtype, scale_a, scale_b)
    return output
