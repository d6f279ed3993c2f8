"""A layer of experts, forward: each token goes through those that it chose, and their outputs are summed."""

from . import _C, by_torch, reference
from ._C import OnCpu
from .arrays import Array, ArrayT


@by_torch.traced_by_torch
def fused_experts(
    x: ArrayT,
    w1: Array,
    w2: Array,
    topk_weights: Array,
    topk_ids: Array,
    *,
    activation: str | None = "swiglu",
    gate_up: str = "gate_first",
    swiglu_limit: float | None = None,
    b1: Array | None = None,
    b2: Array | None = None,
    w1_scale: Array | None = None,
    w2_scale: Array | None = None,
    expert_map: Array | None = None,
    apply_router_weight_on_input: bool = False,
    add: ArrayT | None = None,
    scale: float = 1.0,
    out: ArrayT | None = None,
    workspace: Array | None = None,
    max_rows: int | None = None,
    batch_invariant: bool = False,
) -> ArrayT:
    """out[t] = add[t] + scale * sum over j of topk_weights[t, j] * expert(topk_ids[t, j])(x[t]).

    Where expert(e)(row) = act(row @ w1[e] + b1[e]) @ w2[e] + b2[e]. Routing, gather, both products, activation and sum:
    `route`, `grouped_mm` twice and `combine` from one call, without the host ever waiting.

    Args:
        x: [tokens, H], float16 or bfloat16, the last dimension of stride 1.
        w1: [E, H, 2 I] for a gated activation, else [E, H, I], with any strides: weights [E, 2 I, H] go in as `w1.mT`.
            Of x's dtype, or float8_e4m3fn with scales.
        w2: [E, I, H] of w1's dtype, with any strides: weights [E, H, I] go in as `w2.mT`. E is 1 to 1023.
        topk_weights: [tokens, k], float32, float16 or bfloat16, contiguous.
        topk_ids: [tokens, k], int32 or int64, contiguous: the experts of each token. A slot whose expert is not in
            [0, E), or not in `expert_map`, is dropped: it adds nothing, and its weight is not read.
        activation: gated, of gate g and up u: "swiglu" (silu(g) * u), "geglu" (gelu(g) * u), "geglu_tanh" (with gelu's
            tanh form), "swiglu_oai" (g * sigmoid(1.702 g) * (u + 1)); or of all columns: "silu", "gelu", "gelu_tanh",
            "relu", "relu2" (relu squared); None for none.
        gate_up: how gate and up lie in the 2 I columns of w1: "gate_first" and "up_first" as halves, "interleaved" in
            turns, gate first. Read where they lie. Other activations have no gate, and do not read it.
        swiglu_limit: for "swiglu" and "swiglu_oai", above 0: before, g becomes min(g, swiglu_limit), and u is clamped
            to [-swiglu_limit, swiglu_limit]; DeepSeek-V4 has 10. By default 7 for "swiglu_oai", as in gpt-oss, and no
            limit for "swiglu"; infinity is none.
        b1: [E, 2 I] or [E, I] of x's dtype, in the order of w1's columns; b2: [E, H] of x's dtype.
        w1_scale: float32 [E, columns of w1 / 128, H / 128], w2_scale: float32 [E, H / 128, I / 128], both rounded up,
            with any strides: a factor of each 128x128 of float8_e4m3fn weights, as DeepSeek-V3 and Qwen3 FP8
            checkpoints have them beside weights [E, 2 I, H] and [E, H, I]. For float8_e4m3fn weights only.
        expert_map: [known], int32 or int64, contiguous: expert_map[id] takes the place of an id in [0, known), and
            every other id is dropped. For experts that are spread over GPUs: the local index, or -1.
        apply_router_weight_on_input: multiplies the rows that go into w1 by their weights, rounded to x's dtype, and
            not those that come out of w2.
        add: [tokens, H] of x's dtype, the last dimension of stride 1: what a shared expert gave. It is not scaled,
            and may be `out`.
        scale: a factor of all sums, `routed_scaling_factor` in models.
        out: [tokens, H] of x's dtype to write, the last dimension of stride 1; a new one by default.
        workspace: memory to compute in, a contiguous uint8 array, on a GPU at a multiple of 128 bytes, with as many as
            `fused_experts_workspace` says; allocated by x's framework by default. What it holds does not matter, and
            is overwritten. With `out` and `workspace` a call allocates nothing. Calls that may run at the same time,
            on two streams or in two graphs, need two.
        max_rows: computes in chunks of tokens with at most so many rows, k for a token, in the workspace, which is the
            smaller for it. By default all rows go at once.
        batch_invariant: takes kernels that sizes of w1 and w2, dtypes, strides and alignment alone decide, so that the
            bits of a token do not depend on the other tokens, nor on `max_rows`.

    Sums of both products accumulate in float32, b1 is added and the activation taken in float32, and the result is
    rounded once to x's dtype; so are the rows of the second product with b2. A token's rows are then weighted and
    summed in float32 in the order of its slots, without atomics, and rounded once: the same bits in every run.

    With float8_e4m3fn weights each row of x and each row that w2 takes is quantized as `quantize_1x128` does: the
    latter from the activation in float32, of sums that were rounded to x's dtype where a launch of its own takes it,
    and were not where the first product's kernel does. `apply_router_weight_on_input` then multiplies the scales of
    rows of x. Such a layer needs a GPU of compute capability 9.0, or the CPU, and has no gradients.

    Arrays are those that `group_gemm` takes, on a GPU or the CPU, on one device, with any alignment; any size may be 0
    but E. The launches go to the current stream of x's framework and device, wait for nothing, and may be captured in a
    CUDA graph; a replay reads ids, weights and rows anew, and keeps a workspace that the call allocated. On the CPU
    `workspace`, `max_rows` and `batch_invariant` are checked, and not needed.

    Where torch records gradients of x, w1, w2, topk_weights, b1, b2 or `add`, the backward keeps x, the pre-activation
    [tokens * k, columns of w1], the weights and int32 indices; the output of the activation is made again. Gradients
    are the same bits in every run. `gg_runtime.torch.experts.fused_experts` adds those of w1 and w2 to float32 arrays.
    Such a call takes no `out`, `workspace` or `max_rows`.

    Returns:
        the sums, [tokens, H]; `out` if it was given.

    Raises:
        ValueError: shapes, strides, devices or words that do not fit, an output or a workspace that shares memory with
            another array, is read-only or requires grad, or a workspace that is too small or misaligned.
        TypeError: an unsupported or mixed dtype, or something that is no array.
        RuntimeError: `out`, memory or scales with an input that requires grad; a gradient that is differentiated again.
        UnsupportedError, ArtifactError, CudaError: as `grouped_mm` raises them.
    """
    made = _C.fused_experts(
        x, w1, w2, topk_weights, topk_ids, activation, gate_up, swiglu_limit, b1, b2, expert_map,
        apply_router_weight_on_input, add, scale, out, workspace, max_rows, batch_invariant, w1_scale, w2_scale,
    )  # fmt: skip
    if made is NotImplemented or made is ...:
        torch_way = by_torch.eager() if made is NotImplemented else by_torch.traced()
        return torch_way.fused_experts(
            x, w1, w2, topk_weights, topk_ids, activation=activation, gate_up=gate_up, swiglu_limit=swiglu_limit,
            b1=b1, b2=b2, w1_scale=w1_scale, w2_scale=w2_scale, expert_map=expert_map,
            apply_router_weight_on_input=apply_router_weight_on_input, add=add, scale=scale,
            out=out, workspace=workspace, max_rows=max_rows, batch_invariant=batch_invariant,
        )  # fmt: skip
    if type(made) is OnCpu:
        return reference.fused_experts(
            x, w1, w2, topk_weights, topk_ids, activation, gate_up, swiglu_limit, b1, b2, expert_map,
            apply_router_weight_on_input, add, scale, out, made.out_dtype, w1_scale, w2_scale,
        )  # fmt: skip
    return made


def fused_experts_workspace(
    tokens: int,
    top_k: int,
    experts: int,
    hidden: int,
    intermediate: int,
    *,
    activation: str | None = "swiglu",
    max_rows: int | None = None,
    use_fp8_w8a8: bool = False,
) -> int:
    """The bytes that `workspace` of `fused_experts` needs, for so many tokens or fewer.

    The same on every GPU, whatever kernels are taken there: an upper bound of what they need, and what is asked of a
    workspace that is passed.

    Args:
        tokens, top_k, experts, hidden, intermediate: T, k, E (here, not over all GPUs), H and I of the call.
        activation, max_rows: as for `fused_experts`.
        use_fp8_w8a8: w1 and w2 are float8_e4m3fn, with scales.

    Raises:
        ValueError: a size that no call can have.
        TypeError: sizes that are no integers.
    """
    sizes = (tokens, top_k, experts, hidden, intermediate)
    return _C.fused_experts_workspace(*sizes, activation, max_rows, bool(use_fp8_w8a8))
