"""Walks on the CPU, where the library multiplies by its reference path: the machine and its references are right."""

import pytest

torch = pytest.importorskip("torch")

from fuzz.actions import walk  # noqa: E402
from fuzz.cpu_backend import CpuBackend  # noqa: E402
from fuzz.machine import Machine, Wrong  # noqa: E402
from fuzz.scenarios import scenarios  # noqa: E402

STEPS = 100


@pytest.fixture(autouse=True)
def one_thread():
    """Small products: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def carry_out(actions) -> dict:
    """How much of what was done."""
    machine = Machine(CpuBackend())
    for number, action in enumerate(actions):
        machine.step(number, action)
    machine.close()
    return machine.counts


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_finds_nothing(seed):
    assert carry_out(walk(seed, STEPS))["problems"] > 0


@pytest.mark.parametrize(
    ("actions", "said"), [(s.actions, s.said) for s in scenarios().values()], ids=list(scenarios())
)
def test_a_planted_fault_is_found(actions, said):
    if said is None:
        carry_out(actions)
        return
    with pytest.raises(Wrong, match=said):
        carry_out(actions)
