"""grouped_mm with scales by row and column, and by block, up to the driver: its kernel and the words that it reads."""

from textwrap import dedent

import pytest

import gg_runtime
from embedded import KERNELS
from faults.fake_driver import assert_says
from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_ragged_launch import MIXED_KERNELS, SCALED_KERNELS, assert_descriptors

# 160 rows in 5 groups, N = 192, K = 320: 2 blocks of N and 3 of K. Scales with the strides of no packed array.
OPERANDS = """
    def operands(mode, *, layout="nt", pad=16, out_dtype="bfloat16", rows=160, n=192, k=320):
        mat_a, mat_b, offs = ragged(rows, n, k, 5, layout=layout, pad=pad, dtype="float8_e4m3fn")
        out = matrix(rows, n, pad=pad, dtype=out_dtype)
        shapes = ((rows,), (5, n)) if mode == "row" else ((rows, -(-k // 128)), (5, -(-n // 128), -(-k // 128)))
        scales = [ExchangeArray(*shape, address=fresh_address(), dtype="float32") for shape in shapes]
        scales[0].strides = (7,) if mode == "row" else (1, 170)
        scales[1].strides = (1000, 3) if mode == "row" else (1000, 11, 5)
        return mat_a, mat_b, dict(offs=offs, out=out, scale_a=scales[0], scale_b=scales[1])
"""


def with_operands(script: str) -> str:
    return dedent(OPERANDS) + dedent(script)


STRIDES = {
    "row": {"scale_a_row": 7, "scale_a_k": 0, "scale_b_step": 1000, "scale_b_n": 3, "scale_b_k": 0},
    "block": {"scale_a_row": 1, "scale_a_k": 170, "scale_b_step": 1000, "scale_b_n": 11, "scale_b_k": 5},
}
ALL_VARIANTS = (
    OPERANDS
    + """
    for kernel in gg_runtime.kernels():
        facts = (kernel["extents"], kernel["epilogue"], kernel["source"], kernel["dtype"])
        if kernel["scaling"] not in ("row", "block") or facts != ("m_ends", "linear", "rows", "e4m3"):
            continue
        mat_a, mat_b, others = operands(kernel["scaling"], out_dtype=FULL_NAMES[kernel["out_dtype"]])
        gg_runtime._C.grouped_mm(mat_a, mat_b, variant=kernel["name"], **others)
        report([kernel["name"], *(x.facts() for x in (mat_a, mat_b, *others.values()))])
"""
)


def test_every_embedded_variant_reads_each_address_and_stride(fake_cuda):
    ran = fake_cuda.run(ALL_VARIANTS)
    assert len(ran.launches) == len(ran.reported) == len(SCALED_KERNELS) > 0
    manifest = gg_runtime.manifest()["artifacts"]
    for (name, a, b, offs, c, scale_a, scale_b), launch in zip(ran.reported, ran.launches):
        kernel, symbol = KERNELS[name], launch["symbol"]
        assert symbol == manifest[name]["symbol"] and ran.hash_of(launch) == kernel["cubin_sha256"]
        arguments = ragged_arguments(launch)
        assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (5, 160, 192, 320), name
        words = read_ragged(by_value(arguments, symbol), symbol)
        expected = STRIDES[kernel["scaling"]] | {"scale_a": scale_a["address"], "scale_b": scale_b["address"]}
        assert {field: words[field] for field in expected} == expected, name
        assert (words["offs"], words["bias"], words["skips_rest"]) == (offs["address"], 0, 0), name
        if symbol == "hopper_scaled":
            assert_descriptors(words, kernel, a, b, c)
        else:
            assert (words["a"], words["b"], words["c"]) == (a["address"], b["address"], c["address"]), name


@pytest.mark.parametrize("mode", ["row", "block"])
@pytest.mark.parametrize(
    ("options", "addressing"),
    [("", "host_descriptors"), (", pad=3", "pointers"), (', layout="nn"', "pointers"), (", k=321, pad=0", "pointers")],
)
def test_the_rank_of_scale_b_chooses_among_kernels_of_its_own(fake_cuda, mode, options, addressing):
    ran = fake_cuda.run(with_operands(f"""
        mat_a, mat_b, others = operands("{mode}"{options})
        grouped_mm(mat_a, mat_b, **others)
        told = explain(mat_a, mat_b, **others)
        report([told.variant, [one["variant"] for one in told.candidates]])
        plan = Plan(mat_a, mat_b, **others)
        plan.run()
        report(plan.variant)
    """))  # fmt: skip
    (variant, candidates), planned = ran.reported
    assert planned == variant and KERNELS[variant]["addressing"] == addressing
    assert {KERNELS[name]["scaling"] for name in candidates} == {mode}
    assert [ran.hash_of(launch) for launch in ran.launches] == 2 * [KERNELS[variant]["cubin_sha256"]]


