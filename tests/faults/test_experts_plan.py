"""Plans of layers of experts, and what explain_experts says of them."""

import json

import pytest

from embedded import KERNELS
from faults.experts import ODD, PRELUDE, QWEN, given_to
from faults.fake_driver import SM_80

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
