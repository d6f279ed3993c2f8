"""grouped_mm with ragged K by parts, up to the driver: gathers, float32 sums of parts of K, and what adds them up."""

import struct

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80, assert_says
from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_product_parts import FIELDS, address_of, aligned

ADD = (
    "y", "y_row", "out", "out_group", "out_row", "out_col", "alpha_at", "beta_at", "groups", "parts", "rows", "columns",
    "alpha", "beta",
)  # fmt: skip
LAYOUTS = FIELDS | {"add_parts": (ADD, "QqQqqqQQiiiiff")}
GATHERED = 128  # what scratch memory is aligned to

CALL = """
    import cupy
    def array(*shape, order="n", dtype="float16"):
        return cupy.empty(shape, dtype, order)
    mat_a = array({m}, {source_a}, order="{layout}"[0])
    mat_b = array({source_b}, {n}, order="nt"["{layout}"[1] == "t"])
    offs, index = array({groups}, dtype="int32"), array({total}, dtype="{index_dtype}")
    factor = array(1, dtype="float32")
    out = array({groups}, {m}, {n}, dtype="{out_dtype}") if {with_out} else None
    before = len(cupy.allocations)
    given = dict(offs=offs, out_dtype="{out_dtype}", {arguments})
    made = gg_runtime.grouped_mm(mat_a, mat_b, out=out, **given)
    report({{name: x.facts() for name, x in [("a", mat_a), ("b", mat_b), ("offs", offs), ("index", index),
             ("factor", factor), ("out", made)]}})
    report(cupy.allocations[before:])
"""


class Call:
    """The launches of one call, in order, as `launches`, by symbol; and its arrays."""

    def __init__(self, fake_cuda, arguments="", m=256, n=256, total=4096, groups=64, out_dtype="float16",
                 with_out=False, layout="tn", index_dtype="int32", source_a=None, source_b=None,
                 **settings):  # fmt: skip
        named = {k: v for k, v in locals().items() if k not in ("self", "fake_cuda", "settings")}
        named |= {"source_a": source_a or total, "source_b": source_b or total}
        ran = fake_cuda.run(CALL.format(**named), **settings)
        self.arrays, self.allocated = ran.reported
        self.launches = ran.launches
        self.symbols = [launch["symbol"] for launch in ran.launches]
        names = {kernel["cubin_sha256"]: name for name, kernel in KERNELS.items()}
        self.kernels = [KERNELS[names[ran.hash_of(launch)]] for launch in ran.launches]
        self.parts = {
            launch["symbol"]: dict(zip(LAYOUTS[launch["symbol"]][0], unpacked(launch)))
            for launch in ran.launches
            if launch["symbol"] in LAYOUTS
        }
        self.gathers = [dict(zip(LAYOUTS["gather"][0], unpacked(x))) for x in ran.launches if x["symbol"] == "gather"]
        (product,) = (launch for launch in ran.launches if launch["symbol"] not in LAYOUTS)
        self.sizes = ragged_arguments(product)
        self.product = read_ragged(by_value(self.sizes, product["symbol"]), product["symbol"])


def unpacked(launch: dict) -> tuple:
    return struct.unpack_from(f"@{LAYOUTS[launch['symbol']][1]}", bytes.fromhex(launch["parameters"]))


def facts_of(launch: dict) -> tuple:
    """What a launch is told, without the words that only fill its parameters up."""
    if launch["symbol"] in LAYOUTS:
        return launch["grid"], unpacked(launch)
    sizes = ragged_arguments(launch)
    return launch["grid"], read_ragged(by_value(sizes, launch["symbol"]), launch["symbol"]), sizes.depth


