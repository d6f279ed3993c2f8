"""explain_experts: the kernels of each step on a GPU that is described; ExpertsPlan on the CPU."""

import pytest

import gg_runtime

torch = pytest.importorskip("torch")

from experts_oracle import assert_layer  # noqa: E402
from test_fused_experts import layer  # noqa: E402

H200 = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448, "name": "NVIDIA H200"}
H200 |= {"clock_mhz": 1980, "memory_gb_s": 4814}
A100 = {"sm": 80, "multiprocessors": 108, "shared_bytes_per_block": 166912}
KERNELS = {kernel["name"]: kernel for kernel in gg_runtime.kernels()}


@pytest.mark.parametrize("device", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize(("hidden", "inner"), [(64, 32), (75, 61)])
def test_steps_have_kernels_of_the_device(device, hidden, inner):
    told = gg_runtime.explain_experts(*layer(hidden=hidden, inner=inner), device=device)
    assert [step["name"] for step in told.steps] == ["route", "up", "down", "combine"]
    kernels = [KERNELS[name] for step in told.steps for name in step["variants"]]
    assert {kernel["sm"] for kernel in kernels} == {device["sm"]} and told.launches == len(kernels)
    assert [kernel["form"] for kernel in kernels if kernel["form"] == "grouped"] == ["grouped"] * 2
    assert told.predicted_us == pytest.approx(sum(step["predicted_us"] for step in told.steps)) and not told.from_ptx
    sizes = {"tokens": 13, "top_k": 3, "experts": 5, "hidden": hidden, "intermediate": inner}
    assert (told.chunks, told.workspace_bytes) == (1, gg_runtime.fused_experts_workspace(**sizes))
    text = str(told)
    assert all(name in text for step in told.steps for name in (step["name"], step["reason"], *step["variants"]))


def test_chunks_take_launches_each():
    whole, chunked = (
        gg_runtime.explain_experts(*layer(tokens=100), max_rows=rows, device=H200) for rows in (None, 120)
    )
    assert (whole.chunks, chunked.chunks) == (1, 3) and chunked.launches == 3 * whole.launches
    assert chunked.workspace_bytes < whole.workspace_bytes and chunked.predicted_us > whole.predicted_us


def test_many_slots_are_counted_first():
    few, many = (gg_runtime.explain_experts(*layer(tokens=tokens), device=H200).steps[0] for tokens in (10, 5000))
    assert [KERNELS[name]["form"] for name in few["variants"]] == ["route_place"]
    assert [KERNELS[name]["form"] for name in many["variants"]] == ["route_count", "route_place"]


def test_nothing_to_compute_has_no_steps():
    told = gg_runtime.explain_experts(*layer(tokens=0), device=H200)
    assert (told.steps, told.launches, told.chunks) == ([], 0, 0)
    assert [step["name"] for step in gg_runtime.explain_experts(*layer(k=0), device=H200).steps] == ["combine"]


def test_a_described_gpu_is_needed_on_the_cpu_and_arguments_are_checked():
    with pytest.raises(ValueError, match="explain_experts: the arrays are on the CPU.*device="):
        gg_runtime.explain_experts(*layer())
    x, w1, w2, weights, ids = layer()
    with pytest.raises(ValueError, match=r"w1 has 40 rows.*w1\.mT"):
        gg_runtime.explain_experts(x, w1.mT, w2, weights, ids, device=H200)
    with pytest.raises(ValueError, match='explain_experts: device lacks "multiprocessors"'):
        gg_runtime.explain_experts(x, w1, w2, weights, ids, device={"sm": 90})


def test_a_plan_computes_what_the_memory_holds_when_it_runs():
    arguments = layer()
    plan = gg_runtime.ExpertsPlan(*arguments)
    arguments[0].copy_(torch.randn(13, 24))
    arguments[4].copy_(torch.randint(-1, 6, (13, 3)))
    assert plan.run() is plan.out and (plan.variants, plan.launches) == ([], 0)
    assert repr(plan) == "<gg_runtime.ExpertsPlan launches=0 variants=[]>"
    assert_layer(plan.out, *arguments)


def test_a_plan_adds_to_its_output_once_a_run():
    arguments = layer()
    shared = torch.ones(13, 24).bfloat16()
    want = gg_runtime.fused_experts(*arguments, add=shared)
    plan = gg_runtime.ExpertsPlan(*arguments, add=shared, out=shared)
    assert torch.equal(plan.run(), want) and plan.out is shared


def test_a_plan_refuses_what_the_call_refuses():
    x, w1, w2, weights, ids = layer()
    with pytest.raises(ValueError, match=r"fused_experts: topk_ids has shape \[5, 3\]"):
        gg_runtime.ExpertsPlan(x, w1, w2, weights, ids[:5])
