"""Lists with groups that TMA cannot take: two launches where that is faster, each group in one of them, once."""

import pytest

from embedded import KERNELS
from faults.parameters import by_value, list_arguments, read_descriptors, read_list, uploaded_words

pytestmark = pytest.mark.skipif(all(kernel["sm"] != 90 for kernel in KERNELS.values()), reason="built without sm_90")
ODD = "[(1024, 7 if i == 17 else 1024, 1024) for i in range({})]"
EMPTY = "[(1024, 1024, 0 if i == 17 else 1024) for i in range({})]"


def records_of(launches: list[dict]) -> list[list[dict]]:
    """The records of each launch of products, from its own parameters or from what `pack` brought before it."""
    found, packs = [], []
    for launch in launches:
        if launch["symbol"] == "pack":
            packs.append(launch)
            continue
        arguments, described = list_arguments(launch), launch["symbol"] == "hopper"
        count = -(-arguments.groups // 8) * 8 + 56 * arguments.groups if described else 15 * arguments.groups
        uploaded = arguments.problems != 0
        words = uploaded_words(arguments, packs, count) if uploaded else by_value(arguments, launch["symbol"])
        assert uploaded == bool(packs)
        found.append((read_descriptors if described else read_list)(words, arguments.groups)[1])
        packs = []
    return found


def outputs_of(records: list[dict]) -> list[int]:
    return [c["address"] if isinstance(c, dict) else c for c in (record["c"] for record in records)]


@pytest.mark.parametrize("groups", [20, 64])
@pytest.mark.parametrize("sizes", [ODD, EMPTY], ids=["N = 7", "K = 0"])
def test_the_odd_group_goes_to_basic_and_the_rest_to_hopper(fake_cuda, sizes, groups):
    ran = fake_cuda.run(f"""
        import cupy
        A, B, out = operands({sizes.format(groups)}, kind=cupy.ndarray, device=cupy.Device(0))
        seen = explain(A, B, out=out)
        group_gemm(A, B, out=out)
        report([seen.variant, seen.launches, seen.reason, seen.parts, str(seen)])
        report([c.address for c in out])
    """)
    (variant, launches, reason, parts, text), addresses = ran.reported
    assert len(ran.launches) == launches
    described, odd = records_of(ran.launches)
    assert outputs_of(odd) == [addresses[17]]
    assert sorted(outputs_of(described)) == sorted(address for address in addresses if address != addresses[17])
    assert [KERNELS[part["variant"]]["kernel"] for part in parts] == ["hopper", "basic"]
    assert [part["groups"] for part in parts] == [groups - 1, 1] and variant == parts[0]["variant"]
    assert reason.endswith("[17] has rows of 14 bytes" if sizes == ODD else "A[17] has K = 0")
    assert sum(part["launches"] for part in parts) == launches and all(part["variant"] in text for part in parts)


def test_a_plan_of_two_launches_runs_both_each_time_on_one_stream_and_uploads_once(fake_cuda):
    ran = fake_cuda.run(f"""
        import cupy
        A, B, out = operands({ODD.format(64)}, kind=cupy.ndarray, device=cupy.Device(0))
        plan = Plan(A, B, out=out)
        report([plan.variant, plan.launches, plan.by_value, plan.grid, plan.slots])
        cupy.cuda.streams[0] = 0x123
        plan.run()
        plan.run()
    """)
    ((variant, launches, by_value, grid, slots),) = ran.reported
    assert (KERNELS[variant]["kernel"], launches, by_value) == ("hopper", 2, False)
    uploads, runs = ran.launches[:-4], ran.launches[-4:]
    assert [launch["symbol"] for launch in uploads] == ["pack"]
    assert [launch["symbol"] for launch in runs] == ["hopper", "basic"] * 2
    assert {launch["stream"] for launch in runs} == {0x123}
    assert runs[0]["grid"][0] == grid <= slots


def test_a_variant_that_is_asked_for_takes_the_whole_list(fake_cuda):
    wanted = {"kernel": "basic", "sm": 90, "dtype": "fp16", "layout": "nn", "alignment": 2}
    variant = next(k["name"] for k in KERNELS.values() if wanted.items() <= k.items())
    ran = fake_cuda.run(f"""
        A, B, out = operands({ODD.format(32)})
        plan = Plan(A, B, out=out, variant="{variant}")
        plan.run()
        report([plan.variant, plan.launches])
    """)
    assert ran.reported == [[variant, 1]] and len(ran.launches) == 1


@pytest.mark.parametrize(
    "sizes", ["[(64, 64, 64)] * 4 + [(64, 7, 64)]", "[(512, 7, 512)] * 20"], ids=["small", "all odd"]
)
def test_lists_that_gain_nothing_stay_one_launch(fake_cuda, sizes):
    ran = fake_cuda.run(f"""
        A, B, out = operands({sizes})
        group_gemm(A, B, out=out)
        report([explain(A, B, out=out).launches, len(explain(A, B, out=out).parts)])
    """)
    assert ran.reported == [[1, 1]] and [launch["symbol"] for launch in ran.launches] == ["basic"]


def test_halves_of_unlike_layouts_take_a_kernel_of_their_own_each(fake_cuda):
    ran = fake_cuda.run("""
        sides = [operands([(1024, 1024, 1024)] * 4, layout=layout) for layout in ("nn", "tt")]
        A, B, out = ([x for side in sides for x in side[i]] for i in range(3))
        plan = Plan(A, B, out=out)
        plan.run()
        report([part["variant"] for part in explain(A, B, out=out).parts])
        report([c.address for c in out])
    """)
    variants, addresses = ran.reported
    assert sorted(KERNELS[name]["layout"] for name in variants) == ["nn", "tt"]
    first, second = records_of(ran.launches)
    assert sorted(outputs_of(first) + outputs_of(second)) == sorted(addresses)
