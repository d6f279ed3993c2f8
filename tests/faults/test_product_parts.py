"""grouped_mm with an index or an activation, by parts, up to the driver: launches, arguments, memory in between.

A kernel is named for the product that neither gathers nor activates: the other parts are then launches of their own.
"""

import struct

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import by_value, limit_bits, ragged_arguments, read_ragged

GATHER = (
    "y", "y_row", "y_col", "index", "out", "out_row", "ends", "weights", "weight_index",
    "rows", "columns", "source_rows", "groups", "index_bytes", "weight_kind",
)  # fmt: skip
ACTIVATE = (
    "y", "y_row", "y_col", "out", "out_row", "out_col", "ends",
    "rows", "columns", "groups", "activation", "limit_bits", "gate_order",
)  # fmt: skip
FIELDS = {"gather": (GATHER, "QqqQQqQQQ6i"), "activate": (ACTIVATE, "QqqQqqQ6i")}
NAMES = ("none", "swiglu", "geglu", "geglu_tanh", "swiglu_oai", "silu", "gelu", "gelu_tanh", "relu", "relu2")
ORDERS = ("gate_first", "up_first", "interleaved")


def arguments(launch: dict) -> dict:
    names, layout = FIELDS[launch["symbol"]]
    return dict(zip(names, struct.unpack_from(f"@{layout}", bytes.fromhex(launch["parameters"]))))


def plain_kernel(sm=90, layout="nt", alignment=16) -> str:
    """A kernel of grouped products that does nothing else, the first that is embedded."""
    return next(
        name
        for name, k in KERNELS.items()
        if (k["extents"], k["sm"], k["dtype"], k["layout"], k["alignment"], k["epilogue"])
        == ("m_ends", sm, "bf16", layout, alignment, "linear")
        and k["kernel"] in ("basic_ragged", "hopper_ragged")
    )


CALL = """
    import cupy
    def array(rows, columns, order="n", dtype="bfloat16"):
        return cupy.empty((rows, columns), dtype, order)
    mat_a = array({source_rows}, {depth}, "{a_order}")
    mat_b = cupy.empty((3, {columns}, {depth}), "bfloat16")
    mat_b.shape, mat_b.strides = (3, {depth}, {columns}), ({depth} * {columns}, 1, {depth})
    offs, bias = cupy.empty(3, "int32"), array(3, {columns})
    given = dict(offs=offs, bias=bias, variant="{variant}", {arguments})
    if {indexed}:
        given["a_index"] = cupy.empty({rows}, "{index_dtype}")
    if {kept}:
        given["preactivation"] = array({rows}, {columns})
    before = len(cupy.allocations)
    out = gg_runtime._C.grouped_mm(mat_a, mat_b, **given)
    report({{name: array.facts() for name, array in [("a", mat_a), ("offs", offs), ("bias", bias), ("out", out),
             ("b", mat_b), ("index", given.get("a_index", offs)), ("kept", given.get("preactivation", offs))]}})
    report(cupy.allocations[before:])
"""


def call(fake_cuda, activation=None, order="gate_first", *, rows=40, source_rows=10, columns=48, depth=64, indexed=True,
         kept=False, index_dtype="int32", a_order="n", alignment=16, **settings):  # fmt: skip
    """Launches of one call, its arrays, and what it allocated: (address, bytes) of the output first."""
    variant = plain_kernel(80 if settings else 90, alignment=alignment)
    said = f"activation={activation!r}, gate_up={order!r}"
    ran = fake_cuda.run(
        CALL.format(arguments=said, **{k: v for k, v in locals().items() if k != "fake_cuda"}), **settings
    )
    arrays, allocated = ran.reported
    for launch in ran.launches:
        if launch["symbol"] in FIELDS:
            names = [name for name, k in KERNELS.items() if k["cubin_sha256"] == ran.hash_of(launch)]
            launch["kernel"] = KERNELS[names[0]]
    product = next(launch for launch in ran.launches if launch["symbol"] not in FIELDS)
    read = read_ragged(by_value(ragged_arguments(product), product["symbol"]), product["symbol"])
    return ran.launches, arrays, allocated, read, ragged_arguments(product)


def symbols(launches: list[dict]) -> list[str]:
    return [launch["symbol"] if launch["symbol"] in FIELDS else "product" for launch in launches]