def factor_of(words: dict) -> float:
    return struct.unpack("<f", struct.pack("<I", words["alpha_bits"]))[0]


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
def test_many_groups_are_one_launch_without_memory(fake_cuda, out_dtype, settings):
    call = Call(fake_cuda, "alpha=0.25", out_dtype=out_dtype, **settings)
    assert call.symbols == ["basic_ragged_k" if settings else "hopper_ragged_k"] and len(call.allocated) == 1
    assert call.arrays["out"]["shape"] == [64, 256, 256] and address_of(call.product["c"]) == call.allocated[0][0]
    assert (factor_of(call.product), call.product["splits"], call.product.get("accumulates", 0)) == (0.25, 1, 0)
    (kernel,) = call.kernels
    assert kernel["out_dtype"] == {"float16": "fp16", "float32": "fp32"}[out_dtype]


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
def test_few_outputs_of_a_long_k_are_split(fake_cuda, out_dtype, settings):
    """Two groups of four tiles leave most multiprocessors idle: parts of each group's K, then their sum in order."""
    call = Call(fake_cuda, groups=2, total=65536, out_dtype=out_dtype, **settings)
    assert call.symbols == ["basic_ragged_k" if settings else "hopper_ragged_k", "add_parts"]
    out, scratch = call.allocated
    sums, splits = aligned(scratch[0], GATHERED), call.product["splits"]
    assert splits > 1 and splits & (splits - 1) == 0
    assert address_of(call.product["c"]) == sums and sums + 2 * splits * 256 * 256 * 4 <= sum(scratch)
    assert [kernel["out_dtype"] for kernel in call.kernels] == [
        "fp32",
        {"float16": "fp16", "float32": "fp32"}[out_dtype],
    ]
    assert call.parts["add_parts"] == {
        "y": sums, "y_row": 256, "out": out[0], "out_group": 256 * 256, "out_row": 256, "out_col": 1, "alpha_at": 0,
        "beta_at": 0, "groups": 2, "parts": splits, "rows": 256, "columns": 256, "alpha": 1.0, "beta": 0.0,
    }  # fmt: skip
    kernel = call.kernels[1]
    assert kernel["alignment"] == 16
    assert call.launches[1]["grid"] == [-(-2 * 256 // kernel["block_m"]) * -(-256 // kernel["block_n"]), 1, 1]


def test_the_parts_of_k_depend_on_sizes_alone(fake_cuda):
    """The host never waits for the device, and a product has the same parts whatever its groups hold."""
    calls = [Call(fake_cuda, groups=2, total=65536) for _ in range(2)]
    assert calls[0].product["splits"] == calls[1].product["splits"]
    assert Call(fake_cuda, groups=2, total=512).product["splits"] == 1, "a short K"
    assert Call(fake_cuda, groups=2, total=65536, m=4096, n=4096).product["splits"] == 1, "many outputs"


@pytest.mark.parametrize("arguments", ["beta=1", "beta=1.0, alpha=-0.5"])
def test_float32_gradients_are_added_to_by_the_kernel_itself(fake_cuda, arguments):
    call = Call(fake_cuda, arguments, out_dtype="float32", with_out=True)
    assert call.symbols == ["hopper_ragged_k"] and call.allocated == []
    assert (call.product["accumulates"], call.product["splits"]) == (1, 1)
    assert address_of(call.product["c"]) == call.arrays["out"]["address"]
    assert factor_of(call.product) == (-0.5 if "alpha" in arguments else 1)


@pytest.mark.parametrize(
    ("case", "arguments", "facts", "factors"),
    [
        ("16 bits", "beta=1", {}, (1, 1)),
        ("another factor", "beta=2, alpha=3", {"out_dtype": "float32"}, (3, 2)),
        ("no TMA", "beta=1", {"out_dtype": "float32", "layout": "nn"}, (1, 1)),
        ("sm_80", "beta=1, alpha=0.5", {"out_dtype": "float32"} | SM_80, (0.5, 1)),
    ],
    ids=lambda x: x if isinstance(x, str) and "=" not in x else "",
)
def test_everything_else_is_added_by_a_launch_of_its_own(fake_cuda, case, arguments, facts, factors):
    call = Call(fake_cuda, arguments, with_out=True, **facts)
    assert call.symbols[1:] == ["add_parts"]
    (scratch,) = call.allocated
    sums, out = aligned(scratch[0], GATHERED), call.arrays["out"]
    found = call.parts["add_parts"]
    assert (found["y"], found["out"], found["parts"]) == (sums, out["address"], call.product["splits"])
    assert (found["alpha"], found["beta"]) == factors and factor_of(call.product) == 1
    assert call.product.get("accumulates", 0) == 0 and address_of(call.product["c"]) == sums


def test_factors_on_the_device_are_read_by_whom_they_are_for(fake_cuda):
    call = Call(fake_cuda, "alpha=factor", out_dtype="float32")
    assert call.symbols == ["hopper_ragged_k"] and call.product["alpha_at"] == call.arrays["factor"]["address"]
    call = Call(fake_cuda, "alpha=0.5, beta=factor", out_dtype="float32", with_out=True)
    found = call.parts["add_parts"]
    assert (found["alpha_at"], found["beta_at"]) == (0, call.arrays["factor"]["address"])
    assert found["alpha"] == 0.5 and factor_of(call.product) == 1 and call.product["alpha_at"] == 0


GATHERING_KERNEL = {"a": "hopper_gather_k", "b": "hopper_gather_k_b"}


@pytest.mark.parametrize(("index_dtype", "index_bytes"), [("int32", 4), ("int64", 8)])
def test_columns_of_a_and_rows_of_b_are_gathered_as_rows(fake_cuda, index_dtype, index_bytes):
    call = Call(fake_cuda, "a_index=index, b_index=index", m=72, n=144, total=1000, source_a=50, source_b=60,
                index_dtype=index_dtype, **SM_80)  # fmt: skip
    assert call.symbols == ["gather", "gather", "basic_ragged_k"]
    of_a, of_b = call.gathers
    _, first, second = call.allocated
    for found, name, source, columns, scratch in ((of_a, "a", 50, 72, first), (of_b, "b", 60, 144, second)):
        assert (found["y"], found["index"]) == (call.arrays[name]["address"], call.arrays["index"]["address"])
        assert (found["y_row"], found["y_col"], found["source_rows"]) == (columns, 1, source)
        assert (found["rows"], found["columns"], found["index_bytes"]) == (1000, columns, index_bytes)
        assert (found["out"], found["out_row"]) == (aligned(scratch[0], GATHERED), columns)
        assert found["out"] + 1000 * columns * 2 <= sum(scratch)
    assert call.sizes.depth == 1000
    assert (address_of(call.product["a"]), address_of(call.product["b"])) == (of_a["out"], of_b["out"])


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize(("index_dtype", "index_bytes"), [("int32", 4), ("int64", 8)])
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_the_product_gathers_the_rows_of_one_operand_itself(fake_cuda, which, index_dtype, index_bytes, out_dtype):
    call = Call(fake_cuda, f"{which}_index=index", m=264, n=512, total=9000, index_dtype=index_dtype,
                out_dtype=out_dtype, **{f"source_{which}": 5000})  # fmt: skip
    assert [kernel["kernel"] for kernel in call.kernels] == [GATHERING_KERNEL[which]] and len(call.allocated) == 1
    found, other = call.product, {"a": "b", "b": "a"}[which]
    assert (found["gathered"], found["gathered_rows"]) == (call.arrays[which]["address"], 5000)
    assert found["gathered_row"] == {"a": 264, "b": 512}[which]
    assert (found["index"], found["index_bytes"]) == (call.arrays["index"]["address"], index_bytes)
    assert address_of(found[other]) == call.arrays[other]["address"] and address_of(found[which]) == 0
    assert call.sizes.depth == 9000


def test_the_product_gathers_and_adds_to_float32_gradients(fake_cuda):
    call = Call(fake_cuda, "a_index=index, beta=1, alpha=0.5", out_dtype="float32", with_out=True)
    assert [kernel["kernel"] for kernel in call.kernels] == ["hopper_gather_k"] and call.allocated == []
    assert (call.product["accumulates"], call.product["splits"], factor_of(call.product)) == (1, 1, 0.5)


def test_the_product_gathers_for_each_part_of_a_long_k(fake_cuda):
    call = Call(fake_cuda, "b_index=index", groups=2, total=65536)
    assert [kernel["kernel"] for kernel in call.kernels] == ["hopper_gather_k_b", "add_parts"]
    assert call.product["splits"] > 1 and call.kernels[0]["out_dtype"] == "fp32"


@pytest.mark.parametrize(("m", "n", "which"), [(4096, 1024, "a"), (1024, 4096, "b")])
def test_of_two_operands_with_an_index_the_wider_one_is_gathered_by_the_product(fake_cuda, m, n, which):
    """A launch gathers the other one: the less there is to copy, the less it takes."""
    call = Call(fake_cuda, "a_index=index, b_index=index", m=m, n=n, total=20000, source_a=900, source_b=800)
    assert [kernel["kernel"] for kernel in call.kernels] == ["gather", GATHERING_KERNEL[which]]
    other = {"a": "b", "b": "a"}[which]
    assert call.product["gathered"] == call.arrays[which]["address"]
    assert address_of(call.product[other]) == call.gathers[0]["out"] and call.gathers[0]["columns"] == min(m, n)


# What the kernels that gather along K cannot take -> the call.
NOT_GATHERED = {
    "an M that is no whole 16 bytes": {"arguments": "a_index=index", "m": 260},
    "an N that is no whole 16 bytes": {"arguments": "b_index=index", "n": 260},
    "rows that are not contiguous": {"arguments": "a_index=index", "layout": "nn"},
    "another operand that is not contiguous": {"arguments": "a_index=index", "layout": "tt"},
}


@pytest.mark.parametrize("facts", NOT_GATHERED.values(), ids=NOT_GATHERED)
def test_what_the_product_cannot_gather_a_launch_does(fake_cuda, facts):
    call = Call(fake_cuda, **facts)
    assert call.symbols[0] == "gather" and {kernel["source"] for kernel in call.kernels} == {"rows"}


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize(("rows", "gathers"), [((1 << 36) // 512 - 1, False), ((1 << 36) // 512, True)])
def test_offsets_of_the_source_are_counted_in_32_bits(fake_cuda, which, rows, gathers):
    call = Call(fake_cuda, f"{which}_index=index", **{f"source_{which}": rows})
    assert ("gather" in call.symbols) == gathers


@pytest.mark.parametrize(("stride", "kernel"), [(2**32 - 8, "hopper_gather_k"), (2**32, "gather")])
def test_the_stride_of_the_source_is_read_in_32_bits(fake_cuda, stride, kernel):
    """Of two rows, so that offsets fit: only the stride itself may not."""
    ran = fake_cuda.run(
        f"""
    from arrays import ExchangeArray
    mat_a = ExchangeArray(512, 2, strides=(1, {stride}), address=1 << 40)
    mat_b, out = ExchangeArray(4096, 512, address=1 << 43), ExchangeArray(8, 512, 512, address=1 << 45)
    index, offs = (ExchangeArray(count, address=1 << place, dtype="int32") for count, place in ((4096, 46), (8, 47)))
    report(gg_runtime.explain(mat_a, mat_b, offs=offs, a_index=index, out=out).variant)
    """
    )
    assert ran.reported[0].startswith("hopper_gather_k_sm90") == (kernel == "hopper_gather_k")


def test_a_kernel_that_is_named_leaves_to_launches_what_it_does_not_gather(fake_cuda):
    names = {}
    for name, kernel in sorted(KERNELS.items()):
        facts = tuple(kernel[fact] for fact in ("extents", "sm", "dtype", "out_dtype"))
        if facts == ("k_ends", 90, "fp16", "fp16"):
            names.setdefault(kernel["kernel"], name)
    product, of_a, of_b = (names[name] for name in ("hopper_ragged_k", "hopper_gather_k", "hopper_gather_k_b"))
    ran = fake_cuda.run(
        f"""
    import cupy
    mat_a, mat_b = cupy.empty((256, 50), "float16", "t"), cupy.empty((60, 256), "float16")
    index, offs = cupy.empty(512, "int32"), cupy.empty(8, "int32")
    both = dict(a_index=index, b_index=index)
    for name in {[product, of_a, of_b]}:
        gg_runtime._C.grouped_mm(mat_a, mat_b, offs=offs, variant=name, **both)
    wide = cupy.empty((256, 512), "float16", "t")
    report(failure(gg_runtime._C.grouped_mm, wide, mat_b, offs=offs, b_index=index, variant="{of_a}"))
    report(failure(gg_runtime._C.grouped_mm, mat_a, cupy.empty((512, 256), "float16"), offs=offs, a_index=index,
                   variant="{of_b}"))
    """
    )
    symbols = [launch["symbol"] for launch in ran.launches]
    assert symbols == ["gather", "gather", *["hopper_ragged_k", "gather"] * 2, "hopper_ragged_k"]
    assert_says(ran.reported[0], "ValueError", "it takes rows of A by an index")
    assert_says(ran.reported[1], "ValueError", "it takes rows of B by an index")


@pytest.mark.parametrize("which", ["a", "b"])
def test_one_operand_may_be_gathered_alone_and_from_any_strides(fake_cuda, which):
    """A row-major mat_a has columns that are far apart: gathered one by one, they are then fit for TMA."""
    layout = {"a": "nn", "b": "tt"}[which]
    call = Call(fake_cuda, f"{which}_index=index", layout=layout, total=512, groups=8, **{f"source_{which}": 50})
    assert call.symbols[:2] == ["gather", "hopper_ragged_k"]
    (found,) = call.gathers
    assert (found["y_row"], found["y_col"]) == (1, 50) and call.kernels[0]["alignment"] == 2
    other = "b" if which == "a" else "a"
    assert address_of(call.product[which]) == found["out"]
    assert address_of(call.product[other]) == call.arrays[other]["address"]


def test_an_index_into_one_column_keeps_its_stride(fake_cuda):
    """K is 1, but the index may name any of the columns: their stride is not free to be another."""
    call = Call(fake_cuda, "a_index=index, b_index=index", total=1, source_a=9, source_b=9, groups=1, layout="nt")
    assert [(found["y_row"], found["y_col"]) for found in call.gathers] == [(1, 9), (1, 9)]


def test_k_of_0_is_zeros_or_what_beta_leaves(fake_cuda):
    call = Call(fake_cuda, "a_index=index, b_index=index", total=0, source_a=9, source_b=9)
    assert call.symbols == ["basic_ragged_k"] and call.sizes.depth == 0
    call = Call(fake_cuda, "beta=0.5", total=0, with_out=True)
    assert call.symbols == ["basic_ragged_k", "add_parts"]


def test_outputs_without_elements_launch_nothing(fake_cuda):
    ran = fake_cuda.run(
        """
    import cupy
    for m, n, groups in ((0, 8, 2), (8, 0, 2), (8, 8, 0)):
        mat_a, mat_b = cupy.empty((m, 16), "float16", "t"), cupy.empty((16, n), "float16")
        out = gg_runtime.grouped_mm(mat_a, mat_b, offs=cupy.empty(groups, "int32"))
        report(out.shape)
    """
    )
    assert ran.reported == [[2, 0, 8], [2, 8, 0], [0, 8, 8]] and ran.launches == []


def test_a_plan_keeps_the_memory_and_repeats_the_launches(fake_cuda):
    ran = fake_cuda.run(
        """
    import cupy
    mat_a, mat_b = cupy.empty((256, 50), "float16", "t"), cupy.empty((100, 256), "float16")
    given = dict(offs=cupy.empty(2, "int32"), a_index=cupy.empty(65536, "int32"), b_index=cupy.empty(65536, "int32"))
    plan = gg_runtime.Plan(mat_a, mat_b, **given)
    report([plan.launches, plan.variant, plan.out.shape])
    before = len(cupy.allocations)
    for _ in range(2):
        plan.run()
    report(len(cupy.allocations) - before)
    """
    )
    (launches, variant, shape), allocations = ran.reported
    assert (launches, shape, allocations) == (3, [2, 256, 256], 0) and variant.startswith("hopper_gather_k")
    assert [launch["symbol"] for launch in ran.launches] == ["gather", "hopper_ragged_k", "add_parts"] * 2
    first, second = ([facts_of(launch) for launch in ran.launches[i : i + 3]] for i in (0, 3))
    assert first == second


def test_parts_that_are_too_large_are_told(fake_cuda):
    ran = fake_cuda.run(
        """
    import cupy
    mat_a, mat_b = cupy.empty((1 << 20, 64), "float16", "t"), cupy.empty((64, 64), "float16")
    offs = cupy.empty(1 << 16, "int32")
    out = cupy.empty((1 << 16, 1 << 20, 64), "float16")  # the last: it reaches over the addresses behind it
    report(failure(gg_runtime.grouped_mm, mat_a, mat_b, offs=offs, out=out, beta=1.0))
    """
    )
    assert_says(ran.reported[0], "ValueError", "split")
    assert ran.launches == []
