"""grouped_mm with a ragged K and scales of blocks along it, up to the driver: its kernels, and what they read."""

from textwrap import dedent

import pytest

import gg_runtime
from embedded import KERNELS
from faults.fake_driver import assert_says
from faults.parameters import ragged_arguments
from faults.test_ragged_k_launch import HALF, ONE, SCALED_K_KERNELS, kernel_of, read
from faults.test_ragged_launch import BYTES, TENSOR_MAP_TYPES

# 160 x 192 of 5 groups, K = 400: 4 to 8 blocks. Scales with the strides of no packed array.
OPERANDS = dedent("""
    def operands(
        m=160, n=192, total=400, pad=16, layout="nt", of_a="float8_e4m3fn", out_dtype="bfloat16", blocks=6,
        kind=ExchangeArray,
    ):
        import torch
        named = (lambda dtype: getattr(torch, dtype)) if kind is torch.Tensor else str
        array = lambda *shape, dtype, **facts: kind(*shape, address=fresh_address(), dtype=named(dtype), **facts)
        mat_a = matrix(m, total, order=layout[0], pad=pad, dtype=named(of_a), kind=kind)
        mat_b = matrix(total, n, order=layout[1], pad=pad, dtype=named("float8_e4m3fn"), kind=kind)
        out = array(5, m, n, strides=(m * (n + 16) + 16, n + 16, 1), dtype=out_dtype)
        offs = array(5, dtype="int32")
        scale_a = array(m, blocks, strides=(3, 1000), dtype="float32")
        scale_b = array(blocks, n, strides=(700, 2), dtype="float32")
        return mat_a, mat_b, dict(offs=offs, out=out, scale_a=scale_a, scale_b=scale_b)
""")


def with_operands(script: str) -> str:
    return OPERANDS + dedent(script)


ALL_VARIANTS = with_operands("""
    for kernel in gg_runtime.kernels():
        if kernel["extents"] != "k_ends" or kernel["scaling"] != "block":
            continue
        mat_a, mat_b, others = operands(of_a=FULL_NAMES[kernel["dtype"]], out_dtype=FULL_NAMES[kernel["out_dtype"]])
        gg_runtime._C.grouped_mm(mat_a, mat_b, alpha=0.5, k_alignment=128, variant=kernel["name"], **others)
        report([kernel["name"], *(x.facts() for x in (mat_a, mat_b, *others.values()))])
""")


def test_every_embedded_variant_reads_each_address_and_stride(fake_cuda):
    ran = fake_cuda.run(ALL_VARIANTS)
    assert len(ran.launches) == len(ran.reported) == len(SCALED_K_KERNELS) > 0
    for (name, a, b, offs, c, scale_a, scale_b), launch in zip(ran.reported, ran.launches):
        kernel, arguments, words = KERNELS[name], ragged_arguments(launch), read(launch)
        assert ran.hash_of(launch) == kernel["cubin_sha256"]
        assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (5, 160, 192, 400), name
        expected = {
            "offs": offs["address"], "alpha_at": 0, "alpha_bits": HALF, "splits": 1, "scale_a": scale_a["address"],
            "scale_b": scale_b["address"], "scale_a_row": 3, "scale_a_k": 1000, "scale_b_k": 700, "scale_b_n": 2,
            "scale_blocks": 6,
        }  # fmt: skip
        assert {field: words[field] for field in expected} == expected, name
        if kernel["addressing"] == "host_descriptors":
            assert words["accumulates"] == 0
            assert_descriptors(words, kernel, a, b, c)
        else:
            assert words["k_alignment"] == 128
            assert (words["a"], words["b"], words["c"]) == (a["address"], b["address"], c["address"]), name
            assert [words[f"c_{name}"] for name in ("group", "row", "col")] == c["strides"]


