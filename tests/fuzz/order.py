"""Whether the driver was asked for things in an order that is right, whatever the GPU does in which moment.

Reads the calls that fake_cuda.c recorded. Work is ordered by streams, by events that were recorded and waited for, and
by what the host knew to be done; a graph is its captured work, once for each replay. From that follows, for all memory
that the library took from the framework's allocator, whether a launch may find there what it needs:

  - its list was uploaded, all of it, by work before it, and is the list of the tensors that it was called with;
  - nothing that is not ordered after it writes the memory again;
  - the workspace of a layer has no other user by then;
  - what a grouped product or a launch around it reads there was written before it, and nothing uses what it writes;
  - the memory is its own: given out before, by work order, and given back to no stream that may run ahead of it.
"""

import struct
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from aot.spec.records import (
    LIST_DESCRIPTORS,
    LIST_POINTERS,
    SCALED_LIST_DESCRIPTORS,
    SCALED_LIST_POINTERS,
    Record,
)
from faults.parameters import PackArguments, expanded, list_arguments, pack_arguments, read_descriptors, read_list
from fuzz.order_products import touched

# Entry points, and the records that they read: of lists with a scale each, or none, and of lists of scales.
LIST_KERNELS = {
    "hopper": (LIST_DESCRIPTORS, None),
    "hopper_scaled_list": (LIST_DESCRIPTORS, SCALED_LIST_DESCRIPTORS),
    "tma": (LIST_POINTERS, None),
    "basic": (LIST_POINTERS, None),
    "basic_scaled": (None, SCALED_LIST_POINTERS),
}
# Where a kernel of layers has an address in the workspace among its parameters: `token`, `out`, `y`.
WORKSPACE_ADDRESSES = {"route_place": 32, "gather": 32, "combine": 0}
Point = tuple  # (stream, how many things it had been asked by then)


class OutOfOrder(AssertionError):
    """The record has a place where the GPU may go wrong."""


class Clock(dict):
    """What is known to be done: how much of each stream."""

    def join(self, other: dict) -> None:
        for stream, ticks in other.items():
            if ticks > self.get(stream, 0):
                self[stream] = ticks

    def has(self, point: Point) -> bool:
        stream, ticks = point
        return self.get(stream, 0) >= ticks


@dataclass
class Upload:
    words: tuple
    point: Point


@dataclass
class Memory:
    """A block of the allocator's, as long as one owner has it."""

    address: int
    bytes: int
    stream: int
    pool: int
    live: bool = True
    given: Point | None = None  # the allocation's stream then: what came before may still use the block
    uploads: dict[int, Upload] = field(default_factory=dict)  # by address
    users: list[tuple[Point, str]] = field(default_factory=list)  # launches that read or write it
    writers: list[tuple[Point, str]] = field(default_factory=list)  # those that write it


@dataclass
class Captured:
    calls: list[dict] = field(default_factory=list)
    done: Clock = field(default_factory=Clock)  # behind the last replay: a graph does not overtake itself


