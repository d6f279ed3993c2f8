"""fused_experts up to the driver: its launches in their order, and what each reads and writes."""

import json
import struct

import pytest

from faults.experts import ACTIVATIONS, INTERLEAVED, ODD, PRELUDE, QWEN, address, launched
from faults.fake_driver import SM_80


@pytest.mark.parametrize("order", ["gate_first", "up_first", "interleaved"])
@pytest.mark.parametrize(("settings", "kernels"), [
    ({}, ["hopper_ragged", "hopper_ragged"]), (SM_80, ["basic_gated", "basic_ragged"]),
], ids=["sm_90", "sm_80"])  # fmt: skip
def test_a_layer_is_four_launches_where_one_kernel_does_the_up_projection(fake_cuda, settings, kernels, order):
    steps, arrays = launched(fake_cuda, *QWEN, gate_up=order, biases=True, added=True, scale=0.5, settings=settings)
    tokens, k, experts, hidden, inner = QWEN
    rows, at = tokens * k, {name: facts["address"] for name, facts in arrays.items()}
    assert [symbol for symbol, _ in steps] == ["route_place", *kernels, "combine"]
    (_, route), (_, up), (_, down), (_, combine) = steps
    assert (up["index"], up["index_bytes"], up["a_rows"]) == (route["token"], 4, tokens)
    assert (up.get("a_address", up["a"]), up["a_row"]) == (at["x"], hidden)
    assert (ACTIVATIONS[up["activation"]], up["up_first"]) == ("swiglu", order == "up_first")
    apart = 2 if order == "interleaved" else 2 * inner
    gate, up_bias = (at["b1"] + apart, at["b1"]) if order == "up_first" else (at["b1"], at["b1"] + apart)
    assert (up["bias"], up["bias_up"], up["bias_col"]) == (gate, up_bias, 2 if order == "interleaved" else 1)
    assert min(address(up["b"]), up.get("b_up", address(up["b"]))) == at["w1"]
    assert (up["columns"], up["depth"], down["columns"], down["depth"]) == (2 * inner, hidden, hidden, inner)
    assert address(down["a"]) == address(up["c"]) and address(down["b"]) == at["w2"] and down["bias"] == at["b2"]
    for given in (up, down):
        assert (given["offs"], given["groups"], given["rows"]) == (route["ends"], experts, rows)
        assert given["skips_rest"] == 1, "rows of dropped slots are neither computed nor written"
    assert (combine["y"], combine["inverse"], combine["out"]) == (address(down["c"]), route["inverse"], at["out"])


def test_the_launches_of_a_call_share_one_switch_of_contexts(fake_cuda):
    """All are made ready before the first is given to the stream."""
    ran = fake_cuda.run(PRELUDE + """
    arrays, options = layer(*json.loads('SIZES'))
    for _ in range(2):
        gg_runtime.fused_experts(**arrays, **options)
    """.replace("SIZES", json.dumps(QWEN)))  # fmt: skip
    launches = ["cuLaunchKernelEx"] * 4
    assert [one["call"] for one in ran.calls[-6:]] == ["cuCtxSetCurrent", *launches, "cuCtxSetCurrent"]


def test_each_step_reads_what_the_one_before_has_written(fake_cuda):
    sizes = ODD
    steps, arrays = launched(fake_cuda, *sizes, gate_up="interleaved", biases=True, added=True, scale=0.5)
    tokens, k, experts, hidden, inner = sizes
    rows, at = tokens * k, {name: facts["address"] for name, facts in arrays.items()}
    symbols = ["route_place", "gather", "basic_ragged", "activate", "basic_ragged", "combine"]
    assert [symbol for symbol, _ in steps] == symbols
    (_, route), (_, gather), (_, up), (_, activate), (_, down), (_, combine) = steps
    assert (up["skips_rest"], down["skips_rest"]) == (1, 1)
    assert (route["ids"], route["id_bytes"], route["entries"], route["groups"]) == (at["topk_ids"], 8, rows, experts)
    assert (gather["y"], gather["y_row"], gather["source_rows"]) == (at["x"], hidden, tokens)
    assert (gather["index"], gather["index_bytes"], gather["weights"]) == (route["token"], 4, 0)
    assert (gather["rows"], gather["columns"], gather["ends"]) == (rows, hidden, route["ends"])
    for given, before, w, b, size in (
        (up, gather, "w1", "b1", (2 * inner, hidden)),
        (down, activate, "w2", "b2", (hidden, inner)),
    ):
        assert address(given["a"]) == before["out"] and address(given["b"]) == at[w] and given["bias"] == at[b]
        assert given["offs"] == route["ends"] and (given["groups"], given["rows"]) == (experts, rows)
        assert (given["columns"], given["depth"]) == size
    assert activate["y"] == address(up["c"]) and (activate["rows"], activate["columns"]) == (rows, inner)
    assert (ACTIVATIONS[activate["activation"]], activate["order"]) == ("swiglu", INTERLEAVED)
    assert activate["ends"] == route["ends"]
    assert combine["y"] == address(down["c"]) and combine["inverse"] == route["inverse"]
    assert (combine["weights"], combine["weight_kind"], combine["added"]) == (at["topk_weights"], 0, at["add"])
    assert (combine["out"], combine["out_row"], combine["rows"], combine["top_k"]) == (at["out"], hidden, rows, k)
    assert struct.unpack("f", struct.pack("i", combine["factor_bits"])) == (0.5,)


