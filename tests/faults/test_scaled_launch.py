"""grouped_mm with scales by row and column, and by block, up to the driver: its kernel and the words that it reads."""

from textwrap import dedent

import pytest

import gg_runtime
from embedded import KERNELS
from faults.fake_driver import assert_says
from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_ragged_launch import SCALED_KERNELS, assert_descriptors

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
        if kernel["scaling"] not in ("row", "block"):
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
        if symbol == "hopper_ragged":
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