def test_one_thread_remembers_choices_of_each_scale_mode_apart(fake_cuda):
    ran = fake_cuda.run(with_operands("""
        for turn in range(2):
            for mode in ("row", "block"):
                mat_a, mat_b, others = operands(mode)
                grouped_mm(mat_a, mat_b, **others)
                others["scale_a"] = others["scale_b"] = None
                grouped_mm(mat_a, mat_b, **others)
    """))  # fmt: skip
    by_hash = {kernel["cubin_sha256"]: kernel["scaling"] for kernel in KERNELS.values()}
    assert [by_hash[ran.hash_of(launch)] for launch in ran.launches] == 2 * ["row", "tensor", "block", "tensor"]


def test_a_small_m_takes_tiles_of_16_rows(fake_cuda):
    ran = fake_cuda.run(with_operands("""
        for mode in ("row", "block"):
            mat_a, mat_b, others = operands(mode, rows=8, n=1024, k=7168)
            report(explain(mat_a, mat_b, **others).variant)
    """))  # fmt: skip
    assert [KERNELS[variant]["block_m"] for variant in ran.reported] == [16, 16]


def test_a_variant_of_another_scale_mode_cannot_be_forced(fake_cuda):
    wanted = {kernel["scaling"]: kernel["name"] for kernel in SCALED_KERNELS if kernel["out_dtype"] == "bf16"}
    plain = next(k["name"] for k in KERNELS.values() if k["kernel"] == "hopper_ragged" and k["dtype"] == "e4m3")
    ran = fake_cuda.run(with_operands(f"""
        mat_a, mat_b, others = operands("row")
        for variant in ("{wanted["block"]}", "{plain}"):
            report(failure(gg_runtime._C.grouped_mm, mat_a, mat_b, variant=variant, **others))
    """))  # fmt: skip
    assert ran.launches == []
    for error, scaling in zip(ran.reported, ("block", "tensor")):
        assert_says(error, "ValueError", f"its scales are by {scaling}, by row is needed")


# 5 stacks of 160 rows. Scales with the strides of no packed array.
STACKS = """
    def operands_of_stacks(mode, *, layout="nt", pad=16, out_dtype="bfloat16", rows=160, n=192, k=320, masked=True):
        mat_a, mat_b = stacks(5, rows, n, k, layout=layout, pad=pad, gap=16, dtype="float8_e4m3fn")
        out, _ = stacks(5, rows, 8, n, pad=pad, gap=16, dtype=out_dtype)
        k_blocks, n_blocks = -(-k // 128), -(-n // 128)
        shapes = {
            "tensor": ((1,), (5,)), "row": ((5, rows), (5, n)), "block": ((5, rows, k_blocks), (5, n_blocks, k_blocks)),
        }[mode]
        scales = [ExchangeArray(*shape, address=fresh_address(), dtype="float32") for shape in shapes]
        scales[0].strides = {"tensor": (3,), "row": (2000, 7), "block": (2000, 1, 170)}[mode]
        scales[1].strides = {"tensor": (3,), "row": (1000, 3), "block": (1000, 11, 5)}[mode]
        counts = ExchangeArray(5, address=fresh_address(), dtype="int32") if masked else None
        return mat_a, mat_b, dict(counts=counts, out=out, scale_a=scales[0], scale_b=scales[1])
"""
STACK_STRIDES = {
    "tensor": {"scale_b_step": 3},
    "row": STRIDES["row"] | {"scale_a_group": 2000},
    "block": STRIDES["block"] | {"scale_a_group": 2000},
}
ALL_OF_STACKS = (
    STACKS
    + """
    for kernel in gg_runtime.kernels():
        if kernel["extents"] != "m_counts" or kernel["dtype"] != "e4m3":
            continue
        mat_a, mat_b, others = operands_of_stacks(kernel["scaling"], out_dtype=FULL_NAMES[kernel["out_dtype"]])
        gg_runtime._C.grouped_mm(mat_a, mat_b, variant=kernel["name"], **others)
        report([kernel["name"], *(x.facts() for x in (mat_a, mat_b, *others.values()))])
"""
)
SCALED_STACKS = [k for k in KERNELS.values() if k["extents"] == "m_counts" and k["dtype"] == "e4m3"]


def test_every_variant_for_stacks_reads_each_address_and_stride(fake_cuda):
    ran = fake_cuda.run(ALL_OF_STACKS)
    assert len(ran.launches) == len(ran.reported) == len(SCALED_STACKS) > 0
    manifest = gg_runtime.manifest()["artifacts"]
    for (name, a, b, counts, c, scale_a, scale_b), launch in zip(ran.reported, ran.launches):
        kernel, symbol = KERNELS[name], launch["symbol"]
        assert symbol == manifest[name]["symbol"] and ran.hash_of(launch) == kernel["cubin_sha256"]
        arguments = ragged_arguments(launch)
        assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (5, 160, 192, 320), name
        words = read_ragged(by_value(arguments, symbol), symbol)
        expected = STACK_STRIDES[kernel["scaling"]] | {"scale_a": scale_a["address"], "scale_b": scale_b["address"]}
        assert {field: words[field] for field in expected} == expected, name
        assert words["counts" if symbol == "basic_stack" else "offs"] == counts["address"], name
        if symbol.startswith("hopper"):
            assert [words[letter]["address"] for letter in "abc"] == [x["address"] for x in (a, b, c)], name
        else:
            assert (words["a"], words["b"], words["c"]) == (a["address"], b["address"], c["address"]), name


