"""fused_experts with e4m3 weights up to the driver: its launches in their order, and what each reads and writes."""

import itertools
import json
import textwrap

import pytest

from faults.experts import ACTIVATIONS, ODD, PRELUDE, QWEN, RUN, address, launched
from faults.fake_driver import SM_80, assert_says
from faults.parameters import QUANTIZED_DESCRIPTORS, by_value, limit_bits, ragged_arguments, record_of


@pytest.mark.parametrize(
    ("sizes", "order"), [(QWEN, "interleaved"), (ODD, "interleaved"), (ODD, "gate_first")], ids=str
)
def test_each_step_reads_what_the_one_before_has_written(fake_cuda, sizes, order):
    steps, arrays = launched(fake_cuda, *sizes, gate_up=order, biases=True, added=True, scale=0.5, fp8=True)
    tokens, k, experts, hidden, inner = sizes
    rows, at = tokens * k, {name: facts["address"] for name, facts in arrays.items()}
    (_, route), (first, x), (_, up), (second, h), (_, down), (last, combine) = steps
    assert (first, second, last) == ("quantize", "activate_quantize", "combine")
    assert (x["y"], x["y_row"], x["y_col"], x["source_rows"]) == (at["x"], hidden, 1, tokens)
    assert (x["index"], x["weights"], x["ends"], x["groups"]) == (route["token"], 0, route["ends"], experts)
    assert (h["y"], ACTIVATIONS[h["activation"]], h["ends"]) == (address(up["c"]), "swiglu", route["ends"])
    for before, product, w, b, size in (
        (x, up, "w1", "b1", (2 * inner, hidden)),
        (h, down, "w2", "b2", (hidden, inner)),
    ):
        n_blocks, k_blocks = (-(-one // 128) for one in size)
        assert (before["rows"], before["columns"]) == (rows, size[1]) and before["out_row"] % 16 == 0
        assert (address(product["a"]), address(product["b"]), product["bias"]) == (before["out"], at[w], at[b])
        assert (product["columns"], product["depth"]) == size and product["skips_rest"] == 1
        assert (product["offs"], product["groups"], product["rows"]) == (route["ends"], experts, rows)
        assert (product["scale_a"], product["scale_a_row"], product["scale_a_k"]) == (
            before["scales"], before["scale_row"], before["scale_col"],
        )  # fmt: skip
        assert (before["scale_row"], before["scale_col"]) == (1, rows)
        assert (product["scale_b"], product["scale_b_step"], product["scale_b_n"], product["scale_b_k"]) == (
            at[f"{w}_scale"], n_blocks * k_blocks, k_blocks, 1,
        )  # fmt: skip
    assert (combine["y"], combine["inverse"], combine["weights"]) == (
        address(down["c"]), route["inverse"], at["topk_weights"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"biases": True}, {"activation": "geglu"}, {"activation": "relu"}, {"gate_up": "interleaved"},
        {"apply_router_weight_on_input": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("sizes", [QWEN, (1024, 4, 4, 272, 128)], ids=str)
def test_an_activation_is_a_launch_of_its_own_that_quantizes(fake_cuda, sizes, options):
    steps, _ = launched(fake_cuda, *sizes, fp8=True, **options)
    assert [symbol for symbol, _ in steps][-5::2] == ["quantize", "activate_quantize", "combine"]


@pytest.mark.parametrize("inner", [64, 120, 144, 192, 320])
def test_columns_that_are_no_whole_blocks_of_scales_are_activated_apart(fake_cuda, inner):
    steps, _ = launched(fake_cuda, 1024, 4, 4, 272, inner, fp8=True)
    assert [symbol for symbol, _ in steps][-5::2] == ["quantize", "activate_quantize", "combine"]


@pytest.mark.parametrize(("weights", "kind"), [("float32", 0), ("float16", 1), ("bfloat16", 2)])
def test_weights_of_inputs_are_factors_of_scales(fake_cuda, weights, kind):
    steps, arrays = launched(fake_cuda, *QWEN, apply_router_weight_on_input=True, weights=weights, fp8=True)
    given = dict(steps)
    assert (given["quantize"]["weights"], given["quantize"]["weight_kind"]) == (
        arrays["topk_weights"]["address"], kind,
    )  # fmt: skip
    assert given["quantize"]["weight_index"] == given["route_place"]["slot"] and given["combine"]["weights"] == 0
    assert given["quantize"]["index"] == given["route_place"]["token"]


PREFILL = (1024, 4, 4, 272, 128)  # of which the up projection picks rows by the index


@pytest.mark.parametrize(
    "options",
    [{"biases": True}, {"activation": "relu"}, {"activation": "geglu"}, {"gate_up": "interleaved"}],
    ids=str,
)
def test_tokens_of_a_prefill_are_quantized_once(fake_cuda, options):
    steps, arrays = launched(fake_cuda, *PREFILL, fp8=True, **options)
    tokens, k, experts, hidden, _ = PREFILL
    _, place, (first, x), (_, up), (_, h) = steps[:5]
    route = place[1]
    assert (first, x["y"], x["rows"], x["columns"]) == ("quantize", arrays["x"]["address"], tokens, hidden)
    assert (x["index"], x["ends"], x["weights"]) == (0, 0, 0)
    assert (x["scale_row"], x["scale_col"]) == (-(-hidden // 128), 1)
    assert (up["a_address"], up["a_row"], up["a_rows"]) == (x["out"], x["out_row"], tokens)
    assert (up["index"], up["index_bytes"], up["offs"]) == (route["token"], 4, route["ends"])
    assert (up["scale_a"], up["scale_a_row"], up["scale_a_k"]) == (x["scales"], x["scale_row"], x["scale_col"])
    assert (up["scale_b"], up["scale_b_k"]) == (arrays["w1_scale"]["address"], 1)
    assert (up["rows"], up["groups"], up["depth"], up["skips_rest"]) == (tokens * k, experts, hidden, 1)
    assert (h["y"], h["rows"]) == (address(up["c"]), tokens * k)


FUSED = [
    {}, {"swiglu_limit": 10}, {"gate_up": "up_first"}, {"activation": "geglu_tanh"},
    {"activation": "swiglu_oai", "gate_up": "up_first"}, {"batch_invariant": True}, {"added": True, "scale": 0.5},
    {"known": 4, "id_dtype": "int32"},
]  # fmt: skip
FUSED_SIZES = [PREFILL, (1001, 4, 4, 400, 384), (4096, 8, 16, 1024, 768)]


@pytest.mark.parametrize("sizes", FUSED_SIZES, ids=str)
@pytest.mark.parametrize("options", FUSED, ids=str)
def test_the_up_projection_of_a_prefill_activates_and_quantizes(fake_cuda, sizes, options):
    steps, arrays = launched(fake_cuda, *sizes, fp8=True, **options)
    tokens, k, experts, hidden, inner = sizes
    rows, at = tokens * k, {name: facts["address"] for name, facts in arrays.items()}
    symbols = [symbol for symbol, _ in steps]
    assert symbols[:3] == ["route_count", "route_place", "quantize"] and symbols[5:] == ["combine"]
    route, x, up, down, combine = (given for _, given in steps[1:])
    assert "out_scales" in up and "out_scales" not in down
    assert (x["y"], x["rows"], x["columns"], x["index"], x["ends"]) == (at["x"], tokens, hidden, 0, 0)
    assert (up["a_address"], up["a_row"], up["a_rows"]) == (x["out"], x["out_row"], tokens)
    assert (up["scale_a"], up["scale_a_row"], up["scale_a_k"]) == (x["scales"], -(-hidden // 128), 1)
    assert (up["index"], up["index_bytes"], up["offs"], up["bias"]) == (route["token"], 4, route["ends"], 0)
    assert (up["columns"], up["depth"], up["rows"], up["groups"]) == (2 * inner, hidden, rows, experts)
    activation, order = options.get("activation", "swiglu"), options.get("gate_up", "gate_first")
    assert (ACTIVATIONS[up["activation"]], up["up_first"]) == (activation, order == "up_first")
    assert up["limit_bits"] == limit_bits(activation, options.get("swiglu_limit"))
    n_blocks, k_blocks = 2 * inner // 128, -(-hidden // 128)  # scales of both halves, whichever is first
    assert (up["scale_b"], up["scale_b_step"], up["scale_b_n"], up["scale_b_k"]) == (
        at["w1_scale"], n_blocks * k_blocks, k_blocks, 1,
    )  # fmt: skip
    b, c = up["b"], up["c"]
    assert (b["address"], b["sizes"], b["box"][:2]) == (at["w1"], [hidden, inner, 2, experts], [128, 128])
    assert b["strides"] == [hidden, inner * hidden, 2 * inner * hidden]
    assert (c["sizes"][0], c["strides"][0], c["box"], c["type"]) == (inner, inner, [128, 64, 1, 1], 0)
    # The down projection reads what the up projection writes, and its scales where they were put.
    assert address(down["a"]) == c["address"] and down["scale_a"] == up["out_scales"]
    assert (up["out_scale_row"], up["out_scale_k"]) == (down["scale_a_row"], down["scale_a_k"]) == (1, rows)
    assert (address(combine["y"]), combine["inverse"]) == (address(down["c"]), route["inverse"])


@pytest.mark.parametrize("sizes", FUSED_SIZES, ids=str)
def test_memory_of_a_fused_up_projection_is_apart(fake_cuda, sizes):
    """Of what it reads and writes, and of what routing has written, which is read until the end."""
    steps, arrays = launched(fake_cuda, *sizes, fp8=True)
    tokens, k, experts, hidden, inner = sizes
    route, x, up, down = (given for _, given in steps[1:5])
    rows, start = tokens * k, arrays["workspace"]["address"]
    activated = [
        (address(up["c"]), rows * inner),
        (up["out_scales"], 4 * rows * (inner // 128)),
    ]
    before = [
        (x["out"], tokens * x["out_row"]),
        (x["scales"], 4 * tokens * -(-hidden // 128)),
        (route["ends"], 4 * experts),
        *((route[name], 4 * rows) for name in ("token", "slot", "inverse")),
    ]
    after = [(address(down["c"]), 2 * rows * hidden), *before[2:]]
    for others in (before, after):
        spans = sorted((at, at + size) for at, size in (*activated, *others))
        assert all(stop <= first for (_, stop), (first, _) in itertools.pairwise(spans))
        assert start <= spans[0][0] and spans[-1][1] <= start + arrays["workspace"]["shape"][0]


def test_the_record_of_a_fused_up_projection_has_its_own_length(fake_cuda):
    case = json.dumps({"sizes": PREFILL, "options": {"fp8": True}})
    ran = fake_cuda.run(PRELUDE + RUN.format(case=case))
    up = ran.launches[3]
    words = by_value(ragged_arguments(up), up["symbol"])
    assert record_of(words, up["symbol"]) is QUANTIZED_DESCRIPTORS


FUSED_PLAN = """
    case = json.loads({case!r})
    arrays, options = layer(*case["sizes"], **case["options"])
    plan = gg_runtime.ExpertsPlan(**arrays, **options)
    plan.run()
    plan.run()
    told = gg_runtime.explain_experts(**arrays, **options)
    report([plan.variants, plan.launches, told.steps, told.launches])
"""


def test_a_plan_and_explain_have_no_activation_where_the_up_projection_does_it(fake_cuda):
    ran = fake_cuda.run(
        PRELUDE + FUSED_PLAN.format(case=json.dumps({"sizes": PREFILL, "options": {"fp8": True}}))
    )  # fmt: skip
    ((variants, count, steps, launches),) = ran.reported
    assert [step["name"] for step in steps] == ["route", "quantize", "up", "down", "combine"]
    assert [name for step in steps for name in step["variants"]] == variants and launches == count == len(variants)
    (up,) = steps[2]["variants"]
    assert up.startswith("hopper_gather_quantized_sm90_e4m3_")
    first, second = ran.launches[:count], ran.launches[count:]
    assert [one["parameters"] for one in first] == [one["parameters"] for one in second]


@pytest.mark.parametrize("options", [{}, {"biases": True}, {"apply_router_weight_on_input": True}], ids=str)
def test_a_batch_invariant_layer_takes_the_same_kernels_whatever_the_batch(fake_cuda, options):
    script = PRELUDE
    for tokens in (1, 2, 17, 1024, 5000):
        case = {"sizes": [tokens, *PREFILL[1:]], "options": {"fp8": True, "batch_invariant": True, **options}}
        script += f"""
    arrays, options = layer(*{case["sizes"]}, **json.loads({json.dumps(case["options"])!r}))
    report(gg_runtime.ExpertsPlan(**arrays, **options).variants)
"""
    after_routing = [[name for name in one if "route" not in name] for one in fake_cuda.run(script).reported]
    assert all(one == after_routing[0] for one in after_routing)


def test_one_thread_keeps_choices_of_each_way_apart(fake_cuda):
    """Layers of one size whose products differ in their epilogue alone, one after the other."""
    script = PRELUDE
    for more in ({}, {"biases": True}, {}, {"apply_router_weight_on_input": True}, {}):
        case = json.dumps({"sizes": PREFILL, "options": {"fp8": True, **more}})
        script += textwrap.indent(textwrap.dedent(RUN.format(case=case)), "    ")
    symbols = [launch["symbol"] for launch in fake_cuda.run(script).launches]
    assert [symbols[start : start + 7].count("activate_quantize") for start in (0, 6, 13, 19, 26)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "driver", "may"),
    [({}, 12080, True), ({}, 12030, True), ({}, 12020, False), ({"apply_router_weight_on_input": True}, 12080, False)],
    ids=str,
)
def test_tokens_are_quantized_beside_their_routing_and_nothing_else_overlaps(fake_cuda, options, driver, may):
    case = json.dumps({"sizes": PREFILL, "options": {"fp8": True, **options}})
    ran = fake_cuda.run(PRELUDE + RUN.format(case=case), FAKE_CUDA_DRIVER=driver)
    symbols = [launch["symbol"] for launch in ran.launches]
    assert symbols[1:3] == ["route_place", "quantize"]
    assert [launch["overlaps"] for launch in ran.launches] == [int(may and one == "quantize") for one in symbols]


def test_weights_of_inputs_keep_rows_in_order(fake_cuda):
    steps, _ = launched(fake_cuda, *PREFILL, apply_router_weight_on_input=True, fp8=True)
    given = dict(steps)
    assert given["quantize"]["index"] == given["route_place"]["token"]
    assert given["quantize"]["rows"] == PREFILL[0] * PREFILL[1]


def test_without_an_activation_sums_are_quantized(fake_cuda):
    steps, _ = launched(fake_cuda, *QWEN, activation=None, fp8=True)
    (_, x), (_, up), (_, h) = steps[1:4]
    assert [symbol for symbol, _ in steps].count("quantize") == 2
    assert (x["index"] != 0, h["index"], h["y"]) == (True, 0, address(up["c"]))


def test_chunks_go_through_one_workspace(fake_cuda):
    steps, arrays = launched(fake_cuda, *ODD, max_rows=9, fp8=True)
    chunks = [dict(steps[start : start + len(steps) // 3]) for start in range(0, len(steps), len(steps) // 3)]
    assert [chunk["quantize"]["source_rows"] for chunk in chunks] == [4, 4, 2]
    assert [chunk["quantize"]["y"] - arrays["x"]["address"] for chunk in chunks] == [0, 4 * 75 * 2, 8 * 75 * 2]
    assert len({chunk["quantize"]["out"] for chunk in chunks}) == 1


@pytest.mark.parametrize("sizes", [(0, 4, 8, 64, 32), (5, 4, 8, 0, 32)], ids=str)
def test_nothing_to_compute_launches_nothing(fake_cuda, sizes):
    assert launched(fake_cuda, *sizes, fp8=True)[0] == []


def test_gpus_without_fp8_say_so(fake_cuda):
    ran = fake_cuda.run(
        PRELUDE
        + """
    arrays, options = layer(*json.loads('SIZES'), fp8=True)
    report(failure(gg_runtime.fused_experts, **arrays))
    report(failure(gg_runtime.ExpertsPlan, **arrays))
    """.replace("SIZES", json.dumps(QWEN)),
        **SM_80,
    )
    assert ran.launches == []
    for said in ran.reported:
        assert_says(said, "UnsupportedError", "fused_experts", "float8_e4m3fn", "sm_80", "capability 9.0")
