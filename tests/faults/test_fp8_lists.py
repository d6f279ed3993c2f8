"""Lists of float8_e4m3fn matrices up to the driver: the variant's dtypes, and where each record finds its scales."""

import pytest

from aot.spec.records import SCALED_LIST_DESCRIPTORS, SCALED_LIST_POINTERS
from arrays import FULL_NAMES
from embedded import KERNELS
from faults.parameters import (
    by_value,
    expected_record,
    list_arguments,
    read_descriptors,
    read_list,
    uploaded_words,
)

BY_SCALE_LIST = {  # take lists of scales
    f"{kernel}_{mode}_scales": (kernel, mode) for kernel in ("basic", "hopper") for mode in ("row", "block")
}
OF_FP8_LISTS = {
    kernel["kernel"] for kernel in KERNELS.values() if (kernel["dtype"], kernel["form"]) == ("e4m3", "list")
}
SIZES = [(64, 48, 160), (128, 16, 96), (16, 80, 32)]  # by falling K, as kernels read them


def run_list(
    fake_cuda, *, scale_a=0, scale_b=0, step=1, out_order="n", out_dtype="bfloat16", layout="nt", variant=None
):
    """A list with `scale_a` and `scale_b` elements of scale: its launch and kernel, each A, B, C, the scales."""
    ran = fake_cuda.run(f"""
        A, B, _ = operands({SIZES}, layout="{layout}", dtype="float8_e4m3fn")
        _, _, out = operands({SIZES}, out_order="{out_order}", dtype="{out_dtype}")
        scales = [ExchangeArray(count, address=fresh_address(), strides=({step},), dtype="float32") if count else None
                  for count in ({scale_a}, {scale_b})]
        plan = Plan(A, B, out=out, scale_a=scales[0], scale_b=scales[1], variant={variant!r})
        plan.run()
        report(plan.variant)
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
        report([scale.address if scale else 0 for scale in scales])
    """)
    (launch,) = ran.launches
    variant, groups, scales = ran.reported
    return launch, KERNELS[variant], groups, scales


def read(launch, kernel):
    words = by_value(list_arguments(launch), kernel["kernel"])
    return (read_descriptors if kernel["kernel"].startswith("hopper") else read_list)(words, len(SIZES))[1]


@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_the_variant_is_one_of_the_outputs_dtype(fake_cuda, out_dtype):
    _, kernel, _, _ = run_list(fake_cuda, out_dtype=out_dtype)
    assert (kernel["dtype"], FULL_NAMES[kernel["out_dtype"]]) == ("e4m3", out_dtype)