@pytest.mark.parametrize("mode", ["tensor", "row", "block"])
@pytest.mark.parametrize(
    ("options", "addressing"),
    [("", "host_descriptors"), (", masked=False", "host_descriptors"), (", pad=3", "pointers"),
     (', layout="nn"', "pointers"), (", k=321, pad=0", "pointers")],
)  # fmt: skip
def test_stacks_have_kernels_of_each_scale_mode(fake_cuda, mode, options, addressing):
    ran = fake_cuda.run(dedent(STACKS) + dedent(f"""
        mat_a, mat_b, others = operands_of_stacks("{mode}"{options})
        grouped_mm(mat_a, mat_b, **others)
        told = explain(mat_a, mat_b, **others)
        report([told.variant, [one["variant"] for one in told.candidates]])
    """))  # fmt: skip
    ((variant, candidates),) = ran.reported
    assert KERNELS[variant]["addressing"] == addressing
    facts = {(KERNELS[name]["extents"], KERNELS[name]["scaling"], KERNELS[name]["dtype"]) for name in candidates}
    assert facts == {("m_counts", mode, "e4m3")}
    assert [ran.hash_of(launch) for launch in ran.launches] == [KERNELS[variant]["cubin_sha256"]]


# A of float8_e5m2 with B of float8_e4m3fn, in each scale mode.
MIXED = """
    def mixed(mode, *, layout="nt", pad=16, out_dtype="bfloat16"):
        mat_a, _, _ = ragged(160, 192, 320, 5, layout=layout, pad=pad, dtype="float8_e5m2")
        _, mat_b, offs = ragged(160, 192, 320, 5, layout=layout, pad=pad, dtype="float8_e4m3fn")
        shapes = {"tensor": ((1,), (5,)), "row": ((160,), (5, 192)), "block": ((160, 3), (5, 2, 3))}[mode]
        scales = [ExchangeArray(*shape, address=fresh_address(), dtype="float32") for shape in shapes]
        out = matrix(160, 192, pad=pad, dtype=out_dtype)
        return mat_a, mat_b, dict(offs=offs, out=out, scale_a=scales[0], scale_b=scales[1])
"""


def test_every_variant_of_mixed_fp8_types_is_launched(fake_cuda):
    ran = fake_cuda.run(MIXED + """
    for kernel in gg_runtime.kernels():
        if (kernel["dtype"], kernel["extents"]) != ("e5m2", "m_ends"):
            continue
        mat_a, mat_b, others = mixed(kernel["scaling"], out_dtype=FULL_NAMES[kernel["out_dtype"]])
        gg_runtime._C.grouped_mm(mat_a, mat_b, variant=kernel["name"], **others)
        report([kernel["name"], *(x.facts() for x in (mat_a, mat_b, *others.values()))])
    """)  # fmt: skip
    assert len(ran.launches) == len(ran.reported) == len(MIXED_KERNELS) > 0
    for (name, a, b, offs, c, scale_a, scale_b), launch in zip(ran.reported, ran.launches):
        kernel, symbol = KERNELS[name], launch["symbol"]
        assert ran.hash_of(launch) == kernel["cubin_sha256"]
        words = read_ragged(by_value(ragged_arguments(launch), symbol), symbol)
        found = (words["offs"], words["scale_a"], words["scale_b"])
        assert found == (offs["address"], scale_a["address"], scale_b["address"]), name
        if symbol.startswith("hopper"):
            assert_descriptors(words, kernel, a, b, c)
        else:
            assert (words["a"], words["b"], words["c"]) == (a["address"], b["address"], c["address"]), name


@pytest.mark.parametrize("mode", ["tensor", "row", "block"])
@pytest.mark.parametrize(("options", "addressing"), [("", "host_descriptors"), (", pad=3", "pointers")])
def test_mixed_fp8_types_have_kernels_of_their_own(fake_cuda, mode, options, addressing):
    ran = fake_cuda.run(dedent(MIXED) + dedent(f"""
        mat_a, mat_b, others = mixed("{mode}"{options})
        grouped_mm(mat_a, mat_b, **others)
        told = explain(mat_a, mat_b, **others)
        report([told.variant, [one["variant"] for one in told.candidates]])
    """))  # fmt: skip
    ((variant, candidates),) = ran.reported
    assert KERNELS[variant]["addressing"] == addressing
    assert {(KERNELS[name]["dtype"], KERNELS[name]["scaling"]) for name in candidates} == {("e5m2", mode)}
    assert [ran.hash_of(launch) for launch in ran.launches] == [KERNELS[variant]["cubin_sha256"]]
