"""grouped_mm goes to the device of its operands, whatever the current one is."""

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from threads import in_threads  # noqa: E402

ROWS, GROUPS = 70, 3
ENDS = [20, 20, 61]
SIZES = {"aligned": (128, 96), "odd": (47, 61)}  # N, K


def make(device, sizes):
    """A, B, offs, and their product."""
    n, k = sizes
    A = torch.randint(-2, 3, (ROWS, k), device=device).half()
    B = torch.randint(-2, 3, (GROUPS, n, k), device=device).half().mT
    return A, B, torch.tensor(ENDS, dtype=torch.int32, device=device), product(A, B, ENDS)


def product(A, B, ends):
    C = A.new_zeros(ROWS, B.shape[2])
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        C[start:end] = A[start:end] @ B[group]
    return C


def right(C, expected) -> bool:
    return C.device == expected.device and torch.equal(C, expected)


def both_sizes():
    return pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


@both_sizes()
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_operands_choose_the_device(device, current, sizes):
    A, B, offs, expected = make(f"cuda:{device}", sizes)
    out = torch.full_like(expected, float("nan"))
    with torch.cuda.device(current):
        assert right(gg_runtime.grouped_mm(A, B, offs=offs), expected)
        gg_runtime.grouped_mm(A, B, offs=offs, out=out)
        assert torch.cuda.current_device() == current
        assert torch.ones(1, device="cuda").device.index == current
    assert right(out, expected)


@both_sizes()
def test_devices_take_turns_in_one_thread(sizes):
    work = [make(f"cuda:{device}", sizes) for device in (0, 1)]
    for _ in range(20):
        results = [gg_runtime.grouped_mm(A, B, offs=offs) for A, B, offs, _ in work]
        assert all(right(C, expected) for C, (*_, expected) in zip(results, work))


@both_sizes()
def test_a_thread_for_each_device(sizes):
    def work(number):
        A, B, offs, expected = make(f"cuda:{number % 2}", sizes)
        for _ in range(100):
            assert right(gg_runtime.grouped_mm(A, B, offs=offs), expected)

    in_threads(work)


@both_sizes()
@pytest.mark.parametrize("current", [0, 1])
def test_a_graph_on_the_second_device_takes_the_offs_of_the_moment(current, sizes):
    A, B, offs, expected = make("cuda:1", sizes)
    C, graph = torch.empty_like(expected), torch.cuda.CUDAGraph()
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.graph(graph, stream=torch.cuda.Stream("cuda:1")), torch.cuda.device(current):
        gg_runtime.grouped_mm(A, B, offs=offs, out=C)
    for ends in (ENDS, [0, 0, 0], [70, 70, 70], [5, 64, 65], [1, 2, 70]):
        offs.copy_(torch.tensor(ends))
        C.fill_(float("nan"))
        with torch.cuda.device(1):
            graph.replay()
        assert right(C, product(A, B, ends)), ends


@pytest.mark.parametrize("name", ["mat_b", "offs", "bias", "out"])
def test_an_operand_on_another_device_is_refused(name):
    A, B, offs, C = make("cuda:0", SIZES["aligned"])
    operands = {"mat_a": A, "mat_b": B, "offs": offs, "bias": B[:, 0].contiguous(), "out": torch.full_like(C, -7)}
    operands[name] = operands[name].to("cuda:1")
    with pytest.raises(ValueError, match=f"grouped_mm: {name} is on cuda:1 but mat_a is on cuda:0"):
        gg_runtime.grouped_mm(**operands)
    assert bool((operands["out"] == -7).all())