@pytest.mark.parametrize(("weights", "kind"), [("float32", 0), ("float16", 1), ("bfloat16", 2)])
def test_weights_of_inputs_go_with_the_gather(fake_cuda, weights, kind):
    steps, arrays = launched(fake_cuda, *QWEN, apply_router_weight_on_input=True, weights=weights)
    gather, combine, route = (
        next(given for symbol, given in steps if symbol == one) for one in ("gather", "combine", "route_place")
    )
    assert (gather["weights"], gather["weight_kind"]) == (arrays["topk_weights"]["address"], kind)
    assert gather["weight_index"] == route["slot"] and combine["weights"] == 0


TURNS = (
    PRELUDE
    + """
    for on_input in (False, True, False, True):
        arrays, options = layer(64, 8, 128, 2048, 768, apply_router_weight_on_input=on_input)
        gg_runtime.fused_experts(**arrays, **options)
"""
)


def test_layers_with_and_without_weights_on_inputs_take_turns(fake_cuda):
    """The kernel that gathers by itself has no weights, and a thread remembers how it divided either."""
    symbols = [launch["symbol"] for launch in fake_cuda.run(TURNS).launches]
    fused = ["route_place", "hopper_ragged", "hopper_ragged", "combine"]
    assert symbols == [*fused, fused[0], "gather", *fused[1:]] * 2


def test_a_map_and_ids_of_32_bits_are_handed_over(fake_cuda):
    steps, arrays = launched(fake_cuda, *QWEN, known=300, id_dtype="int32")
    given = steps[0][1]
    assert (given["expert_map"], given["map_bytes"], given["map_size"]) == (arrays["expert_map"]["address"], 4, 300)
    assert given["id_bytes"] == 4


@pytest.mark.parametrize("pad", [0, 3])
def test_chunks_of_tokens_go_one_behind_the_other_through_one_workspace(fake_cuda, pad):
    steps, arrays = launched(fake_cuda, *ODD, max_rows=9, added=True, pad=pad)
    at = {name: facts["address"] for name, facts in arrays.items()}
    each = len(steps) // 3
    chunks = [dict(steps[start : start + each]) for start in range(0, len(steps), each)]
    assert len(chunks) == 3
    for first, tokens, chunk in zip((0, 4, 8), (4, 4, 2), chunks):
        route, gather, combine = chunk["route_place"], chunk["gather"], chunk["combine"]
        assert (route["ids"], route["entries"]) == (at["topk_ids"] + first * 2 * 8, tokens * 2)
        assert (gather["y"], gather["source_rows"]) == (at["x"] + first * (75 + pad) * 2, tokens)
        assert combine["weights"] == at["topk_weights"] + first * 2 * 4
        assert combine["added"] == at["add"] + first * 75 * 2
        assert combine["out"] == at["out"] + first * (75 + pad) * 2
    places = [[chunk["route_place"][name] for name in ("ends", "token", "slot", "inverse")] for chunk in chunks]
    assert places[0] == places[1] == places[2]


@pytest.mark.parametrize("call", ["fused_experts", "ExpertsPlan"])
def test_threads_give_a_stream_one_chunk_behind_the_other(fake_cuda, call):
    """They share a workspace, or an ExpertsPlan, on one stream: each chunk reads what it has written itself."""
    script = """
    from threads import in_threads
    arrays, options = layer(64, 8, 128, 2048, 768, max_rows=256)
    other, _ = layer(64, 8, 128, 2048, 768, max_rows=256)
    other["workspace"] = arrays["workspace"]
    plan = gg_runtime.ExpertsPlan(**arrays, **options)
    work = {
        "fused_experts": lambda i: gg_runtime.fused_experts(**[arrays, other][i], **options),
        "ExpertsPlan": lambda i: plan.run(),
    }["CALL"]
    work(0)
    in_threads(work, 2)
    """
    ran = fake_cuda.run(PRELUDE + script.replace("CALL", call), FAKE_CUDA_SLOW="cuLaunchKernelEx:2")
    symbols = [launch["symbol"] for launch in ran.launches]
    chunk = symbols[: symbols.index("combine") + 1]
    assert len(chunk) == 4 and symbols == chunk * 6, "two chunks alone, then two of each thread"


def test_slots_of_no_token_leave_only_the_sum(fake_cuda):
    steps, arrays = launched(fake_cuda, 9, 0, 4, 64, 32, added=True)
    ((symbol, given),) = steps
    assert (symbol, given["top_k"], given["added"]) == ("combine", 0, arrays["add"]["address"])


@pytest.mark.parametrize("sizes", [(0, 4, 8, 64, 32), (5, 4, 8, 0, 32)], ids=str)
def test_nothing_to_compute_launches_nothing(fake_cuda, sizes):
    assert launched(fake_cuda, *sizes)[0] == []


def test_no_inner_columns_leave_the_bias(fake_cuda):
    steps, arrays = launched(fake_cuda, 5, 2, 4, 64, 0, biases=True)
    names = [symbol for symbol, _ in steps]
    assert names[0] == "route_place" and names[-1] == "combine" and len(names) == 3
    assert steps[1][1]["bias"] == arrays["b2"]["address"] and steps[1][1]["depth"] == 0