def assert_descriptors(words: dict, kernel: dict, a: dict, b: dict, c: dict) -> None:
    """K is the inner dimension of A and of B^T, as long as all groups; the stack of C."""
    out_size = BYTES[kernel["out_dtype"]]
    for field, array, rows, stride in (("a", a, 160, a["strides"][0]), ("b", b, 192, b["strides"][1])):
        assert words[field] == {
            "address": array["address"], "sizes": [400, rows], "strides": [stride],
            "box": [128, kernel["block_m" if field == "a" else "block_n"]], "type": TENSOR_MAP_TYPES["e4m3"],
        }, kernel["name"]  # fmt: skip
    assert words["c"] == {
        "address": c["address"], "sizes": c["shape"][::-1],
        "strides": [c["strides"][1] * out_size, c["strides"][0] * out_size],
        "box": [128 // out_size, kernel["block_m"] // max(kernel["split"], 1), 1],
        "type": TENSOR_MAP_TYPES[kernel["out_dtype"]],
    }, kernel["name"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "alignment", "kernel"),
    [
        ("", 128, "hopper_ragged_k_block_scales"),
        ("", "type('AsOfNumPy', (), {'__index__': lambda self: 128})()", "hopper_ragged_k_block_scales"),
        ('of_a="float8_e5m2"', 128, "hopper_ragged_k_block_scales"),
        ('of_a="float8_e5m2"', 1, "basic_ragged_k_block_scales"),
        ("", 1, "basic_ragged_k_block_scales"),
        ("pad=3", 128, "basic_ragged_k_block_scales"),
        ('layout="tn"', 128, "basic_ragged_k_block_scales"),
        ("total=401, pad=15", 128, "hopper_ragged_k_block_scales"),
    ],
)
def test_the_promise_and_the_layout_choose_the_kernel(fake_cuda, options, alignment, kernel):
    ran = fake_cuda.run(with_operands(f"""
        mat_a, mat_b, others = operands({options})
        others["k_alignment"] = {alignment}
        grouped_mm(mat_a, mat_b, **others)
        told = explain(mat_a, mat_b, **others)
        report([told.variant, [one["variant"] for one in told.candidates]])
        Plan(mat_a, mat_b, **others).run()
    """))  # fmt: skip
    ((variant, candidates),) = ran.reported
    assert [launch["symbol"] for launch in ran.launches] == 2 * [kernel] and KERNELS[variant]["kernel"] == kernel
    dtypes = "e5m2" if "e5m2" in options else "e4m3", "bf16"
    assert set(candidates) == {o["name"] for o in SCALED_K_KERNELS if (o["dtype"], o["out_dtype"]) == dtypes}


def test_one_thread_remembers_choices_of_each_promise_apart(fake_cuda):
    ran = fake_cuda.run(with_operands("""
        for turn in range(2):
            for alignment in (1, 128):
                mat_a, mat_b, others = operands()
                grouped_mm(mat_a, mat_b, k_alignment=alignment, **others)
                others["scale_a"] = None
                others["scale_b"] = ExchangeArray(1, address=fresh_address(), dtype="float32")
                grouped_mm(mat_a, mat_b, k_alignment=alignment, **others)
    """))  # fmt: skip
    kernels = [kernel_of(ran, launch)["addressing"] for launch in ran.launches]
    assert kernels == 2 * ["pointers", "pointers", "host_descriptors", "pointers"]
    words = read(ran.launches[1])
    names = "scale_a", "scale_a_row", "scale_a_k", "scale_b_k", "scale_b_n", "scale_blocks"
    assert [words[name] for name in names] == [0, 0, 0, 0, 0, 1] and words["scale_b"] != 0


@pytest.mark.parametrize(("out_dtype", "symbols"), [("float32", []), ("bfloat16", ["add_parts"])])
def test_sums_are_added_by_tma_or_by_a_launch_of_its_own(fake_cuda, out_dtype, symbols):
    ran = fake_cuda.run(with_operands(f"""
        import torch
        larger = dict(m=320, n=336, total=640, blocks=8)  # where the choice is by some microseconds
        mat_a, mat_b, others = operands(out_dtype="{out_dtype}", kind=torch.Tensor, **larger)
        grouped_mm(mat_a, mat_b, k_alignment=128, beta=1.0, **others)
    """))  # fmt: skip
    assert [launch["symbol"] for launch in ran.launches] == ["hopper_ragged_k_block_scales", *symbols]
    words = read(ran.launches[0])
    assert (words["accumulates"], words["alpha_bits"]) == (not symbols, ONE)


def test_a_variant_is_refused_where_its_promises_are_broken(fake_cuda):
    of_e4m3 = [one for one in SCALED_K_KERNELS if (one["dtype"], one["out_dtype"]) == ("e4m3", "bf16")]
    names = {kernel["addressing"]: kernel["name"] for kernel in of_e4m3}
    ran = fake_cuda.run(with_operands(f"""
        mat_a, mat_b, others = operands()
        call = lambda **given: failure(
            gg_runtime._C.grouped_mm, mat_a, mat_b, variant="{names["host_descriptors"]}", **others | given
        )
        report(call())
        report(call(k_alignment=128, scale_a=None, scale_b=None))
    """))  # fmt: skip
    assert ran.launches == []
    assert_says(ran.reported[0], "ValueError", "TMA needs pointers on 16 bytes")
    assert_says(ran.reported[1], "ValueError", "it reads scales of both operands, and one is left out")
    assert gg_runtime.manifest()["artifacts"][names["pointers"]]["symbol"] == "basic_ragged_k_block_scales"
