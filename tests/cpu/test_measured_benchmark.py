"""What the benchmarks check before they time: outputs over poison, and failures that count as results."""

import math

import pytest

torch = pytest.importorskip("torch")

from benchmarks.measured import error_of, kept, poison, right  # noqa: E402


class Writing:
    """What a Graph is, of a call on the CPU."""

    launches = 1

    def __init__(self, run):
        self.run = run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int32])
def test_no_result_is_like_poison(dtype):
    memory = torch.zeros(8, dtype=dtype)
    poison(memory)
    read = memory.view(torch.bfloat16) if dtype == torch.uint8 else memory
    assert read.isnan().all() if read.is_floating_point() else (read < 0).all()


def test_what_is_not_written_is_wrong():
    out = torch.zeros(4)

    def check():
        return float(out.abs().max())

    assert error_of(Writing(lambda: out.zero_()), lambda: [out], check) == 0
    assert math.isnan(error_of(Writing(lambda: out[:3].zero_()), lambda: [out], check))


def test_of_a_call_that_makes_its_output_the_last_one_is_checked():
    made = iter([torch.ones(2), torch.full((2,), 2.0)])
    call, outputs = kept(lambda: next(made))
    call()
    call()
    assert [float(output[0]) for output in outputs()] == [2.0]


def test_who_fails_is_a_result_and_the_others_count():
    def fails():
        raise ArithmeticError("relative error 1.0e+00")

    graph = Writing(lambda: None)
    graphs, row = right({"ours": lambda: (graph, 1e-3), "theirs": fails})
    assert graphs == {"ours": graph}
    assert row == {"error": {"ours": 1e-3}, "failed": {"theirs": "ArithmeticError: relative error 1.0e+00"}}