def aligned(address: int, to: int) -> int:
    return -(-address // to) * to


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(("index_dtype", "index_bytes"), [("int32", 4), ("int64", 8)])
def test_rows_are_gathered_and_multiplied(fake_cuda, index_dtype, index_bytes, settings):
    launches, arrays, allocated, read, product = call(fake_cuda, index_dtype=index_dtype, **settings)
    assert symbols(launches) == ["gather", "product"]
    (out, scratch) = allocated
    gathered = aligned(scratch[0], 128)
    assert arguments(launches[0]) == {
        "y": arrays["a"]["address"], "y_row": 64, "y_col": 1, "index": arrays["index"]["address"], "out": gathered,
        "out_row": 64, "ends": 0, "weights": 0, "weight_index": 0, "rows": 40, "columns": 64, "source_rows": 10,
        "groups": 0, "index_bytes": index_bytes, "weight_kind": 0,
    }  # fmt: skip
    kernel = launches[0]["kernel"]
    assert kernel["name"] == f"gather_sm{80 if settings else 90}_bf16_a16"
    assert launches[0]["grid"] == [-(-40 // kernel["block_m"]) * -(-64 // kernel["block_n"]), 1, 1]
    assert gathered + 40 * 64 * 2 <= scratch[0] + scratch[1]
    assert (product.rows, product.columns, product.depth, product.groups) == (40, 48, 64, 3)
    assert address_of(read["a"]) == gathered and address_of(read["c"]) == out[0]
    assert (read["offs"], read["bias"]) == (arrays["offs"]["address"], arrays["bias"]["address"])


def address_of(matrix) -> int:
    return matrix["address"] if isinstance(matrix, dict) else matrix


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("activation", NAMES[1:5])
def test_a_gated_product_is_activated_out_of_memory_in_between(fake_cuda, activation, order):
    launches, arrays, allocated, read, product = call(fake_cuda, activation, order, indexed=False, source_rows=40)
    assert symbols(launches) == ["product", "activate"]
    (out, scratch) = allocated
    sums = aligned(scratch[0], 128)
    assert arrays["out"]["shape"] == [40, 24] and address_of(read["c"]) == sums
    assert address_of(read["a"]) == arrays["a"]["address"] and product.columns == 48
    assert sums + 40 * 48 * 2 <= scratch[0] + scratch[1]
    assert arguments(launches[1]) == {
        "y": sums, "y_row": 48, "y_col": 1, "out": out[0], "out_row": 24, "out_col": 1, "ends": 0, "rows": 40,
        "columns": 24, "groups": 0, "activation": NAMES.index(activation), "limit_bits": limit_bits(activation),
        "gate_order": ORDERS.index(order),
    }  # fmt: skip
    kernel = launches[1]["kernel"]
    assert kernel["name"] == "activate_sm90_bf16_a16"
    assert launches[1]["grid"] == [-(-40 // kernel["block_m"]) * -(-24 // kernel["block_n"]), 1, 1]


@pytest.mark.parametrize("activation", NAMES[5:])
def test_the_other_activations_need_no_memory(fake_cuda, activation):
    launches, arrays, allocated, read, _ = call(fake_cuda, activation, indexed=False, source_rows=40)
    assert symbols(launches) == ["product", "activate"] and len(allocated) == 1
    found = arguments(launches[1])
    assert address_of(read["c"]) == found["y"] == found["out"] == arrays["out"]["address"]
    assert (found["columns"], found["y_row"], found["activation"]) == (48, 48, NAMES.index(activation))


@pytest.mark.parametrize("activation", ["swiglu", "relu"])
def test_the_sums_go_straight_into_the_preactivation(fake_cuda, activation):
    launches, arrays, allocated, read, _ = call(fake_cuda, activation, kept=True)
    assert symbols(launches) == ["gather", "product", "activate"]
    assert len({launch["stream"] for launch in launches}) == 1
    assert len(allocated) == 2, "the output and the gathered rows"
    found = arguments(launches[2])
    assert address_of(read["c"]) == found["y"] == arrays["kept"]["address"]
    assert (found["y_row"], found["out"]) == (48, arrays["out"]["address"])


def test_rows_in_between_start_on_16_bytes_and_views_are_read_where_they_lie(fake_cuda):
    launches, _, allocated, read, _ = call(
        fake_cuda, "swiglu", "up_first", columns=50, depth=61, a_order="t", alignment=2, **SM_80
    )
    assert symbols(launches) == ["gather", "product", "activate"]
    gather, activate = arguments(launches[0]), arguments(launches[2])
    assert (gather["y_row"], gather["y_col"], gather["out_row"]) == (1, 10, 64)
    assert (read["a_row"], read["a_col"], read["c_row"], read["c_col"]) == (64, 1, 56, 1)
    assert (activate["y_row"], activate["out_row"], activate["columns"]) == (56, 25, 25)
    assert [launch["kernel"]["alignment"] for launch in launches[::2]] == [2, 2]
    assert [scratch[1] >= 40 * row * 2 for scratch, row in zip(allocated[1:], (64, 56))] == [True, True]


OUTPUT_OF_COLUMNS = """
    import cupy
    mat_a, mat_b = cupy.empty((40, 64), "bfloat16"), cupy.empty((3, 64, 48), "bfloat16")
    out = cupy.empty((40, {columns}), "bfloat16", "t")
    gg_runtime._C.grouped_mm(mat_a, mat_b, offs=cupy.empty(3, "int32"), out=out, activation="{activation}",
                             variant="{variant}")
    report(out.address)
"""


@pytest.mark.parametrize(("activation", "columns"), [("geglu", 24), ("silu", 48)])
def test_an_output_with_contiguous_columns_is_written_so(fake_cuda, activation, columns):
    variant = plain_kernel(80, "strided", 2)
    script = OUTPUT_OF_COLUMNS.format(activation=activation, columns=columns, variant=variant)
    ran = fake_cuda.run(script, **SM_80)
    found = arguments(ran.launches[-1])
    assert (found["out"], found["out_row"], found["out_col"]) == (ran.reported[0], 1, 40)
    if activation == "silu":
        assert (found["y"], found["y_row"], found["y_col"]) == (ran.reported[0], 1, 40)


def test_nothing_is_gathered_where_rows_have_no_columns(fake_cuda):
    launches, _, allocated, _, product = call(fake_cuda, "relu", depth=0, alignment=2, **SM_80)
    assert symbols(launches) == ["product", "activate"] and product.depth == 0 and len(allocated) == 1


def test_an_index_without_rows_launches_nothing(fake_cuda):
    ran = fake_cuda.run("""
        import cupy
        mat_a, mat_b = cupy.empty((40, 64), "bfloat16"), cupy.empty((3, 64, 48), "bfloat16")
        out = grouped_mm(mat_a, mat_b, offs=cupy.empty(3, "int32"), a_index=cupy.empty(0, "int64"), activation="swiglu")
        report(list(out.shape))
    """)
    assert ran.reported == [[0, 24]] and not ran.launches


def test_a_plain_call_is_one_launch_of_what_explain_names(fake_cuda):
    ran = fake_cuda.run("""
        mat_a, mat_b, offs = ragged(96, 64, 128, 3, layout="nt")
        grouped_mm(mat_a, mat_b, offs=offs, out=matrix(96, 64), gate_up="interleaved")
        told = explain(mat_a, mat_b, offs=offs)
        report([told.variant, told.launches, len(told.parts)])
    """)
    (launch,), ((variant, count, parts),) = ran.launches, ran.reported
    assert ran.hash_of(launch) == KERNELS[variant]["cubin_sha256"] and (count, parts) == (1, 1)


EXPLAINED = """
    import cupy
    mat_a, mat_b = cupy.empty((512, 64), "bfloat16"), cupy.empty((3, 64, 48), "bfloat16")
    given = dict(offs=cupy.empty(3, "int32"), a_index=cupy.empty(2048, "int32"), activation="swiglu_oai")
    told = explain(mat_a, mat_b, **given)
    report([told.launches, told.variant, told.reason, told.predicted_us, told.parts])
    report(len(cupy.allocations))
    grouped_mm(mat_a, mat_b, **given)
"""


def test_explain_tells_every_launch_in_order(fake_cuda):
    ran = fake_cuda.run(EXPLAINED)
    (count, variant, reason, predicted_us, parts), allocated = ran.reported
    assert count == len(ran.launches) == len(parts) and allocated == 4, "explain allocates nothing"
    hashes = [KERNELS[part["variant"]]["cubin_sha256"] for part in parts]
    assert hashes == [ran.hash_of(launch) for launch in ran.launches]
    assert variant in [part["variant"] for part in parts] and KERNELS[variant]["form"] == "grouped"
    assert all(part["launches"] == 1 and part["groups"] == 3 and part["predicted_us"] > 0 for part in parts)
    assert predicted_us == pytest.approx(sum(part["predicted_us"] for part in parts))
    if count == 3:
        assert reason.endswith("by parts: gather, product, activate")


PLANNED = """
    import cupy
    mat_a, mat_b = cupy.empty((10, 64), "bfloat16"), cupy.empty((3, 64, 48), "bfloat16")
    given = dict(offs=cupy.empty(3, "int32"), a_index=cupy.empty(40, "int32"), activation="swiglu")
    given["preactivation"] = cupy.empty((40, 48), "bfloat16")
    plan = Plan(mat_a, mat_b, variant="{variant}", checked=True, **given)
    before = len(cupy.allocations)
    assert plan.run() is plan.out and plan.run() is plan.out
    report([plan.launches, plan.variant, plan.by_value, plan.grid, list(plan.out.shape)])
    report(len(cupy.allocations) - before)
    for name in ("a_index", "preactivation"):
        array = given[name]
        array.address += 256
        report(failure(plan.run)["text"])
        array.address -= 256
    plan.run()
"""


def test_a_plan_holds_all_parts_and_their_memory(fake_cuda):
    variant = plain_kernel(90, "nn")
    ran = fake_cuda.run(PLANNED.format(variant=variant))
    (count, named, by_value_, grid, shape), allocated, index, kept = ran.reported
    assert (count, named, by_value_, shape, allocated) == (3, variant, True, [40, 24], 0)
    assert symbols(ran.launches) == ["gather", "product", "activate"] * 3
    assert ran.launches[1]["grid"][0] == grid
    first, second, third = (ran.launches[i : i + 3] for i in (0, 3, 6))
    for one, again, last in zip(first, second, third):
        if one["symbol"] in FIELDS:
            assert one["parameters"] == again["parameters"] == last["parameters"]
    assert "a_index has other memory" in index and "preactivation has other memory" in kept


CAPTURED = """
    import ctypes
    import {framework} as framework
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_begin_capture.argtypes = [ctypes.c_size_t, ctypes.c_int]
    driver.fake_end_capture.argtypes = [ctypes.c_size_t]
    if "{framework}" == "torch":
        mat_a, mat_b, offs = ragged(10, 48, 64, 3, kind=framework.Tensor)
        index = framework.Tensor(40, address=1 << 40, dtype=framework.int32)
        offs.dtype = framework.int32
    else:
        mat_a, mat_b = cupy_array((10, 64)), cupy_array((3, 64, 48))
        offs, index = cupy_array(3, "int32"), cupy_array(40, "int32")
    call = lambda: gg_runtime._C.grouped_mm(mat_a, mat_b, offs=offs, a_index=index, activation="swiglu",
                                            variant="{variant}")
    call()
    driver.fake_begin_capture({stream}, 7)
    call()
    report(driver.fake_end_capture({stream}))
"""


@pytest.mark.parametrize(("framework", "stream", "kept"), [("cupy", 0x100, 1), ("torch", 0x200, 0)])
def test_a_graph_keeps_the_memory_in_between_unless_the_framework_pools_it(fake_cuda, framework, stream, kept):
    script = CAPTURED.format(framework=framework, stream=stream, variant=plain_kernel(90, "nn").replace("bf16", "fp16"))
    if framework == "cupy":
        script = script.replace("cupy_array(", "(lambda shape, dtype='float16': framework.empty(shape, dtype))(")
    ran = fake_cuda.run(script)
    assert ran.reported == [0] and symbols(ran.launches) == ["gather", "product", "activate"] * 2
    assert len(ran.of("cuGraphRetainUserObject")) == kept


@pytest.mark.parametrize("call", ["grouped_mm", "Plan"])
def test_threads_give_a_stream_one_activated_product_behind_the_other(fake_cuda, call):
    """The output is activated where it lies: a second product between the two would be activated twice."""
    script = """
    import cupy
    from threads import in_threads
    mat_a, mat_b, offs = cupy.empty((256, 64), "bfloat16"), cupy.empty((4, 64, 128), "bfloat16"), cupy.empty(4, "int32")
    given = dict(offs=offs, activation="silu", out=cupy.empty((256, 128), "bfloat16"))
    plan = Plan(mat_a, mat_b, **given)
    work = {"grouped_mm": lambda i: grouped_mm(mat_a, mat_b, **given), "Plan": lambda i: plan.run()}["CALL"]
    work(0)
    in_threads(work, 2)
    """
    ran = fake_cuda.run(script.replace("CALL", call), FAKE_CUDA_SLOW="cuLaunchKernelEx:5")
    assert symbols(ran.launches) == ["product", "activate"] * 3
