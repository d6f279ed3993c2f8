"""Times of a call: on the GPU under a graph, rested or hot, eager, and on the host. All are in microseconds."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]
REPEATS = 5
REST_SECONDS = 0.1
LONG_US = 100  # a kernel from which a rest is worth its time
REPLAY_US = 35_000  # that a graph of `enough` launches takes, where that many are not too many to capture
HOT_SECONDS = 0.6  # without a rest: shorter, and the ups and downs of the clock at the power limit do not even out
HOT_TURNS = 3
BUSY_CYCLES = 200_000_000  # 0.1 s at 1.98 GHz


class Timed(Protocol):
    """What can be run, so many launches at a time."""

    launches: int

    def run(self) -> None: ...


class Graph:
    """A CUDA graph of at least `least` launches, going round over the calls."""

    def __init__(self, calls: Sequence[Call], least: int = 20):
        self.calls = calls  # what they hold, a replay reads again
        self.launches = max(least, len(calls))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls[:2]:  # autotuning and workspaces come before the capture
                call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for index in range(self.launches):
                calls[index % len(calls)]()

    def run(self) -> None:
        self.graph.replay()

    def us(self, repeats: int = REPEATS) -> float:
        return interleaved_us([self], repeats)[0]


def interleaved_us(graphs: Sequence[Timed], repeats: int = REPEATS, rest_seconds: float = REST_SECONDS) -> list[float]:
    """A launch's time in each graph. They take turns, in an order drawn for each repeat, all after a rest if one is
    long: a GPU at its power limit slows down, by up to a fifth here, and whoever comes after a heavy kernel would pay
    for it."""
    longest = max((elapsed_us(graph.run) / graph.launches for graph in graphs), default=0)
    rest = rest_seconds if longest > LONG_US else 0
    times = [[] for _ in graphs]
    for _ in range(repeats):
        for i in in_any_order(graphs):
            times[i].append(rested_us(graphs[i], rest))
    return [statistics.median(column) for column in times]


def in_any_order(several: Sequence[object]) -> list[int]:
    """Their places, so that none is always behind the same one."""
    return random.sample(range(len(several)), len(several))


def rested_us(graph: Timed, rest: float) -> float:
    torch.cuda.synchronize()
    time.sleep(rest)
    return elapsed_us(graph.run) / graph.launches


def hot_us(graph: Timed, seconds: float = HOT_SECONDS) -> float:
    """A launch's time in steady work: see interleaved_hot_us."""
    return interleaved_hot_us([graph], seconds)[0]


def interleaved_hot_us(graphs: Sequence[Timed], seconds: float = HOT_SECONDS, turns: int = HOT_TURNS) -> list[float]:
    """A launch's time in each graph where the GPU gets no rest: the median of its turns. In each the graph is replayed
    for a third of `seconds` without a figure, then for `seconds` with one, and the next graph follows at once.

    The order is drawn anew for each turn. Four graphs of one kernel
    among eight then differ by 1 %. "What hot means" in benchmarks/NOTES.md has what other turns found.
    """
    replays = [max(1, round(seconds * 1e6 / elapsed_us(graph.run))) for graph in graphs]
    times = [[] for _ in graphs]
    for _ in range(turns):
        for i in in_any_order(graphs):
            times[i].append(_steady_us(graphs[i], replays[i]))
    return [statistics.median(column) for column in times]


def _steady_us(graph: Timed, replays: int) -> float:
    def work(count: int) -> None:
        for _ in range(count):
            graph.run()

    work(-(-replays // 3))
    return elapsed_us(lambda: work(replays)) / (replays * graph.launches)


def enough(call: Call, replay_us: float = REPLAY_US) -> int:
    """Launches for a graph, by the time of an eager one."""
    call()  # what is compiled or tuned just in time comes before
    return max(2, min(100, int(replay_us / elapsed_us(call))))


def elapsed_us(work: Call) -> float:
    """GPU time from before to after the work, on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def eager_us(calls: Sequence[Call], least: int = 20) -> float:
    rounds = -(-least // len(calls))

    def work():
        for _ in range(rounds):
            for call in calls:
                call()

    work()
    torch.cuda.synchronize()
    return statistics.median(elapsed_us(work) for _ in range(REPEATS)) / (rounds * len(calls))


def host_us(call: Call, calls: int = 50) -> float:
    """Time for a call to come back while the GPU is busy with something else, so that nothing is waited for."""
    return interleaved_host_us([call], calls)[0]


def interleaved_host_us(several: Sequence[Call], calls: int = 50, repeats: int = REPEATS) -> list[float]:
    """The same of several calls that take turns: a host's speed changes by a quarter from one second to the next."""
    for call in several:
        for _ in range(3):
            call()
    times = [[] for _ in several]
    for _ in range(repeats):
        for i in in_any_order(several):
            times[i].append(busy_host_us(several[i], calls))
    torch.cuda.synchronize()
    return [statistics.median(column) for column in times]


def busy_host_us(call: Call, calls: int) -> float:
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6
