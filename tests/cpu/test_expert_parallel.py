"""docs/expert_parallel.py in processes of its own, over gloo: the layer of one process, and the example as it is."""

import re

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from torchrun import torchrun  # noqa: E402


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_give_what_one_gives(processes):
    printed = torchrun("tests/expert_parallel_cases.py", processes=processes)
    assert len(re.findall(r"^passed: ", printed, re.MULTILINE)) == 11


@pytest.mark.parametrize("arguments", [(), ("--capacity",)], ids=["", "capacity"])
def test_the_example_learns(arguments):
    printed = torchrun("docs/expert_parallel.py", *arguments, processes=2)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0], losses
