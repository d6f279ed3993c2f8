"""Graphs that do the same work, beside each other: what each one wrote is checked, then all are timed in turns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from .peers import reason
from .timing import (
    HOT_SECONDS,
    REPEATS,
    REPLAY_US,
    Call,
    Graph,
    Timed,
    enough,
    interleaved_hot_us,
    interleaved_us,
)

Which = TypeVar("Which", bound=Timed)
Outputs = Callable[[], Iterable[torch.Tensor]]  # the memory that the last calls wrote


def poison(memory: torch.Tensor) -> None:
    """NaN, also where bytes are read as bfloat16; in integers a number that no result has."""
    if memory.is_floating_point():
        memory.fill_(float("nan"))
    else:
        memory.fill_(255 if memory.dtype == torch.uint8 else -7)


def error_of(graph: Timed, outputs: Outputs, check: Callable[[], float]) -> float:
    """The error of what the graph writes over poison. `check` raises where it is wrong."""
    for memory in outputs():
        poison(memory)
    graph.run()
    return check()


def checked(
    calls: Sequence[Call], outputs: Outputs, check: Callable[[], float], replay_us: float = REPLAY_US
) -> tuple[Graph, float]:
    """The calls' graph, and its error."""
    graph = Graph(calls, least=enough(calls[0], replay_us))
    return graph, error_of(graph, outputs, check)


def kept(call: Callable[[], torch.Tensor]) -> tuple[Call, Callable[[], list[torch.Tensor]]]:
    """For a call that makes its output: the last one is kept, else a graph gives its memory to the next."""
    last: list[torch.Tensor] = []

    def keep() -> None:
        last[:] = [call()]

    return keep, lambda: last


def right(makers: Mapping[str, Callable[[], tuple[Which, float]]]) -> tuple[dict[str, Which], dict[str, Any]]:
    """The graphs that are right, and a row with their "error" and why the others "failed". Those count as results."""
    graphs: dict[str, Which] = {}
    row: dict[str, Any] = {"failed": {}, "error": {}}
    for name, make in makers.items():
        try:
            graphs[name], row["error"][name] = make()
        except Exception as error:
            row["failed"][name] = reason(error)
    return graphs, row


def rested_and_hot(
    graphs: Mapping[str, Timed], repeats: int = REPEATS, hot_seconds: float = HOT_SECONDS
) -> dict[str, dict[str, float]]:
    """Microseconds of a launch of each: "us" on a GPU that rested, "hot_us" in steady work."""
    listed = list(graphs.values())
    return {
        "us": dict(zip(graphs, interleaved_us(listed, repeats))),
        "hot_us": dict(zip(graphs, interleaved_hot_us(listed, hot_seconds))),
    }


def measured(
    makers: Mapping[str, Callable[[], tuple[Timed, float]]], repeats: int = REPEATS, hot_seconds: float = HOT_SECONDS
) -> dict[str, Any]:
    """The row of `right` with the times of those that are."""
    graphs, row = right(makers)
    return row | rested_and_hot(graphs, repeats, hot_seconds)