class Order:
    """Takes the calls one by one; raises OutOfOrder."""

    def __init__(self):
        self.clocks: dict[int, Clock] = {}
        self.host = Clock()
        self.events: dict[int, Clock] = {}
        self.capturing: dict[int, int] = {}  # stream -> graph
        self.captured_events: dict[int, int] = {}  # event -> graph
        self.graphs: dict[int, Captured] = {}
        self.blocks: dict[int, Memory] = {}
        self.bases: list[int] = []
        self.expected, self.step, self.launches, self.checked, self.in_workspaces = None, "", 0, 0, 0
        self.products = 0

    def check(self, calls: list[dict]) -> "Order":
        for number, call in enumerate(calls):
            try:
                self.take(call)
            except OutOfOrder as error:
                raise OutOfOrder(f"call {number}, {self.step}: {error}") from None
        return self

    def take(self, call: dict) -> None:
        handler = getattr(self, "on_" + call["call"], None)
        if handler:
            handler(call)
        elif call["call"] in ("cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent"):
            self.join_capture(call)
            if call["stream"] in self.capturing:
                self.keep(self.capturing[call["stream"]], call)
            else:
                self.carry_out(call, call["stream"], self.events)

    # The walk's own lines.

    def on_fake_step(self, call: dict) -> None:
        self.step = f"step {call['step']}, {call['action']}"

    def on_fake_expect(self, call: dict) -> None:
        self.expected = call

    def on_fake_synchronize(self, call: dict) -> None:
        for clock in self.clocks.values():
            self.host.join(clock)
        for graph in self.graphs.values():
            self.host.join(graph.done)

    def on_fake_allocate(self, call: dict) -> None:
        if call["address"] not in self.blocks:
            self.bases.append(call["address"])
            self.bases.sort()
        memory = Memory(call["address"], call["bytes"], call["stream"], call["pool"])
        self.blocks[call["address"]] = memory
        if call["pool"]:
            self.keep(call["pool"], call)
        else:
            memory.given = call["stream"], self.clock(call["stream"]).get(call["stream"], 0)

    def on_fake_free(self, call: dict) -> None:
        if not call["pool"]:
            self.give_back(call["address"], self.clock(call["stream"]))
        elif call["pool"] in self.capturing.values():
            self.keep(call["pool"], call)
        # Else nobody gets it: a graph's pool is its own until it goes, and the machine waits for the graph then.

    def on_cuEventQuery(self, call: dict) -> None:
        if call["answer"] == 0:
            self.host.join(self.events.get(call["event"], {}))
        elif call["answer"] != 600:
            raise OutOfOrder(f"cuEventQuery was answered with {call['answer']}")

    def on_cuStreamSynchronize(self, call: dict) -> None:
        self.host.join(self.clock(call["stream"]))

    def on_cuEventSynchronize(self, call: dict) -> None:
        self.host.join(self.events.get(call["event"], {}))

    # Captures.

    def keep(self, graph: int, call: dict) -> None:
        self.graphs[graph].calls.append(call | {"expected": self.expected})

    def join_capture(self, call: dict) -> None:
        if call.get("answer"):
            raise OutOfOrder(f"{call['call']} was answered with {call['answer']}")
        if call["call"] == "cuEventRecord":
            self.captured_events.pop(call["event"], None)
            if call["stream"] in self.capturing and not call["flags"]:
                self.captured_events[call["event"]] = self.capturing[call["stream"]]
        if call["call"] == "cuStreamWaitEvent" and not call["flags"] and call["event"] in self.captured_events:
            self.capturing[call["stream"]] = self.captured_events[call["event"]]

    def on_fake_begin_capture(self, call: dict) -> None:
        self.capturing[call["stream"]] = call["id"]
        self.graphs[call["id"]] = Captured()

    def on_fake_end_capture(self, call: dict) -> None:
        if call["answer"]:
            raise OutOfOrder(f"the capture was broken: {call['answer']}")
        self.capturing = {stream: graph for stream, graph in self.capturing.items() if graph != call["id"]}

    def on_fake_replay(self, call: dict) -> None:
        graph, stream = self.graphs[call["id"]], call["stream"]
        if stream in self.capturing:
            raise OutOfOrder("a graph was launched on a stream that is captured")
        start = self.clock(stream)
        start.join(graph.done)
        inner: dict[int, Clock] = {}
        for captured in graph.calls:
            self.replay(captured, call["id"], start, inner)
        for clock in inner.values():
            start.join(clock)
        graph.done = Clock(start)

    def replay(self, call: dict, graph: int, start: Clock, local_events: dict) -> None:
        """One call of a graph, on a stream that only the graph has; its own events are in `local_events`."""
        stream = (graph, call["stream"])
        if stream not in local_events:
            self.clocks[stream] = local_events[stream] = Clock(start)
        if call["call"] == "fake_allocate":
            self.blocks[call["address"]].uploads.clear()
        elif call["call"] == "fake_free":
            self.give_back(call["address"], self.clocks[stream], keep=True)
        else:
            external = call.get("flags", 0)
            self.carry_out(call, stream, self.events if external else local_events)

    # Work.

    def clock(self, stream) -> Clock:
        clock = self.clocks.setdefault(stream, Clock())
        clock.join(self.host)
        return clock

    def carry_out(self, call: dict, stream, events: dict) -> None:
        clock = self.clock(stream)
        if call["call"] == "cuStreamWaitEvent":
            clock.join(events.get(call["event"], {}))
            return
        clock[stream] = clock.get(stream, 0) + 1
        if call["call"] == "cuEventRecord":
            events[call["event"]] = Clock(clock)
            return
        self.launches += 1
        if call["symbol"] == "pack":
            self.upload(call, clock, (stream, clock[stream]))
        elif call["symbol"] in LIST_KERNELS:
            self.launch(call, clock, (stream, clock[stream]))
        elif call["symbol"] in WORKSPACE_ADDRESSES:
            self.in_workspace(call, clock, (stream, clock[stream]))
        self.product(call, clock, (stream, clock[stream]))

    def memory_at(self, address: int, what: str) -> Memory:
        place = bisect_right(self.bases, address)
        memory = self.blocks.get(self.bases[place - 1]) if place else None
        if not memory or address >= memory.address + memory.bytes:
            raise OutOfOrder(f"{what} is at {address:#x}, which nobody allocated")
        return memory

    def owned(self, address: int, what: str, stream) -> Memory:
        memory = self.memory_at(address, what)
        in_own_graph = isinstance(stream, tuple) and stream[0] == memory.pool
        if not memory.live and not in_own_graph:
            raise OutOfOrder(f"{what} is in memory that was freed")
        return memory

    def writable(self, memory: Memory, what: str, clock: Clock) -> None:
        if memory.given and not clock.has(memory.given):
            raise OutOfOrder(
                f"{what} is in memory that was allocated on stream {memory.stream:#x}; work from before may still "
                "use it"
            )

    def give_back(self, address: int, clock: Clock, keep: bool = False) -> None:
        memory = self.blocks[address]
        for point, what in memory.users:
            if not clock.has(point):
                raise OutOfOrder(
                    f"memory was given back to stream {memory.stream:#x} while {what} on stream {name(point[0])} may "
                    "still use it"
                )
        memory.users.clear()
        memory.writers.clear()
        memory.uploads.clear()
        memory.live = keep and memory.live

    def upload(self, call: dict, clock: Clock, point: Point) -> None:
        packed = pack_arguments(call)
        for start, words in written(packed):
            self.write(start, words, clock, point)

    def write(self, start: int, words: tuple, clock: Clock, point: Point) -> None:
        memory = self.owned(start, "the destination of an upload", point[0])
        self.writable(memory, "the destination of an upload", clock)
        end = start + 8 * len(words)
        if end > memory.address + memory.bytes:
            raise OutOfOrder(f"an upload ends {end - memory.address - memory.bytes} bytes past its memory")
        for used, what in memory.users:
            if not clock.has(used):
                raise OutOfOrder(f"a list was written again while {what} on stream {name(used[0])} may still read it")
        for other, before in list(memory.uploads.items()):
            if other < end and start < other + 8 * len(before.words):
                del memory.uploads[other]
        memory.uploads[start] = Upload(words, point)

    def launch(self, call: dict, clock: Clock, point: Point) -> None:
        arguments, kernel = list_arguments(call), call["symbol"]
        if arguments.problems:
            memory = self.owned(arguments.problems, f"the list of {kernel}", point[0])
            expected, words = call.get("expected") or self.expected, ()
            record = LIST_KERNELS[kernel][expected["has_scales"]]
            for count, unread in list_words(record, arguments.groups):
                start = arguments.problems + 8 * len(words)
                words += self.words(memory, start, count, clock, kernel) + (0,) * unread
            self.use(memory, point, kernel, clock)
            self.compare(expected, words, arguments.groups, kernel, record)
        if arguments.global_scratch:
            memory = self.owned(arguments.global_scratch, f"the scratch memory of {kernel}", point[0])
            self.writable(memory, f"the scratch memory of {kernel}", clock)
            self.use(memory, point, kernel, clock)

    def in_workspace(self, call: dict, clock: Clock, point: Point) -> None:
        """A kernel that only layers launch here: its workspace is the stream's own, or was allocated on it."""
        place, what = WORKSPACE_ADDRESSES[call["symbol"]], f"the workspace of {call['symbol']}"
        (address,) = struct.unpack_from("@Q", bytes.fromhex(call["parameters"]), place)
        memory = self.owned(address, what, point[0])
        self.writable(memory, what, clock)
        for used, other in memory.users:
            if not clock.has(used):
                raise OutOfOrder(f"{what} is written while {other} on stream {name(used[0])} may still use it")
        self.use(memory, point, call["symbol"], clock)
        self.in_workspaces += 1

    def product(self, call: dict, clock: Clock, point: Point) -> None:
        """A grouped product, or a launch around it: its operands and outputs, and memory between the launches."""
        kernel, (reads, writes) = call["symbol"], touched(call)
        for address in reads:
            memory = self.owned(address, f"what {kernel} reads", point[0])
            for used, other in memory.writers:
                if not clock.has(used):
                    raise OutOfOrder(
                        f"{kernel} reads what {other} on stream {name(used[0])} writes; nothing orders it before"
                    )
            self.use(memory, point, kernel, clock)
        for address in writes:
            memory = self.owned(address, f"what {kernel} writes", point[0])
            self.writable(memory, f"what {kernel} writes", clock)
            for used, other in memory.users:
                if used != point and not clock.has(used):
                    raise OutOfOrder(f"{kernel} writes what {other} on stream {name(used[0])} may still use")
            self.use(memory, point, kernel, clock)
            memory.writers = [writer for writer in memory.writers if not clock.has(writer[0])] + [(point, kernel)]
        self.products += bool(writes)

    def use(self, memory: Memory, point: Point, kernel: str, clock: Clock) -> None:
        memory.users = [user for user in memory.users if not clock.has(user[0])] + [(point, kernel)]

    def words(self, memory: Memory, address: int, count: int, clock: Clock, kernel: str) -> tuple:
        """What the launch finds in its list: all of it written, by work before it."""
        found, end = [], address + 8 * count
        while address < end:
            upload = memory.uploads.get(address)
            if not upload:
                raise OutOfOrder(f"{kernel} reads a list that was not uploaded, {end - address} bytes of it")
            if not clock.has(upload.point):
                raise OutOfOrder(
                    f"{kernel} reads a list that stream {name(upload.point[0])} uploads; nothing orders it before"
                )
            found += upload.words
            address += 8 * len(upload.words)
        return tuple(found[:count])

    def compare(self, expected: dict, words: tuple, groups: int, kernel: str, record: Record) -> None:
        self.checked += 1
        if kernel.startswith("hopper"):
            _, records = read_descriptors(words, groups, record)
            found = [(record["a"]["address"], record["b"]["address"]) for record in records]
        else:
            _, records = read_list(words, groups, record)
            found = [(record["a"], record["b"]) for record in records]
        # A kernel may take C^T = B^T A^T; a list that is divided has a part of the pairs in each launch.
        wanted = Counter(tuple(sorted(pair)) for pair in expected["pairs"] or ())
        if Counter(tuple(sorted(pair)) for pair in found) - wanted:
            raise OutOfOrder(f"{kernel} reads a list of other matrices than those of problem {expected['problem']}")


def name(stream) -> str:
    return f"{stream[1]:#x} in graph {stream[0]}" if isinstance(stream, tuple) else f"{stream:#x}"


def list_words(record: Record, groups: int) -> list[tuple[int, int]]:
    """Ends, then records: how many words of them, and how many behind them that nobody writes or reads."""
    described = any(field.kind == "descriptor" for field in record.fields)
    return [(groups, -groups % 8 if described else 0), (record.words * groups, 0)]


def written(packed: PackArguments) -> list[tuple[int, tuple]]:
    """Where a launch of `pack` writes, and what: ends that follow each other, and records that do."""
    memory = dict(expanded(packed))
    counts = {packed.ends: packed.groups, packed.records: packed.groups * packed.record_words}
    return [(start, tuple(memory[start + 8 * i] for i in range(count))) for start, count in counts.items()]
