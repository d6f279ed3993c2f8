"""What a machine does with torch on the CPU, where the library multiplies by its reference path.

There are no streams: work is done when it is asked for. A graph is the calls of its capture; a replay repeats them into
the same outputs.
"""

from contextlib import contextmanager

import torch

from fuzz.blocks import Problem
from fuzz.tensor_backend import TensorBackend


class CpuBackend(TensorBackend):
    has_variants = False

    def __init__(self, number: int = 0):
        super().__init__([torch.device("cpu")])
        self.number, self.captured = number, None

    def may_have_failed(self, failed) -> bool:
        return bool(failed)

    # Streams.

    @contextmanager
    def on(self, device: int, stream: int):
        yield

    def mark(self) -> None:
        return None

    def await_event(self, event) -> None:
        pass

    def wait_for_host(self, event) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def current_stream(self) -> tuple[int, bool]:
        return 0, self.captured is not None

    def busy(self, cycles: int) -> None:
        pass

    def trash(self, size: int, byte: int) -> None:
        pass

    def lane(self, number: int) -> "CpuBackend":
        lane = CpuBackend(number)
        lane.parent_step = f"{self.now}, thread {number}: "
        return lane

    # Graphs.

    def begin_capture(self, device: int, stream: int) -> list:
        self.captured = []
        return self.captured

    def end_capture(self, graph: list) -> None:
        self.captured = None

    def replay(self, graph: list) -> None:
        for repeat in graph:
            repeat()

    def destroy(self, graph: list) -> None:
        graph.clear()

    def repeated(self, made: list, make) -> list:
        """`made`, which each replay of the capture that is going on makes anew."""

        def repeat() -> None:
            for tensor, value in zip(made, make()):
                if tensor is not None and tensor is not value:
                    tensor.copy_(value)

        if self.captured is not None:
            self.captured.append(repeat)
        return made

    def call(self, problem: Problem, name: str | None, with_out: bool, pick: int = 0):
        call = super().call
        return self.repeated(call(problem, name, with_out, pick), lambda: call(problem, name, with_out, pick))

    def plan(self, problem: Problem, name: str | None, with_out: bool, pick: int = 0):
        plan = super().plan(problem, name, with_out, pick)
        run, plan.by_value = plan.run, True

        def run_and_note() -> None:
            run()
            if self.captured is not None:
                self.captured.append(run)

        plan.run = run_and_note
        return plan

    def forward(self, problem: Problem, action: dict):
        """In a capture it is not recorded by itself: `backward` repeats both."""
        self.last_forward = action
        return super().forward(problem, action)

    def backward(self, problem: Problem, recorded, action: dict) -> list:
        forward, backward, recorded_as = super().forward, super().backward, self.last_forward

        def repeat() -> list:
            again, outputs = forward(problem, recorded_as)
            for kept, output in zip(recorded.outputs_made, outputs):
                kept.data.copy_(output.data)
            return backward(problem, again, action)

        return self.repeated(backward(problem, recorded, action), repeat)
