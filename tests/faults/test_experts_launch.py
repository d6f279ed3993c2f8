"""fused_experts up to the driver: its launches in their order, what each reads and writes, and where that lies."""

import json
import struct

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_routing_launch import FIELDS
from faults.test_routing_launch import arguments as routing_arguments

GATHER = (
    "y", "y_row", "y_col", "index", "out", "out_row", "ends", "weights", "weight_index",
    "rows", "columns", "source_rows", "groups", "index_bytes", "weight_kind",
)  # fmt: skip
ACTIVATE = (
    "y",
    "y_row",
    "y_col",
    "out",
    "out_row",
    "out_col",
    "ends",
    "rows",
    "columns",
    "groups",
    "activation",
    "order",
)
MOVES = {"gather": (GATHER, "QqqQQqQQQ6i"), "activate": (ACTIVATE, "QqqQqqQ5i")}
ACTIVATIONS = ("none", "swiglu", "geglu", "geglu_tanh", "swiglu_oai", "silu", "gelu", "gelu_tanh", "relu", "relu2")
INTERLEAVED = 2

# Arrays without an allocator: only calls with `out` and `workspace` go through. `case` has sizes and arguments.
PRELUDE = """
    import json

    def array(*shape, dtype="bfloat16", pad=0):
        strides = None if not pad else (shape[1] + pad, 1)
        return ExchangeArray(*shape, address=fresh_address(), dtype=dtype, strides=strides)

    def transposed(experts, rows, columns):
        return ExchangeArray(experts, rows, columns, strides=(columns * rows, 1, rows), address=fresh_address(),
                             dtype="bfloat16")

    def layer(tokens, k, experts, hidden, inner, *, activation="swiglu", id_dtype="int64", biases=False, known=None,
              added=False, pad=0, weights="float32", **options):
        columns = inner * 2 if activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_oai") else inner
        arrays = {
            "x": array(tokens, hidden, pad=pad), "w1": transposed(experts, hidden, columns),
            "w2": transposed(experts, inner, hidden), "topk_weights": array(tokens, k, dtype=weights),
            "topk_ids": array(tokens, k, dtype=id_dtype), "out": array(tokens, hidden, pad=pad),
        }
        if biases:
            arrays |= {"b1": array(experts, columns), "b2": array(experts, hidden)}
        if known is not None:
            arrays["expert_map"] = array(known, dtype="int32")
        if added:
            arrays["add"] = array(tokens, hidden)
        limit = {"max_rows": options["max_rows"]} if "max_rows" in options else {}
        sizes = (tokens, k, experts, hidden, inner)
        needed = gg_runtime.fused_experts_workspace(*sizes, activation=activation, **limit)
        arrays["workspace"] = array(needed, dtype="uint8")
        return arrays, {"activation": activation, **options}

    def facts(arrays):
        return {name: one.facts() for name, one in arrays.items()}
"""
RUN = """
    case = json.loads({case!r})
    arrays, options = layer(*case["sizes"], **case["options"])
    assert gg_runtime.fused_experts(**arrays, **options) is arrays["out"]
    report(facts(arrays))
"""
QWEN = (64, 8, 128, 2048, 768)
ODD = (10, 2, 5, 75, 61)


def launched(fake_cuda, *sizes, settings=None, **options):
    """The launches of a layer as (symbol, what it was given), and the arrays' facts."""
    ran = fake_cuda.run(PRELUDE + RUN.format(case=json.dumps({"sizes": sizes, "options": options})), **(settings or {}))
    assert len({launch["stream"] for launch in ran.launches}) <= 1
    return [(launch["symbol"], given_to(launch)) for launch in ran.launches], ran.reported[0]


def given_to(launch: dict) -> dict:
    symbol = launch["symbol"]
    if symbol in FIELDS:
        return routing_arguments(launch)
    if symbol in MOVES:
        names, layout = MOVES[symbol]
        return dict(zip(names, struct.unpack_from(f"@{layout}", bytes.fromhex(launch["parameters"]))))
    arguments = ragged_arguments(launch)
    words = read_ragged(by_value(arguments, symbol), symbol)
    return words | {name: getattr(arguments, name) for name in ("groups", "rows", "columns", "depth")}


def address(matrix) -> int:
    """Of a pointer, or of a descriptor."""
    return matrix["address"] if isinstance(matrix, dict) else matrix


def is_gated(given: dict) -> bool:
    """Whether a product applies a gated activation itself."""
    return given.get("activation", 0) > 0


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


