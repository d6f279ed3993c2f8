"""What a machine does with torch on a GPU: streams, events and graphs, besides what TensorBackend has."""

import gc
from contextlib import contextmanager

import torch

from fuzz.problems import STREAMS
from fuzz.tensor_backend import TensorBackend


def device_count() -> int:
    return min(torch.cuda.device_count(), 2)


def lasting_graph(device: int) -> torch.cuda.CUDAGraph:
    """A graph that is never replayed and never goes.

    torch 2.11 fills two numbers of its random generator at each replay, on the stream of the replay. It
    allocates them for the first graph, on the stream that is current then, and frees them with the last: without a
    graph that lasts, a replay writes them over what another stream still reads there.
    """
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    return graph


class CudaBackend(TensorBackend):
    """One lane, with streams of its own."""

    lasting_graphs: dict[int, torch.cuda.CUDAGraph] = {}
    lanes: dict[int, "CudaBackend"] = {}

    def __init__(self, number: int = 0):
        devices = range(device_count())
        super().__init__([torch.device("cuda", device) for device in devices])
        for device in devices:
            if device not in self.lasting_graphs:
                self.lasting_graphs[device] = lasting_graph(device)
        torch.cuda.synchronize()
        self.streams = [[torch.cuda.Stream(device) for _ in range(STREAMS)] for device in devices]
        for device in devices:
            torch.cuda.synchronize(device)
        self.lanes[number] = self

    # Streams.

    @contextmanager
    def on(self, device: int, stream: int):
        with torch.cuda.stream(self.streams[device][stream]):
            yield

    def mark(self):
        event = torch.cuda.Event()
        event.record()
        return event

    def await_event(self, event) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def wait_for_host(self, event) -> None:
        if event is not None:
            event.synchronize()

    def busy(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)

    def trash(self, size: int, byte: int) -> None:
        torch.full((size,), byte, dtype=torch.uint8, device="cuda")

    def synchronize(self) -> None:
        for streams in self.streams:
            for stream in streams:
                stream.synchronize()

    def current_stream(self) -> tuple[int, bool]:
        """Its handle, and whether it is captured."""
        return torch.cuda.current_stream().cuda_stream, torch.cuda.is_current_stream_capturing()

    def lane(self, number: int) -> "CudaBackend":
        lane = self.lanes.get(number) or CudaBackend(number)
        lane.parent_step = f"{self.now}, thread {number}: "
        return lane

    # Graphs.

    def begin_capture(self, device: int, stream: int):
        gc.disable()  # what it may find, such as another graph, must not be destroyed during a capture
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        return graph

    def end_capture(self, graph) -> None:
        try:
            graph.capture_end()
        finally:
            gc.enable()

    def replay(self, graph) -> None:
        graph.replay()

    def destroy(self, graph) -> None:
        graph.reset()
