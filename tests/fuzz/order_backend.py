"""What a machine does, against tests/faults/fake_cuda.c: nothing is computed, every call is recorded in order.

Runs in a process of its own, where `torch` is the stand-in of tests/faults and libcuda.so.1 the fake driver.
"""

import ctypes
import itertools
import json
import threading
from contextlib import contextmanager
from zlib import crc32

import torch  # the stand-in

import gg_runtime
from arrays import FULL_NAMES, element_bytes
from fuzz import layouts, order_training
from fuzz.caching import Caching
from fuzz.machine import Machine, Wrong
from fuzz.problems import STREAMS

assert hasattr(torch, "allocations"), "this is for the stand-in of torch"


def dtype_of(name: str):
    return getattr(torch, FULL_NAMES[name])


class FakeDriver:
    """libcuda.so.1 as the library sees it, and its helpers."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def note(self, **facts) -> None:
        self.cuda.fake_note(json.dumps(facts).encode())

    def __getattr__(self, name: str):
        function = getattr(self.cuda, name)

        def call(*values):
            code = function(*(ctypes.c_void_p(value) if value > 99 else value for value in values))
            if name.startswith("cu") and code:
                raise Wrong(f"{name} answered {code}")
            return code

        return call


class Event:
    def __init__(self, driver: FakeDriver, stream: int):
        self.driver, self.handle = driver, ctypes.c_void_p()
        driver.cuda.cuEventCreate(ctypes.byref(self.handle), 2)
        driver.cuEventRecord(self.handle.value, stream)

    def __del__(self):
        self.driver.cuda.cuEventDestroy_v2(self.handle)


class CurrentStreams(threading.local):
    """Of each device, in each thread: what `torch.cuda.current_stream` tells."""

    def __init__(self):
        self.of = {}

    def __getitem__(self, device: int) -> int:
        return self.of.get(device, 0)


class Problem:
    def __init__(self, spec: dict):
        self.spec, self.kind, self.device, self.stream = spec, spec["kind"], spec["device"], spec["stream"]
        self.used, self.holders, self.variants = None, 0, {}
        A, B, in_bytes, C, out_bytes = layouts.layouts(spec)
        memory = [torch.allocated(self.device, size) for size in (in_bytes, out_bytes)]
        stacks = zip((A, B, C), (memory[0], memory[0], memory[1]), (spec["dtype"], spec["dtype"], spec["out"]))
        self.stacks = [[(stack, block, dtype_of(dtype)) for stack in part] for part, block, dtype in stacks]
        self.keywords = {"out_dtype": dtype_of(spec["out"])} if spec["dtype"] == "e4m3" else {}
        self.version = 0
        {"list": self.of_list, "ragged": self.of_rows, "layer": self.of_layer}.get(self.kind, self.of_other)(spec)
        self.pairs = [[a.address, b.address] for a, b in zip(*self.operands)] if self.kind == "list" else None

    def of_list(self, spec: dict) -> None:
        A, B, C = ([self.matrix(*part[number], member) for number, member in layouts.places(spec)]
                   for part in self.stacks)  # fmt: skip
        self.operands, self.out = (A, B), C
        for name, shapes in zip(("scale_a", "scale_b"), layouts.list_scale_shapes(spec)):
            self.keywords[name] = [
                A[0].new_empty_strided(shapes[number], order_training.row_major(shapes[number]), torch.float32)
                for number, _ in layouts.places(spec)
            ]

    def of_rows(self, spec: dict) -> None:
        (a,), (b,), (c,) = self.stacks
        mat_b = self.matrices(*b)
        self.operands, self.out = (self.matrix(*a, 0), mat_b), [self.matrix(*c, 0)]
        self.keywords["offs"] = mat_b.new_empty_strided((spec["experts"],), (1,), torch.int32)
        if spec["bias"]:
            shape = spec["experts"], spec["n"]
            self.keywords["bias"] = mat_b.new_empty_strided(shape, (spec["n"], 1), dtype_of(spec["out"]))
        self.keywords |= self.scales(mat_b)

    def scales(self, like) -> dict:
        made = [
            like.new_empty_strided(shape, order_training.row_major(shape), torch.float32)
            for shape in layouts.scale_shapes(self.spec)
        ]
        return dict(zip(("scale_a", "scale_b"), made))

    def of_other(self, spec: dict) -> None:
        (a,), (b,), (c,) = self.stacks
        mat_a, mat_b, out = (
            self.matrices(*part) if part[0].count > 1 or spec["kind"] in whole else self.matrix(*part, 0)
            for part, whole in ((a, ("ragged_n", "stack")), (b, ("stack",)), (c, ("ragged_k", "stack")))
        )
        self.operands, self.out = (mat_a, mat_b), [out]

        def vector(size: int, dtype):
            return mat_b.new_empty_strided((size,), (1,), dtype)

        if spec["kind"] != "stack" or spec["masked"]:
            name = "counts" if spec["kind"] == "stack" else "offs"
            self.keywords[name] = vector(spec["experts"], torch.int32)
        if spec.get("bias"):
            shape = spec["experts"], spec["n"]
            self.keywords["bias"] = mat_b.new_empty_strided(shape, (spec["n"], 1), dtype_of(spec["out"]))
        self.keywords |= self.scales(mat_b)
        if spec["out"] != spec["dtype"]:
            self.keywords["out_dtype"] = dtype_of(spec["out"])
        if spec.get("index"):
            self.keywords |= dict.fromkeys(
                (f"{name}_index" for name in spec["index"]), vector(spec["rows"], torch.int32)
            )
        if "k_alignment" in spec:
            self.keywords["k_alignment"] = spec["k_alignment"]
        for name, neutral in (("alpha", 1), ("beta", 0)):
            if spec.get(name, neutral) != neutral:
                self.keywords[name] = vector(1, torch.float32) if spec["on_device"] else spec[name]

    def of_layer(self, spec: dict) -> None:
        (a,), stacks, (c,) = self.stacks
        x, self.out = self.matrix(*a, 0), [self.matrix(*c, 0)]
        slots = spec["rows"], spec["k"]
        weights, ids = (x.new_empty_strided(slots, (spec["k"], 1), dtype) for dtype in (torch.float32, torch.int32))
        self.operands = x, *(self.matrices(*part) for part in stacks), weights, ids
        self.keywords = layouts.layer_keywords(spec)
        self.mains = [
            x.new_empty_strided(weight.shape, order_training.row_major(weight.shape), torch.float32)
            for weight in self.operands[1:3] if spec.get("main")
        ]  # fmt: skip
        if spec["bias"]:
            for bias, columns in (("b1", layouts.up_columns(spec)), ("b2", spec["hidden"])):
                self.keywords[bias] = x.new_empty_strided((spec["experts"], columns), (columns, 1))

    def matrices(self, stack, block, dtype):
        """All of a stack, as one array."""
        address, owner = block
        start = address + stack.start * element_bytes(dtype)
        shape, strides = (stack.count, *stack.shape), (stack.pitch, *stack.strides)
        made = torch.Tensor(*shape, strides=strides, address=start, dtype=dtype, device=self.device)
        made.owner = owner
        return made

    def matrix(self, stack, block, dtype, member: int):
        address, owner = block
        start = address + (stack.start + member * stack.pitch) * element_bytes(dtype)
        made = torch.Tensor(*stack.shape, strides=stack.strides, address=start, dtype=dtype, device=self.device)
        made.owner = owner
        return made


class OrderBackend:
    captures = itertools.count(1)
    device = 0  # the current one

    def __init__(self, number: int = 0, devices: int = 1):
        self.driver, self.devices, self.number = FakeDriver(), devices, number
        self.workspaces = {}  # of each stream
        self.streams = [[0x1000 * (d + 1) + 0x100 * number + s for s in range(STREAMS)] for d in range(devices)]
        for device, streams in enumerate(self.streams):
            for stream in streams:
                self.driver.fake_set_stream_context(stream, device)
        if number == 0:
            torch.cuda.streams = CurrentStreams()
            torch.allocator = Caching(self.driver.note, torch.cuda.streams.__getitem__)

    def begin_step(self, number: int, action: dict) -> None:
        self.driver.note(call="fake_step", step=number, action=action["do"])
        # Sometimes all work is done by the time that the library asks, sometimes nothing.
        self.driver.fake_events_are_ready(int(crc32(f"{number} {action['do']}".encode()) % 3 == 0))

    @contextmanager
    def on(self, device: int, stream: int):
        before = dict(torch.cuda.streams.of), self.device
        torch.cuda.streams.of[device] = self.streams[device][stream]
        self.device = device
        try:
            yield
        finally:
            torch.cuda.streams.of, self.device = before

    def current(self) -> int:
        return torch.cuda.streams[self.device]

    def mark(self) -> Event:
        return Event(self.driver, self.current())

    def await_event(self, event) -> None:
        if event is not None:
            self.driver.cuStreamWaitEvent(self.current(), event.handle.value, 0)

    def wait_for_host(self, event) -> None:
        self.driver.note(call="fake_synchronize")

    def settle(self) -> None:
        self.driver.note(call="fake_synchronize")

    def busy(self, cycles: int) -> None:
        pass

    def trash(self, size: int, byte: int) -> None:
        torch.allocated(self.device, size)

    def lane(self, number: int) -> "OrderBackend":
        return OrderBackend(number, self.devices)

    def at_once(self, works) -> None:
        """One after the other: the record tells which thread did what by order alone."""
        for work in works:
            work()

    def make(self, spec: dict) -> Problem:
        return Problem(spec)

    def fill(self, problem: Problem, data: dict) -> None:
        pass

    def poison(self, problem: Problem, outputs=None) -> None:
        pass

    def check(self, problem: Problem, outputs, key: tuple, times: int = 1) -> None:
        pass

    # Training.

    def forward(self, problem: Problem, action: dict) -> tuple[order_training.Recorded, list]:
        """What the backward needs besides the problem, and the outputs."""
        recorded = order_training.forward(self, problem, action)
        return recorded, recorded.outputs

    def drop_outputs(self, recorded: order_training.Recorded) -> None:
        recorded.outputs = []

    def make_room(self, recorded: order_training.Recorded) -> None:
        pass

    def before_backward(self, problem: Problem) -> None:
        pass

    def must_refuse(self, problem: Problem, recorded: order_training.Recorded) -> None:
        pass

    def backward(self, problem: Problem, recorded: order_training.Recorded, action: dict) -> list:
        return order_training.backward(self, problem, recorded)

    def poison_gradients(self, problem: Problem, gradients: list) -> None:
        pass

    def check_gradients(self, problem: Problem, recorded, gradients: list, seed: int) -> None:
        pass

    def give_back(self, problem: Problem) -> None:
        vars(problem).clear()

    def variant(self, problem: Problem, action: dict) -> str | None:
        family, given = action["family"], action["with_out"]
        if family is None:
            return None
        if (family, given) not in problem.variants:
            asked = {name: value for name, value in problem.keywords.items() if name != "bias"}
            out = {"out": problem.out if problem.kind == "list" else problem.out[0]} if given else {}
            explained = gg_runtime.explain(*problem.operands, **asked, **out)
            usable = [c["variant"] for c in explained.candidates if not c["ruled_out"]]
            prefixes = layouts.kernel_prefixes(problem.spec, family)
            problem.variants[family, given] = sorted(name for name in usable if name.startswith(prefixes))
        names = problem.variants[family, given]
        return names[action["pick"] % len(names)] if names else None

    def expect(self, problem: Problem, pairs=None) -> None:
        """What the next launch of a list is to multiply: the problem's matrices, or these."""
        addresses = problem.pairs if pairs is None else [[x.address, y.address] for x, y in pairs]
        has_scales = problem.kind == "list" and bool(problem.spec.get("scales"))
        self.driver.note(call="fake_expect", problem=problem.spec["p"], pairs=addresses, has_scales=has_scales)

    def workspace(self, problem: Problem):
        """The stream's own; of a graph, memory of its pool."""
        needed = layouts.workspace_bytes(problem.spec, gg_runtime.fused_experts_workspace)
        known = self.workspaces.get(self.current())
        captured = self.current() in torch.allocator.pools
        if captured or known is None or known.shape[0] < needed:
            known = problem.out[0].new_empty_strided((needed,), (1,), torch.uint8)
        if not captured:
            self.workspaces[self.current()] = known
        return known

    def call(self, problem: Problem, name: str | None, with_out: bool, pick: int = 0):
        out = problem.out if with_out else None
        if problem.kind == "layer":
            memory = {"workspace": self.workspace(problem)} if pick % 2 else {}
            memory |= {"out": problem.out[0] if with_out else None, "max_rows": layouts.max_rows(problem.spec, pick)}
            return [gg_runtime.fused_experts(*problem.operands, **problem.keywords, **memory)]
        if problem.kind == "list":
            if name:
                return self.plan(problem, name, with_out).run()
            return gg_runtime.group_gemm(*problem.operands, out=out, **problem.keywords)
        forced = {"variant": name} if name else {}
        out = problem.out[0] if with_out else None
        return [gg_runtime._C.grouped_mm(*problem.operands, out=out, **problem.keywords, **forced)]

    def plan(self, problem: Problem, name: str | None, with_out: bool, pick: int = 0):
        if problem.kind == "layer":
            out, limit = problem.out[0] if with_out else None, layouts.max_rows(problem.spec, pick)
            plan = gg_runtime.ExpertsPlan(*problem.operands, **problem.keywords, out=out, max_rows=limit)
            plan.out, plan.by_value = [plan.out], True
            return plan
        is_list = problem.kind == "list"
        out = None if not with_out else problem.out if is_list else problem.out[0]
        plan = gg_runtime.Plan(*problem.operands, out=out, **problem.keywords, variant=name)
        plan.out = plan.out if is_list else [plan.out]
        return plan

    def begin_capture(self, device: int, stream: int):
        number, handle = next(self.captures), self.streams[device][stream]
        self.driver.fake_begin_capture(handle, number)
        torch.allocator.pools[handle] = number
        return number, handle

    def end_capture(self, graph) -> None:
        _number, handle = graph
        del torch.allocator.pools[handle]
        if code := self.driver.fake_end_capture(handle):
            raise Wrong(f"the capture was broken: {code}")

    def replay(self, graph) -> None:
        self.driver.fake_replay(self.current(), graph[0])

    def destroy(self, graph) -> None:
        self.driver.fake_destroy_graph(graph[0])


class ThreadedBackend(OrderBackend):
    """Two walks in two threads at once, for sanitizers: the record is in no order that could be judged."""

    def lane(self, number: int) -> "ThreadedBackend":
        return ThreadedBackend(number, self.devices)

    def at_once(self, works) -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def run(actions: list[dict], backend) -> dict:
    """Carries out the actions; returns how much of what was done."""
    machine = Machine(backend)
    for number, action in enumerate(actions):
        machine.step(number, action)
    machine.close()
    return machine.counts


def run_file(path: str, devices: int = 2) -> dict:
    with open(path) as file:
        return run(json.load(file), OrderBackend(devices=devices))
