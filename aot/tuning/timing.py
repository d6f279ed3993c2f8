"""A launch's time on the GPU, in microseconds: CUDA graphs between events, kernels in turns."""

import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]
DEVICE = "cuda"
LEAST_LAUNCHES, MOST_LAUNCHES = 2, 40  # of a graph
REPLAY_US = 2000  # that a graph should take
REPEATS = 3
NEAR = 1.15  # times the best first replay: what takes more is not timed again
HOT_TFLOPS = 300  # a GPU that computes faster than that may reach its power limit and slow down
REST = 3  # times as long as a replay it then rests, or kernels that take little energy would win


def elapsed_us(work: Call) -> float:
    """GPU time from before to after the work, on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


class Replay:
    """A graph of launches that takes about REPLAY_US and goes round over all calls."""

    def __init__(self, calls: list[Call], stream: torch.cuda.Stream):
        self.calls = calls  # what they hold, a replay reads again
        wanted = int(REPLAY_US / elapsed_us(calls[0]))
        self.launches = max(LEAST_LAUNCHES, len(calls), min(MOST_LAUNCHES, wanted))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):  # torch.cuda.graph gives all cached memory back first, which takes longer
            self.graph.capture_begin()
            for index in range(self.launches):
                calls[index % len(calls)]()
            self.graph.capture_end()

    def us(self, rest: float = 0) -> float:
        us = elapsed_us(self.graph.replay)
        time.sleep(rest * us / 1e6)
        return us / self.launches


def race(replays: dict[str, Replay], flop: int) -> dict[str, float]:
    """A launch's time in each graph: the first replay; where it comes near the best, the median of those that follow.

    The graphs take turns, so that each finds the GPU as warm as the others do.
    """
    first = {name: replay.us() for name, replay in replays.items()}
    best = min(first.values())
    near = [name for name in replays if first[name] < NEAR * best]
    rest = REST if flop / best / 1e6 > HOT_TFLOPS else 0
    rounds = [[replays[name].us(rest) for name in near] for _ in range(REPEATS)]
    return first | {name: statistics.median(column) for name, column in zip(near, zip(*rounds))}


def copies_for(bytes_moved: int, passes: int, most: int) -> int:
    """Copies of a product's memory, so that a pass over them leaves nothing of the first in L2."""
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(1, min(most, -(-passes * l2 // bytes_moved)))
