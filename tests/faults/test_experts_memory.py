"""Memory of fused_experts: where its launches read and write, and what is allocated and kept."""

import json

import pytest

from embedded import KERNELS
from faults.experts import ACTIVATIONS, ODD, PRELUDE, QWEN, address, given_to, is_gated, launched
from faults.fake_driver import SM_80, assert_says


def spans(symbol: str, given: dict) -> tuple[list, list]:
    """(read, written): intervals of memory of a launch, as (start, end) in bytes; rows to their last element."""

    def integers(name, count):
        return (given[name], given[name] + 4 * count)

    def rows(start, count, stride, columns, size=2):
        return (start, start + size * ((count - 1) * stride + columns))

    def scales(columns):
        return (given["scales"], given["scales"] + 4 * count * -(-columns // 128))

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
    if symbol == "quantize" and given["index"]:
        return [integers("index", count)], [rows(given["out"], count, given["out_row"], columns, 1), scales(columns)]
    if symbol == "quantize" and not given["ends"]:  # of x, which is nobody's workspace
        return [], [rows(given["out"], count, given["out_row"], columns, 1), scales(columns)]
    if symbol in ("quantize", "activate_quantize"):
        wide = columns * (2 if symbol != "quantize" and given["activation"] in range(1, 5) else 1)
        written = [rows(given["out"], count, given["out_row"], columns, 1), scales(columns)]
        return [rows(given["y"], count, given["y_row"], wide)], written
    if symbol == "combine":
        return [rows(given["y"], count, given["y_row"], columns), integers("inverse", given["rows"])], []

    def row_of(name):
        size = 1 if (name == "a" and "scale_a_k" in given) or (name == "c" and "out_scales" in given) else 2
        return given[name]["strides"][-1] // size if isinstance(given[name], dict) else given[f"{name}_row"]

    if "out_scales" in given:
        of_output = (given["out_scales"], given["out_scales"] + 4 * count * (columns // 256))
        written = [rows(address(given["c"]), count, row_of("c"), columns // 2, 1), of_output]
    else:
        written = [rows(address(given["c"]), count, row_of("c"), columns // 2 if is_gated(given) else columns)]
    if given.get("index") and "scale_a_k" in given:
        of_scales = (given["scale_a"], given["scale_a"] + 4 * given["a_rows"] * -(-given["depth"] // 128))
        of_rows = (given["a_address"], given["a_address"] + given["a_rows"] * given["a_row"])
        return [integers("index", count), of_rows, of_scales], written
    if given.get("index"):  # of x, which is nobody's workspace
        return [integers("index", count)], written
    if "scale_a_k" in given:
        of_rows = (given["scale_a"], given["scale_a"] + 4 * count * -(-given["depth"] // 128))
        return [rows(address(given["a"]), count, row_of("a"), given["depth"], 1), of_rows], written
    return [rows(address(given["a"]), count, row_of("a"), given["depth"])], written


LAYOUTS = [
    (QWEN, "swiglu", {}), (ODD, "swiglu", {}), (ODD, "relu2", {}), ((64, 8, 16, 64, 512), "swiglu", {}),
    ((64, 8, 16, 512, 64), "geglu", {}), ((64, 8, 16, 64, 512), "silu", {}), ((64, 8, 16, 512, 64), None, {}),
    ((3000, 8, 128, 256, 64), "swiglu", {}), ((300, 8, 16, 256, 128), "swiglu", {}),
    ((3000, 8, 128, 64, 256), "swiglu_oai", {"max_rows": 5000}),
    ((1, 1, 1, 8, 8), "swiglu", {}), ((700, 16, 1023, 8, 8), "gelu", {}), ((7, 3, 4, 1, 1), "swiglu", {}),
    ((9, 8, 8, 4096, 1536), "swiglu", {"max_rows": 8, "pad": 1}),  # one token a chunk: not all start on 16 bytes
    ((1024, 4, 4, 272, 128), "swiglu", {}),  # whose tokens are quantized beside their routing in fp8
]  # fmt: skip


def check_order(steps: list, workspace: tuple[int, int]) -> None:
    """That nothing is written where something is still read, and all within the workspace, (start, end)."""
    alive: dict[int, tuple[int, int]] = {}  # what was written, by its start, until it is written over
    ahead: list[tuple[int, int]] = []  # what the launch ahead reads and writes
    for symbol, given in steps:
        read, written = spans(symbol, given)
        for start, stop in [*read, *written]:
            within = workspace[0] <= start < stop <= workspace[1]
            assert within or symbol == "combine", (symbol, "outside of the workspace")
        in_place = symbol == "activate" and given["y"] == given["out"]
        for start, _ in read:
            assert start in alive, (symbol, "reads what nobody has written")
        for start, stop in written:
            for other, other_stop in read:
                assert in_place or stop <= other or other_stop <= start, (symbol, "writes what it reads")
            alive = {at: until for at, until in alive.items() if until <= start or stop <= at}
        alive |= dict(written)
        of_x = symbol == "quantize" and not workspace[0] <= given["y"] < workspace[1]
        of_tokens = of_x and not given["index"]  # as they lie, before they are routed
        routing = [given[name] for name in ("ends", "inverse") if name in given and symbol != "combine"]
        assert (given["ends"] == 0) if of_tokens else all(address in alive for address in routing)
        if of_tokens:  # which run beside the launch ahead
            assert all(stop <= other or until <= start for start, stop in written for other, until in ahead), symbol
        ahead = [*read, *written]


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(("sizes", "activation", "options"), LAYOUTS, ids=str)
def test_nothing_lies_where_something_is_still_read(fake_cuda, sizes, activation, options, settings):
    steps, arrays = launched(fake_cuda, *sizes, activation=activation, settings=settings, **options)
    workspace = arrays["workspace"]["address"]
    check_order(steps, (workspace, workspace + arrays["workspace"]["shape"][0]))


@pytest.mark.parametrize(("sizes", "activation", "options"), LAYOUTS, ids=str)
def test_nothing_lies_where_something_is_still_read_in_fp8(fake_cuda, sizes, activation, options):
    steps, arrays = launched(fake_cuda, *sizes, activation=activation, fp8=True, **options)
    workspace = arrays["workspace"]["address"]
    check_order(steps, (workspace, workspace + arrays["workspace"]["shape"][0]))


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


ON_GPU = (
    PRELUDE
    + """
    import cupy
    def on_gpu(arrays):
        return {name: cupy.ndarray(*one.shape, address=one.address, strides=one.strides, dtype=one.dtype,
                                   device=cupy.Device(0)) for name, one in arrays.items()}
    arrays, options = layer(*json.loads('SIZES'), **json.loads('OPTIONS'))
    needed, = arrays.pop("workspace").shape
    arrays = on_gpu(arrays)
"""
)


def on_gpu(sizes, **options) -> str:
    """A script that has the arrays of a layer, CuPy's, without a workspace."""
    return ON_GPU.replace("SIZES", json.dumps(sizes)).replace("OPTIONS", json.dumps(options))


def test_one_block_is_allocated_where_no_workspace_is_given(fake_cuda):
    ran = fake_cuda.run(on_gpu(QWEN) + """
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
    assert 0 < size <= needed + 127 and address <= place["ends"] < address + 128 and place["ends"] % 128 == 0
    assert (shape, dtype, len(allocated)) == ([64, 2048], "bfloat16", 2)
    assert given_to(ran.launches[-1])["out"] == made


def test_a_workspace_lies_on_128_bytes(fake_cuda):
    ran = fake_cuda.run(on_gpu(QWEN) + """
    memory = cupy.empty(needed + 256, "uint8")
    between = (memory.address + 127) // 128 * 128 + 64
    moved = cupy.ndarray(needed, address=between, strides=(1,), dtype="uint8", device=cupy.Device(0))
    report(failure(gg_runtime.fused_experts, **arrays, workspace=moved))
    """)  # fmt: skip
    (error,) = ran.reported
    assert_says(error, "ValueError", "workspace is at an address that is no multiple of 128 bytes", "new array")


ALLOCATED = """
    before = len(cupy.allocations)
    gg_runtime.fused_experts(**arrays, **options)
    report([needed, cupy.allocations[before:]])
"""


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(("sizes", "activation", "options"), LAYOUTS, ids=str)
def test_what_is_allocated_has_room_for_the_kernels_that_are_taken(fake_cuda, sizes, activation, options, settings):
    ran = fake_cuda.run(on_gpu(sizes, activation=activation, **options) + ALLOCATED, **settings)
    ((needed, ((start, size),)),) = ran.reported
    assert size <= needed + 127
    steps = [(launch["symbol"], given_to(launch)) for launch in ran.launches]
    check_order(steps, (start, start + size))


@pytest.mark.parametrize(("sizes", "activation", "options"), LAYOUTS, ids=str)
def test_what_is_allocated_has_room_for_the_kernels_that_are_taken_in_fp8(fake_cuda, sizes, activation, options):
    ran = fake_cuda.run(on_gpu(sizes, activation=activation, fp8=True, **options) + ALLOCATED)
    ((needed, ((start, size),)),) = ran.reported
    assert size <= needed + 127
    steps = [(launch["symbol"], given_to(launch)) for launch in ran.launches]
    check_order(steps, (start, start + size))


def test_sums_that_an_fp8_kernel_keeps_have_no_memory(fake_cuda):
    tokens, k, experts, hidden, inner = 1024, 4, 4, 272, 128
    ran = fake_cuda.run(on_gpu((tokens, k, experts, hidden, inner), fp8=True) + ALLOCATED)
    ((needed, ((_, size),)),) = ran.reported
    assert not [launch for launch in ran.launches if launch["symbol"] == "activate_quantize"]
    by_parts, fused = hidden + 4 * 3 + 4 * inner, 2 * hidden + inner + 4  # bytes of a row, with its scales
    assert size <= needed - tokens * k * (by_parts - fused) + 1024


def test_sums_that_no_kernel_writes_have_no_memory(fake_cuda):
    """The kernel of this layer activates by itself. Other GPUs may want the memory, and so the workspace has it."""
    ran = fake_cuda.run(on_gpu(QWEN) + ALLOCATED)
    ((needed, ((_, size),)),) = ran.reported
    tokens, k, _, _, inner = QWEN
    assert size <= needed - tokens * k * inner * 2 + 127


CAPTURED = """
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


FAILED = "driver.fake_fail_launch(7); failure({}, max_rows=256)"  # in the second chunk


@pytest.mark.parametrize(
    "call",
    [
        "gg_runtime.fused_experts(**arrays)",
        "gg_runtime.ExpertsPlan(**arrays).run()",
        FAILED.format("gg_runtime.fused_experts, **arrays"),
    ],
)
def test_a_graph_keeps_the_workspace_that_a_captured_call_allocated(fake_cuda, call):
    """CuPy has no pool for captures: what a call frees would be handed out again and written over by the replays. Also
    of a call that fails behind its first launches, which the graph has."""
    ran = fake_cuda.run(on_gpu(QWEN) + CAPTURED.replace("CALL", call))
    assert ran.reported == [[0, 1, 0], [2, 2]], "the captured call's goes with the graph, the next call's at once"
