"""Lists that do not fit a kernel's parameters: how many launches bring them, and that each record arrives whole."""

import pytest

from embedded import KERNELS
from faults.parameters import by_value, expected_ends, list_arguments, read_descriptors, read_list, uploaded_words

SM_90 = pytest.mark.skipif(all(kernel["sm"] != 90 for kernel in KERNELS.values()), reason="built without sm_90")
LIKE, UNLIKE = "[(64, 64, 64)] * {}", "[(8 * (1 + i % 61), 8 * (1 + i % 53), 8 * (1 + i % 59)) for i in range({})]"
TWO_SIZES = "[(64, 64, 128)] * ({} // 2) + [(16, 72, 40)] * ({} // 2)"


def variant_of(kernel: str) -> str:
    wanted = {"kernel": kernel, "sm": 90, "dtype": "fp16", "layout": "nn", "alignment": 16}
    return next(k["name"] for k in KERNELS.values() if wanted.items() <= k.items())


def run_plan(fake_cuda, kernel: str, sizes: str, groups: int):
    """A Plan that is run once, by a variant of the kernel: its launches, and A, B and C of each group by falling K."""
    ran = fake_cuda.run(f"""
        import cupy
        A, B, out = operands({sizes.format(groups, groups)}, kind=cupy.ndarray, device=cupy.Device(0))
        Plan(A, B, out=out, variant="{variant_of(kernel)}").run()
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
    """)
    return ran.launches, sorted(ran.reported[0], key=lambda group: -group[0]["shape"][1])