@pytest.mark.parametrize(("scale_a", "scale_b"), [(0, 0), (1, 0), (0, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("kernel_name", sorted(OF_FP8_LISTS - BY_SCALE_LIST.keys()))
def test_each_record_has_the_addresses_of_its_scales(fake_cuda, kernel_name, scale_a, scale_b, step):
    variant = next(
        k["name"] for k in KERNELS.values()
        if (k["kernel"], k["dtype"], k["out_dtype"], k["layout"]) == (kernel_name, "e4m3", "bf16", "nt")
    )  # fmt: skip
    launch, kernel, _, scales = run_list(fake_cuda, scale_a=scale_a, scale_b=scale_b, step=step, variant=variant)
    for index, record in enumerate(read(launch, kernel)):
        for name, address, count in zip(("scale_a", "scale_b"), scales, (scale_a, scale_b)):
            assert record[name] == address + (4 * step * index if count > 1 else 0)


def test_the_transposed_product_takes_the_scales_of_the_other_operand(fake_cuda):
    launch, kernel, groups, (scale_a, scale_b) = run_list(fake_cuda, scale_a=1, scale_b=1, out_order="t", layout="nn")

    def transposed(array):
        return array | {"shape": array["shape"][::-1], "strides": array["strides"][::-1]}

    expected = [expected_record(transposed(b), transposed(a), transposed(c), (scale_b, scale_a)) for a, b, c in groups]
    assert kernel["kernel"] == "basic" and read(launch, kernel) == expected


def test_new_outputs_have_the_dtype_asked_for_or_bfloat16(fake_cuda):
    ran = fake_cuda.run("""
        import torch
        A, B, _ = operands([(64, 48, 160), (32, 48, 160)], layout="nt", dtype=torch.float8_e4m3fn, kind=torch.Tensor)
        for wanted in (None, torch.float32, "float8_e4m3fn"):
            out = group_gemm(A, B, out_dtype=wanted)
            report([[str(c.dtype), c.address] for c in out])
    """)
    for made, (dtype, size) in zip(ran.reported, [("bfloat16", 2), ("float32", 4), ("float8_e4m3fn", 1)]):
        assert [c[0] for c in made] == [f"torch.{dtype}"] * 2
        assert made[1][1] == made[0][1] + size * 64 * 48, "outputs of one width share a block"


def test_wrong_scales_and_dtypes_are_told(fake_cuda):
    ran = fake_cuda.run("""
        A, B, _ = operands([(64, 48, 160)] * 3, dtype="float8_e4m3fn")
        half, _, out = operands([(64, 160, 160)] * 3)
        scale = lambda count, **facts: ExchangeArray(count, address=fresh_address(), **{"dtype": "float32"} | facts)
        report(failure(group_gemm, A, B, scale_a=scale(2)))
        report(failure(group_gemm, A, B, scale_b=scale(3, dtype="bfloat16")))
        report(failure(group_gemm, A, B, scale_b=scale(3, device=1)))
        report(failure(group_gemm, half, half[:0] + [matrix(160, 160) for _ in range(3)], scale_a=scale(1)))
        report(failure(group_gemm, A, B, out_dtype="int8"))
        report(failure(group_gemm, A, B, out=[matrix(64, 48, dtype="float32")] * 3, out_dtype="float16"))
    """)
    kinds = ["ValueError", "TypeError", "ValueError", "ValueError", "ValueError", "TypeError"]
    words = ["scale_a has shape [2]; 1 element is needed, or [3]", "scale_b has dtype bfloat16; float32",
             "scale_b is on cuda:1 but A[0] is on cuda:0", "scale_a is given, but the inputs are float16",
             "out_dtype is int8", "out[0] has dtype float32 but A[i] @ B[i] has float16"]  # fmt: skip
    assert [error["type"] for error in ran.reported] == kinds
    for error, word in zip(ran.reported, words):
        assert word in error["text"], error["text"]
    assert ran.launches == []


# Scales of rows and columns or of blocks, in lists. Blocks: 2 of K and 1 of N of the first product, one of each else.
BY_LIST = f"""
    import math
    def scaled_list(mode, out_order="n"):
        A, B, _ = operands({SIZES}, layout="nt", dtype="float8_e4m3fn")
        _, _, out = operands({SIZES}, out_order=out_order, dtype="bfloat16")
        def scale(shape, strides):
            return ExchangeArray(*shape, address=fresh_address(), strides=strides, dtype="float32")
        blocks = lambda size: math.ceil(size / 128)
        if mode == "row":
            of = [(scale((m,), (3,)), scale((n,), (5,))) for m, n, k in {SIZES}]
        else:
            of = [(scale((m, blocks(k)), (1, 200)), scale((blocks(n), blocks(k)), (11, 7))) for m, n, k in {SIZES}]
        return A, B, out, [a for a, _ in of], [b for _, b in of]
"""


@pytest.mark.parametrize("kernel", BY_SCALE_LIST)
@pytest.mark.parametrize("out_order", ["n", "t"])
def test_each_record_has_the_scales_of_its_list_and_their_strides(fake_cuda, kernel, out_order):
    """A product whose blocks cannot be turned has no descriptor of its output."""
    entry, mode = BY_SCALE_LIST[kernel]
    wanted = {"kernel": kernel, "out_dtype": "bf16"}
    variant = next(name for name, facts in KERNELS.items() if wanted.items() <= facts.items())
    ran = fake_cuda.run(BY_LIST + f"""
    A, B, out, of_a, of_b = scaled_list("{mode}", "{out_order}")
    plan = lambda: Plan(A, B, out=out, scale_a=of_a, scale_b=of_b, variant="{variant}").run()
    report(failure(plan))
    report([[x.facts() for x in group] for group in zip(A, B, out, of_a, of_b)])
    """)  # fmt: skip
    failed, groups = ran.reported
    if (kernel, out_order) == ("hopper_block_scales", "t"):
        assert failed["type"] == "ValueError" and "out[0] is not contiguous along N" in failed["text"]
        assert ran.launches == []
        return
    (launch,) = ran.launches
    assert launch["symbol"] == {"basic": "basic_scaled", "hopper": "hopper_scaled_list"}[entry]
    assert ran.hash_of(launch) == KERNELS[variant]["cubin_sha256"] and KERNELS[variant]["scaling"] == mode
    words = by_value(list_arguments(launch), kernel)
    if entry == "hopper":
        _, records = read_descriptors(words, len(SIZES), SCALED_LIST_DESCRIPTORS)
        assert all(record.pop("scale_b_step") == 0 for record in records), "each group has its own"
        records = [record | {name: record[name]["address"] for name in "abc"} for record in records]
    else:
        _, records = read_list(words, len(SIZES), SCALED_LIST_POINTERS)
    for record, (a, b, c, of_a, of_b) in zip(records, groups, strict=True):
        found = {name: record[name] for name in record if "scale" in name}
        turned = mode == "row" and out_order == "t"
        first, second = (of_b, of_a) if turned else (of_a, of_b)
        expected = {"scale_a": first["address"], "scale_b": second["address"], "scale_a_k": 0, "scale_b_k": 0}
        expected |= {"scale_a_row": first["strides"][0], "scale_b_n": second["strides"][0]}
        if mode == "block":
            expected |= {"scale_a_k": of_a["strides"][1], "scale_b_k": of_b["strides"][1]}
        assert found == expected
        assert record["c"] == c["address"] and record["a"] == (b if turned else a)["address"]


@pytest.mark.parametrize("groups", [8, 20, 64])
def test_records_of_64_words_are_uploaded_whole(fake_cuda, groups):
    """The last words of such a record are fillers: they have no bit among those that may differ."""
    wanted = {"kernel": "hopper_row_scales", "out_dtype": "bf16"}
    variant = next(name for name, facts in KERNELS.items() if wanted.items() <= facts.items())
    ran = fake_cuda.run(f"""
        import torch
        sizes = [(64, 64, 128 + 16 * (i % 3)) for i in range({groups})]
        A, B, _ = operands(sizes, layout="nt", dtype=torch.float8_e4m3fn, kind=torch.Tensor)
        _, _, out = operands(sizes, dtype=torch.bfloat16, kind=torch.Tensor)
        scales = lambda: [torch.Tensor(64, dtype=torch.float32, address=fresh_address()) for _ in sizes]
        of_a, of_b = scales(), scales()
        Plan(A, B, out=out, scale_a=of_a, scale_b=of_b, variant="{variant}").run()
        report([[x.address for x in group] for group in zip(A, B, out, of_a, of_b)])
    """)
    *packs, product = ran.launches
    arguments = list_arguments(product)
    words = uploaded_words(arguments, packs, -(-groups // 8) * 8 + 64 * groups)
    _, records = read_descriptors(words, groups, SCALED_LIST_DESCRIPTORS)
    found = [[*(one[name]["address"] for name in "abc"), one["scale_a"], one["scale_b"]] for one in records]
    assert packs and sorted(found) == sorted(ran.reported[0])


def test_a_checked_plan_notices_scales_that_moved(fake_cuda):
    ran = fake_cuda.run(BY_LIST + """
    A, B, out, of_a, of_b = scaled_list("row")
    plan = Plan(A, B, out=out, scale_a=of_a, scale_b=of_b, checked=True)
    report(failure(plan.run))
    of_b[1].address += 256
    report(failure(plan.run))
    one = ExchangeArray(1, address=fresh_address(), dtype="float32")
    plan = Plan(A, B, out=out, scale_a=one, checked=True)
    report(failure(plan.run))
    one.address += 256
    report(failure(plan.run))
    """)  # fmt: skip
    fine, one_of_a_list, fine_too, one_for_all = ran.reported
    assert fine["type"] is None and fine_too["type"] is None
    for moved, name in ((one_of_a_list, "scale_b[1]"), (one_for_all, "scale_a")):
        assert moved["type"] == "RuntimeError" and f"Plan: {name} has other memory" in moved["text"]


def test_lists_of_scales_that_do_not_fit_are_told(fake_cuda):
    ran = fake_cuda.run(BY_LIST + """
    A, B, out, of_a, of_b = scaled_list("row")
    _, _, _, blocks_a, blocks_b = scaled_list("block")
    scale = lambda *shape, **facts: ExchangeArray(*shape, address=fresh_address(), **{"dtype": "float32"} | facts)
    report(failure(group_gemm, A, B, out=out, scale_a=of_a, scale_b=scale(3)))
    report(failure(group_gemm, A, B, out=out, scale_a=of_a))
    report(failure(group_gemm, A, B, out=out, scale_a=of_a[:2], scale_b=of_b))
    report(failure(group_gemm, A, B, out=out, scale_a=of_a, scale_b=[of_b[0], scale(17), of_b[2]]))
    report(failure(group_gemm, A, B, out=out, scale_a=blocks_a, scale_b=of_b))
    report(failure(group_gemm, A, B, out=out, scale_a=blocks_a, scale_b=[*blocks_b[:2], scale(1, 2)]))
    report(failure(group_gemm, A, B, out=out, scale_a=[*of_a[:2], scale(16, dtype="bfloat16")], scale_b=of_b))
    """)  # fmt: skip
    words = [
        "scale_b is no list, and the other scales are one", "scale_b is no list",
        "scale_a has 2 arrays and the list has 3",
        "scale_b[1] has shape [17]; [16] is needed: in a list, scale_a[i] of [M] goes with scale_b[i] of [N]",
        "scale_a[0] has shape [64, 2]; [64] is needed", "scale_b[2] has shape [1, 2]; [1, 1] is needed",
        "scale_a[2] has dtype bfloat16; float32",
    ]  # fmt: skip
    assert [error["type"] for error in ran.reported] == ["ValueError"] * 6 + ["TypeError"]
    for error, word in zip(ran.reported, words):
        assert word in error["text"], error["text"]
    assert ran.launches == []


@pytest.mark.parametrize("where", ["A", "out"])
def test_a_single_row_has_no_stride_that_a_descriptor_could_refuse(fake_cuda, where):
    ran = fake_cuda.run(f"""
    fp8, scale = {{"dtype": "float8_e4m3fn"}}, {{"dtype": "float32"}}
    def array(*shape, row=None, **facts):
        return ExchangeArray(*shape, address=fresh_address(), strides=(row or shape[1], 1), **facts)
    A = array(1, 512, row=516 if "{where}" == "A" else None, **fp8)
    B = ExchangeArray(512, 512, address=fresh_address(), strides=(1, 512), **fp8)
    out = array(1, 512, row=513 if "{where}" == "out" else None, dtype="bfloat16")
    scales = array(1, 4, **scale), array(4, 4, **scale)
    plan = Plan([A], [B], out=[out], scale_a=[scales[0]], scale_b=[scales[1]])
    plan.run()
    report(plan.variant)
    """)  # fmt: skip
    assert ran.reported[0].startswith("hopper_block_scales") and len(ran.launches) == 1
