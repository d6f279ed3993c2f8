"""Grouped GEMM over one array, whose rows, columns or K fall into groups, or which is a stack of matrices."""

from . import _C, by_torch, reference
from ._C import OnCpu
from .arrays import Array, ArrayT


@by_torch.traced_by_torch
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
    a_index: Array | None = None,
    activation: str | None = None,
    gate_up: str = "gate_first",
    swiglu_limit: float | None = None,
    preactivation: ArrayT | None = None,
    b_index: Array | None = None,
    counts: Array | None = None,
    alpha: float | Array = 1.0,
    beta: float | Array = 0.0,
    k_alignment: int = 1,
) -> ArrayT:
    """Multiplies each group with a matrix of its own: one launch where a kernel does all that is asked for.

    The ranks tell the form, as they tell `torch.nn.functional.grouped_mm`; `span` is [end[g-1], end[g]) with end[g]
    = offs[g]:

        mat_a        mat_b         output        group g
        [rows, K]    [E, K, N]     [rows, N]     out[span] = mat_a[span] @ mat_b[g] (+ bias[g])
        [E, M, K]    [K, columns]  [M, columns]  out[:, span] = mat_a[g] @ mat_b[:, span]
        [M, K]       [K, N]        [E, M, N]     out[g] = mat_a[:, span] @ mat_b[span]
        [E, M, K]    [E, K, N]     [E, M, N]     out[g] = mat_a[g] @ mat_b[g] (+ bias[g]), or its first counts[g] rows

    The ends are read on the device when the kernel runs; one that is less than the end before it, or more than there
    is, counts as that. Rows and columns past the last end are zeros; what lies past it along K enters no sum. An empty
    group of a ragged K gives zeros.

    The up projection of a mixture of experts is one call: `a_index` picks the rows of `mat_a`, and `activation` makes
    of the sums what the down projection reads:

        routing = gg_runtime.route(topk_ids, experts)
        h = gg_runtime.grouped_mm(x, w1.mT, offs=routing.ends, a_index=routing.token, activation="swiglu")

    Args:
        mat_a, mat_b: as above.
        offs: int32 [E], where each group's rows, columns or K end; contiguous, on the same device. Stacks have none.
        bias: [E, N] of the output's dtype, added before the sum is rounded. For ragged rows and stacks.
        out_dtype: of the output, a dtype of the framework or its name. float8_e4m3fn inputs give float16, bfloat16 (the
            default, unless `out` has another), float32 or float8_e4m3fn, a mat_a of float8_e5m2 bfloat16 or float32;
            16-bit inputs give their own dtype. With a ragged K 16-bit inputs give float32 too, fp8 inputs bfloat16 or
            float32.
        out: an array to write, of N / 2 columns with a gated activation; a new row-major one by default.
        scale_a, scale_b: float32 factors of the products, for fp8 inputs; 1 if left out, but of rows and of blocks both
            are needed. The rank of scale_b tells what they are for:

                scale_a            scale_b
                1 element          1 element, or [E]               of all products, and of each group's
                [rows]             [E, N]                          of each row, and of each column
                [rows, K / 128]    [E, N / 128, K / 128]           of blocks, rounded up: 1x128 of mat_a, 128x128 of
                                                                   mat_b, as DeepSeek-V3 and Qwen3 FP8 checkpoints have

            Of stacks scale_a has [E, M] in place of [rows]; scales of rows past a count are not used. Any strides: both
            orders in memory are read where they lie. Weights [E, N, K] have scales [E, N / 128, K / 128] and go in as
            mat_b.mT, their scales as they are. `quantize_1x128` makes mat_a's. With a ragged K:

                1 element          1 element                       of all products
                [M, blocks]        [blocks, N]                     of blocks along K: 1x128 of mat_a, 128x1 of mat_b

            Blocks are counted from each group's start, and those of all groups lie one behind the other: a group of K
            columns has ceil(K / 128), the last one may be short, and the first one follows the last one of the group
            before it. An array has from ceil(K / 128) to K // 128 + E blocks, K being that of all groups: the latter
            always suffices, and those that no group has are not read. A group past the last block takes its scales.
        batch_invariant: takes a kernel that N, K, dtypes, strides and alignment alone decide, so that the bits of a row
            do not depend on the other rows, on how many there are (up to 2**30), or on how they fall into groups. Not
            for a ragged K, whose sums are of all that a group has.
        a_index: int32 or int64 [rows], contiguous, for 16-bit inputs: row r of the product is mat_a[a_index[r]], and
            `rows` is the length of the index. Zeros where the index is not in [0, rows of mat_a): nothing is read. With
            a ragged K: column k of the product is mat_a[:, a_index[k]], and K is the length of the index.
        activation: for ragged rows and stacks: what becomes of the sums z, with their bias. Gated ones take two
            columns, gate g and up u, and the output has N / 2: "swiglu" silu(g) * u, "geglu" gelu(g) * u, "geglu_tanh"
            the same with gelu's tanh form, "swiglu_oai" (gpt-oss) g * sigmoid(1.702 * g) * (u + 1). The others take
            one: "silu", "gelu" (erf), "gelu_tanh", "relu", "relu2" relu(z)**2. The output is float16 or bfloat16.
        gate_up: how gate and up lie in the N columns of mat_b: as halves, "gate_first" or "up_first", or "interleaved",
            g0, u0, g1, u1 and so on.
        swiglu_limit: for "swiglu" and "swiglu_oai", above 0: before, g becomes min(g, swiglu_limit), and u is clamped
            to [-swiglu_limit, swiglu_limit]; DeepSeek-V4 has 10. By default 7 for "swiglu_oai", as in gpt-oss, and no
            limit for "swiglu"; infinity is none.
        preactivation: [rows, N] of the output's dtype to write as well, the last dimension of stride 1: the sums with
            their bias, rounded, in the order of mat_b's columns, as training needs them. For ragged rows.
        b_index: int32 or int64 [K], contiguous, for a ragged K: row k of the product is mat_b[b_index[k]]; zeros where
            the index is not in [0, rows of mat_b).
        counts: int32 [E], for stacks: only the first counts[g] rows of each product are computed, and the others of
            `out` stay as they are; without `out` they hold anything on a GPU, zeros on the CPU. Read on the device, and
            taken as 0 or M where they are less or more.
        alpha, beta: for a ragged K: out = alpha * sums + beta * out, computed in float32 and rounded once. Numbers, or
            float32 arrays of 1 element on the same device, read when the kernel runs. Where beta is 0 `out` is not
            read; beta needs `out`. float32 `out` with beta 1 gathers the gradients of weights.
        k_alignment: 128 for fp8 with a ragged K whose groups all end at multiples of 128, as padded ones do; it is much
            faster then where K is contiguous in mat_a and mat_b and both scales are given. An end that breaks the
            promise counts as the next multiple of 128, or as K where that is less. So zeros between a group's end and
            that multiple leave its product as it is. Else 1.

    `mat_a` and `mat_b` are both float16, both bfloat16 or, but for ragged columns, both float8_e4m3fn; for ragged rows
    and for a ragged K mat_a may be float8_e5m2 with a mat_b of float8_e4m3fn, as gradients times weights are, and
    gradients times activations. They are on one device, with any strides and any alignment: views are read where they
    lie, never copied or padded. Products accumulate in float32 and are rounded once; what float8_e4m3fn cannot hold
    becomes its largest value, 448. Any size may be 0. fp8 needs a GPU of compute capability 9.0. Activations are
    computed in float32. Where no kernel does all that is asked for, up to three launches do it: rows are gathered,
    multiplied and activated, and the activation reads sums that were rounded to the output's dtype in between.
    `explain` says which launches a call takes; memory between them comes from the framework.

    Ragged columns are fast where mat_b and out are column-major, whose transposes are ragged rows: pass out, as a new
    one is row-major. A ragged K is fast where mat_a has M contiguous and mat_b has N contiguous, as in the gradient of
    weights, x.T @ dy; of fp8 where K is contiguous in both, with k_alignment 128 and both scales.
    Few outputs of a long K are summed in parts, as many as sizes, strides and the GPU decide, whose float32 sums a
    launch of its own adds up in order: the bits are the same each time. That launch also applies alpha and beta, unless
    beta is the number 1 and `out` float32, which kernels of compute capability 9.0 add to themselves.

    Arrays are those that `group_gemm` takes, on a GPU or the CPU. The launch goes to the current stream of mat_a's
    framework and device, waits for nothing, and may be captured in a CUDA graph; a replay reads `offs` anew. torch
    records gradients of `mat_a`, `mat_b` and `bias`, in every form; README says which arguments have none.

    Returns:
        the output; `out` if it was given.

    Raises:
        ValueError: shapes, strides, devices or a dtype wanted that do not fit, an output that shares memory, is
            read-only or requires grad, or an argument that means nothing to the form.
        TypeError: an unsupported or mixed dtype, or something that is no array: `group_gemm` takes lists.
        UnsupportedError: no driver or GPU, or one that no embedded kernel for these dtypes runs on.
        ArtifactError: an embedded kernel is damaged.
        CudaError: a driver call failed.
        RuntimeError: an input requires grad while torch records gradients, and an argument has none.
    """
    output = _C.grouped_mm(
        mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b, batch_invariant,
        a_index, activation, gate_up, swiglu_limit, preactivation, b_index, counts, alpha, beta, k_alignment,
    )  # fmt: skip
    if output is NotImplemented:
        return by_torch.eager().grouped_mm(
            mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b, batch_invariant, a_index, activation, gate_up,
            swiglu_limit, preactivation, b_index, counts, alpha, beta, k_alignment,
        )  # fmt: skip
    if output is ...:
        return by_torch.traced().grouped_mm(
            mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, out=out, scale_a=scale_a, scale_b=scale_b,
            batch_invariant=batch_invariant, a_index=a_index, activation=activation, gate_up=gate_up,
            swiglu_limit=swiglu_limit, preactivation=preactivation, b_index=b_index, counts=counts, alpha=alpha,
            beta=beta, k_alignment=k_alignment,
        )  # fmt: skip
    if type(output) is OnCpu:
        after = reference.Activation(activation, gate_up, swiglu_limit, preactivation)
        others = reference.Others(b_index, counts, alpha, beta, k_alignment)
        return reference.grouped_mm(
            mat_a, mat_b, offs, bias, out, output.out_dtype, scale_a, scale_b, a_index, after, others
        )
    return output
