"""docs/expert_parallel.py over NCCL, a process on each GPU: the layer of one process, graphs, the host's waits."""

import re

import pytest

torch = pytest.importorskip("torch")

from torchrun import torchrun  # noqa: E402


def on_gpus(script, *arguments, processes):
    if torch.cuda.device_count() < processes:
        pytest.skip(f"torch sees {torch.cuda.device_count()} CUDA devices, {processes} are needed")
    return torchrun(script, *arguments, processes=processes)


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_gpus_give_what_one_gives(processes):
    printed = on_gpus("tests/expert_parallel_cases.py", processes=processes)
    assert len(re.findall(r"^passed: ", printed, re.MULTILINE)) == 11


@pytest.mark.parametrize("processes", [2, 4, 8])
@pytest.mark.parametrize("case", ["the_host_waits_once_or_never", "a_graph_takes_the_routing_of_the_moment"])
def test_a_fixed_capacity_needs_no_host(case, processes):
    assert f"passed: {case}" in on_gpus("tests/expert_parallel_cases.py", case, processes=processes)


@pytest.mark.parametrize("arguments", [(), ("--capacity",)], ids=["", "capacity"])
def test_the_example_learns(arguments):
    printed = on_gpus("docs/expert_parallel.py", *arguments, processes=2)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0], losses