def spans(symbol: str, given: dict, top_k: int) -> tuple[list, list]:
    """(read, written): intervals of memory of a launch, as (start, end) in bytes; rows to their last element."""

    def integers(name, count):
        return (given[name], given[name] + 4 * count)

    def rows(start, count, stride, columns):
        return (start, start + 2 * ((count - 1) * stride + columns))

    if symbol == "route_count":
        return [], [(given["counts"], given["counts"] + 4)]
    if symbol == "route_place":
        outputs = [integers(name, given["entries"]) for name in ("token", "slot", "inverse")]
        counts = [(given["counts"], given["counts"] + 4 * given["parts"] * 256)] if given["counts"] else []
        return counts, [integers("ends", given["groups"]), *outputs]
    count, columns = given["rows"], given["columns"]
    if symbol == "gather":
        return [integers("index", count)], [rows(given["out"], count, given["out_row"], columns)]
    if symbol == "activate":
        wide = columns * (2 if ACTIVATIONS[given["activation"]].startswith(("swiglu", "geglu")) else 1)
        return [rows(given["y"], count, given["y_row"], wide)], [rows(given["out"], count, given["out_row"], columns)]
    if symbol == "combine":
        return [rows(given["y"], count, given["y_row"], columns), integers("inverse", given["rows"])], []

    def row_of(name):
        return given[name]["strides"][-1] // 2 if isinstance(given[name], dict) else given[f"{name}_row"]

    written = [rows(address(given["c"]), count, row_of("c"), columns // 2 if is_gated(given) else columns)]
    if given.get("index"):  # of x, which is nobody's workspace
        return [integers("index", count)], written
    return [rows(address(given["a"]), count, row_of("a"), given["depth"])], written


LAYOUTS = [
    (QWEN, "swiglu", {}), (ODD, "swiglu", {}), (ODD, "relu2", {}), ((64, 8, 16, 64, 512), "swiglu", {}),
    ((64, 8, 16, 512, 64), "geglu", {}), ((64, 8, 16, 64, 512), "silu", {}), ((64, 8, 16, 512, 64), None, {}),
    ((3000, 8, 128, 256, 64), "swiglu", {}), ((3000, 8, 128, 64, 256), "swiglu_oai", {"max_rows": 5000}),
    ((1, 1, 1, 8, 8), "swiglu", {}), ((700, 16, 1023, 8, 8), "gelu", {}), ((7, 3, 4, 1, 1), "swiglu", {}),
]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(("sizes", "activation", "options"), LAYOUTS, ids=str)
def test_nothing_lies_where_something_is_still_read(fake_cuda, sizes, activation, options, settings):
    steps, arrays = launched(fake_cuda, *sizes, activation=activation, settings=settings, **options)
    workspace = arrays["workspace"]["address"]
    end = workspace + arrays["workspace"]["shape"][0]
    alive: dict[int, tuple[int, int]] = {}  # what was written, by its start, until it is written over
    for symbol, given in steps:
        read, written = spans(symbol, given, sizes[1])
        for start, stop in [*read, *written]:
            assert workspace <= start < stop <= end or symbol == "combine", (symbol, "outside of the workspace")
        in_place = symbol == "activate" and given["y"] == given["out"]
        for start, _ in read:
            assert start in alive, (symbol, "reads what nobody has written")
        for start, stop in written:
            for other, other_stop in read:
                assert in_place or stop <= other or other_stop <= start, (symbol, "writes what it reads")
            alive = {at: until for at, until in alive.items() if until <= start or stop <= at}
        alive |= dict(written)
        routing = [given[name] for name in ("ends", "inverse") if name in given and symbol != "combine"]
        assert all(address in alive for address in routing)


@pytest.mark.parametrize("experts", [1, 255, 256, 511, 512, 1023])
def test_the_workspace_has_room_for_the_counts_of_routing(fake_cuda, experts):
    steps, _ = launched(fake_cuda, 30000, 8, experts, 8, 8)
    assert [symbol for symbol, _ in steps[:2]] == ["route_count", "route_place"]
    bins = min(
        kernel["block_n"]
        for kernel in KERNELS.values()
        if kernel["form"] == "route_count" and kernel["block_n"] > experts
    )
    place = steps[1][1]
    counts_end = place["counts"] + 4 * place["parts"] * bins
    others = [
        given[name]
        for symbol, given in steps[1:]
        for name in ("ends", "token", "slot", "inverse", "out")
        if name in given
    ]
    assert not [one for one in others if place["counts"] <= one < counts_end]


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


ALLOCATING = (
    PRELUDE
    + """
    import cupy
    def on_gpu(arrays):
        return {name: cupy.ndarray(*one.shape, address=one.address, strides=one.strides, dtype=one.dtype,
                                   device=cupy.Device(0)) for name, one in arrays.items()}
    arrays, options = layer(64, 8, 128, 2048, 768)
    needed, = arrays.pop("workspace").shape
    arrays = on_gpu(arrays)
"""
)


def test_one_block_is_allocated_where_no_workspace_is_given(fake_cuda):
    ran = fake_cuda.run(ALLOCATING + """
    before = len(cupy.allocations)
    gg_runtime.fused_experts(**arrays)
    report([needed, cupy.allocations[before:]])
    out = arrays.pop("out")
    before = len(cupy.allocations)
    made = gg_runtime.fused_experts(**arrays)
    report([list(made.shape), made.dtype, made.address, cupy.allocations[before:]])
    """)  # fmt: skip
    (needed, ((address, size),)), (shape, dtype, made, allocated) = ran.reported
    place = given_to(ran.launches[0])
    assert needed <= size <= needed + 127 and address <= place["ends"] < address + 128 and place["ends"] % 128 == 0
    assert (shape, dtype, len(allocated)) == ([64, 2048], "bfloat16", 2)
    assert given_to(ran.launches[-1])["out"] == made


PLAN = (
    PRELUDE
    + """
    arrays, options = layer(64, 8, 128, 2048, 768, added=True)
    plan = gg_runtime.ExpertsPlan(**arrays, **options)
    report([plan.variants, plan.launches])
    gg_runtime.fused_experts(**arrays, **options)
    ExchangeArray.describe = None  # a run reads no array
    assert plan.run() is plan.out is arrays["out"]
    ExchangeArray.streams[0] = 0x300
    plan.run()
"""
)


def test_a_plan_launches_what_the_call_does_on_the_stream_of_the_moment(fake_cuda):
    ran = fake_cuda.run(PLAN)
    (variants, count), launches = ran.reported[0], ran.launches
    assert count == len(variants) and len(launches) == 3 * count
    called, first, second = (launches[start : start + count] for start in range(0, 3 * count, count))
    assert [KERNELS[variant]["cubin_sha256"] for variant in variants] == [ran.hash_of(launch) for launch in called]
    assert [given_to(launch) for launch in called] == [given_to(launch) for launch in first]
    assert [given_to(launch) for launch in called] == [given_to(launch) for launch in second]
    assert {launch["stream"] for launch in second} == {0x300} != {launch["stream"] for launch in first}


EXPLAINED = (
    PRELUDE
    + """
    for sizes in json.loads('SIZES'):
        for settings in ({}, {"max_rows": 2 * sizes[1] or 1}, {"batch_invariant": True}):
            arrays, options = layer(*sizes, **settings)
            plan, told = gg_runtime.ExpertsPlan(**arrays, **options), gg_runtime.explain_experts(**arrays, **options)
            chunks = -(-sizes[0] // 2) if "max_rows" in settings and sizes[1] else 1
            assert (told.launches, told.chunks) == (plan.launches, chunks), (told, plan.launches, chunks)
            variants = [variant for step in told.steps for variant in step["variants"]]
            assert plan.variants[:len(variants)] == variants
            assert told.workspace_bytes == arrays["workspace"].shape[0]
            report([variants, plan.launches])
"""
)


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
def test_explain_names_the_kernels_that_a_plan_launches(fake_cuda, settings):
    sizes = [QWEN, ODD, (3000, 8, 128, 256, 64), (6, 0, 4, 64, 32), (6, 2, 4, 64, 0), (1, 1, 1, 8, 8)]
    ran = fake_cuda.run(EXPLAINED.replace("SIZES", json.dumps(sizes)), **settings)
    assert len(ran.reported) == 3 * len(sizes) and not ran.launches


CAPTURED = (
    ALLOCATING
    + """
    import ctypes, gc, weakref
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_begin_capture.argtypes = [ctypes.c_size_t, ctypes.c_int]
    driver.fake_end_capture.argtypes = [ctypes.c_size_t]
    kept, allocate = [], cupy.empty

    def empty(*arguments):
        made = allocate(*arguments)
        kept.append(weakref.ref(made))
        return made

    def freed():
        gc.collect()
        return sum(one() is None for one in kept)

    cupy.empty, cupy.cuda.streams[0] = empty, 0x200
    driver.fake_begin_capture(0x200, 7)
    CALL
    report([driver.fake_end_capture(0x200), len(kept), freed()])
    driver.fake_destroy_graph(7)
    gg_runtime.fused_experts(**arrays)
    report([len(kept), freed()])
"""
)


@pytest.mark.parametrize("call", ["gg_runtime.fused_experts(**arrays)", "gg_runtime.ExpertsPlan(**arrays).run()"])
def test_a_graph_keeps_the_workspace_that_a_captured_call_allocated(fake_cuda, call):
    """CuPy has no pool for captures: what a call frees would be handed out again and written over by the replays."""
    ran = fake_cuda.run(CAPTURED.replace("CALL", call))
    assert ran.reported == [[0, 1, 0], [2, 2]], "the captured call's goes with the graph, the next call's at once"


def test_arrays_that_never_change_have_no_plan_and_no_workspace(fake_cuda):
    ran = fake_cuda.run(PRELUDE + """
    class Immutable(ExchangeArray):
        __module__ = "jaxlib.stand_in"
    sys.modules["jax"] = sys.modules["json"]
    arrays, options = layer(4, 2, 3, 64, 32)
    arrays["workspace"] = Immutable(10**6, address=fresh_address(), dtype="uint8")
    report(failure(gg_runtime.fused_experts, **arrays))
    x = arrays["x"]
    arrays["x"] = Immutable(*x.shape, address=x.address, dtype="bfloat16")
    report(failure(gg_runtime.ExpertsPlan, **arrays | {"workspace": None}))
    """)  # fmt: skip
    assert "workspace is of a framework whose arrays never change" in ran.reported[0]["text"]
    assert ran.reported[1]["type"] == "TypeError" and "call fused_experts each time" in ran.reported[1]["text"]