@SM_90
@pytest.mark.parametrize("kernel", ["basic", "hopper"])
@pytest.mark.parametrize(
    ("sizes", "groups", "uploads"),
    [
        (LIKE, {"basic": 33, "hopper": 9}, 1),
        (LIKE, 64, 1),
        (UNLIKE, 64, {"basic": 2, "hopper": 3}),  # of 16 words that differ: the fake driver gives each fact its own
        (TWO_SIZES, 160, {"basic": 2, "hopper": 2}),
        (LIKE, 1000, {"basic": 9, "hopper": 10}),
        (UNLIKE, 1000, None),
    ],
    ids=["the shortest", "64 like", "64 unlike", "two sizes", "1000 like", "1000 unlike"],
)
def test_words_that_all_groups_share_travel_once(fake_cuda, kernel, sizes, groups, uploads):
    groups = groups[kernel] if isinstance(groups, dict) else groups
    (*packs, product), arrays = run_plan(fake_cuda, kernel, sizes, groups)
    arguments = list_arguments(product)
    described = kernel == "hopper"
    assert arguments.problems % 64 == 0 and arguments.groups == groups
    words = uploaded_words(arguments, packs, -(-groups // 8) * 8 + 56 * groups if described else 15 * groups)
    ends, records = (read_descriptors if described else read_list)(words, groups)
    facts = KERNELS[variant_of(kernel)]
    assert ends == expected_ends(records, facts["block_m"], facts["block_n"])
    for record, group in zip(records, arrays, strict=True):
        assert (record["m"], record["n"], record["k"]) == (*group[2]["shape"], group[0]["shape"][1])
        for name, array in zip("abc", group):
            found = (record[name]["address"], record[name]["row_stride"] // 2) if described else (
                record[name], record[f"{name}_row"])  # fmt: skip
            assert found == (array["address"], array["strides"][0])
    if uploads is not None:
        assert len(packs) == (uploads[kernel] if isinstance(uploads, dict) else uploads)


@SM_90
def test_a_list_of_descriptors_that_fits_parameters_is_not_uploaded(fake_cuda):
    (launch,), arrays = run_plan(fake_cuda, "hopper", LIKE, 8)
    arguments = list_arguments(launch)
    assert arguments.problems == 0
    _, records = read_descriptors(by_value(arguments, "hopper"), 8)
    assert [record["a"]["address"] for record in records] == [group[0]["address"] for group in arrays]


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("new", [False, True], ids=["out", "new outputs"])
def test_explain_tells_as_many_launches_as_the_call_makes(fake_cuda, sm, new):
    ran = fake_cuda.run(f"""
        import cupy
        from random import Random
        random = Random(7)
        made = lambda *shape: cupy.empty(shape, "float16")
        for groups in (1, 8, 9, 32, 33, 111, 112, 300):
            size = lambda: 8 * random.randint(1, 70)
            like = [(256, 256, 256)] * groups
            for sizes in (like, [(size(), size(), size()) for _ in like], [(size(), 512, 256) for _ in like]):
                A, B = [made(m, k) for m, n, k in sizes], [made(k, n) for m, n, k in sizes]
                out = None if {new} else [made(m, n) for m, n, k in sizes]
                seen = explain(A, B, out=out)
                report([groups, seen.variant, seen.launches])
                group_gemm(A, B, out=out)
    """, FAKE_CUDA_SM=sm)  # fmt: skip
    launches = iter(ran.launches)
    for groups, variant, told in ran.reported:
        made = [next(launches)["symbol"] for _ in range(told)]
        assert made == ["pack"] * (told - 1) + [variant.partition("_")[0]], (groups, variant)
    assert next(launches, None) is None


@SM_90
@pytest.mark.parametrize(
    ("sizes", "groups"), [("[(64, 64, 256)] * {}", 12), ("[(64, 64 + 64 * (i % 2), 512) for i in range({})]", 64)]
)
def test_a_call_pays_for_its_uploads_and_a_plan_does_not(fake_cuda, sizes, groups):
    """Small groups: `hopper` multiplies them faster, and has more to upload."""
    ran = fake_cuda.run(f"""
        import cupy
        A, B, out = operands({sizes.format(groups)}, kind=cupy.ndarray, device=cupy.Device(0))
        seen = explain(A, B, out=out)
        group_gemm(A, B, out=out)
        plan = Plan(A, B, out=out)
        plan.run()
        report([seen.variant, seen.launches, seen.upload_us, plan.variant, seen.candidates])
    """)
    ((one_shot, launches, upload_us, planned, candidates),) = ran.reported
    usable = [candidate for candidate in candidates if candidate["ruled_out"] is None]
    assert planned == min(usable, key=lambda candidate: candidate["predicted_us"])["variant"]
    cheapest = min(usable, key=lambda candidate: candidate["predicted_us"] + candidate["upload_us"])
    assert (one_shot, upload_us) == (cheapest["variant"], cheapest["upload_us"])
    assert (KERNELS[one_shot]["kernel"], KERNELS[planned]["kernel"]) == ("basic", "hopper")
    symbols = [launch["symbol"] for launch in ran.launches]
    assert symbols[:launches] == ["pack"] * (launches - 1) + ["basic"]
    assert symbols[-1] == "hopper" and upload_us == 3.5 * (launches - 1)


@SM_90
def test_descriptors_of_like_groups_are_copied_with_another_address(fake_cuda):
    script = f"""
        A, B, out = operands([(64, 64, 64), (64, 72, 64)] * 2)
        report(failure(lambda: Plan(A, B, out=out, variant="{variant_of("hopper")}").run()))
        A, B, out = operands([(64, 64, 64)] * 5 + [(64, 72, 64)] * 3)
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
        report(failure(lambda: Plan(A, B, out=out, variant="{variant_of("hopper")}").run()))
    """
    ran = fake_cuda.run(script)
    _, arrays, error = ran.reported
    assert error["type"] is None
    _, records = read_descriptors(by_value(list_arguments(ran.launches[-1]), "hopper"), 8)
    for record, group in zip(records, arrays, strict=True):
        for name, array in zip("abc", group):
            found = record[name]
            assert [found["address"], found["rows"], found["columns"]] == [array["address"], *array["shape"]]
    unlike, _, like = fake_cuda.run(script, FAKE_CUDA_FAIL="cuTensorMapReplaceAddress:1:1").reported
    assert unlike["type"] is None, "each size is encoded"
    assert (like["type"], like["call"]) == ("CudaError", "cuTensorMapReplaceAddress")
