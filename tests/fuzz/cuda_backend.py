"""What a machine does, on a GPU with torch: every result is compared on the device, the host looks when it settles."""

import gc
import threading
from contextlib import contextmanager

import numpy
import torch

import gg_runtime
from fuzz import layouts, products
from fuzz.actions import STREAMS
from fuzz.machine import Wrong

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "fp32": torch.float32}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
CANARY = 0xA5
MOST_CHECKS = 1 << 14  # between two looks of the host


def device_count() -> int:
    return min(torch.cuda.device_count(), 2)


def place(device: int) -> torch.device:
    return torch.device("cuda", device)


class Block:
    """Memory of the caching allocator with matrices in it; a mask tells their elements from all else."""

    def __init__(self, size: int, dtype, stacks, device: int):
        self.bytes = torch.full((size,), CANARY, dtype=torch.uint8, device=place(device))
        self.elements = self.bytes.view(dtype)
        self.bits = self.bytes.view(BITS[dtype.itemsize])
        self.mask = torch.zeros(self.bits.numel(), dtype=torch.bool, device=self.bytes.device)
        for stack in stacks:
            self.strided(self.mask, stack).fill_(True)
        self.stacks = [self.strided(self.elements, stack) for stack in stacks]
        self.canary = int.from_bytes(bytes([CANARY] * dtype.itemsize), "little", signed=dtype.itemsize > 1)
        self.nan = -1 if dtype.itemsize > 1 else 255  # ones are a NaN in every dtype here

    @staticmethod
    def strided(flat, stack):
        return flat.as_strided((stack.count, *stack.shape), (stack.pitch, *stack.strides), stack.start)

    def poison(self) -> None:
        self.bits.masked_fill_(self.mask, self.nan)

    def strays(self):
        """Whether a byte that is no element's has changed."""
        return (self.bits != self.canary).masked_fill_(self.mask, False).any()


class Evidence:
    """Elements that a check found wrong, the first few by value; `still`: what a second look at the memory finds."""

    FEW = 8

    def __init__(self, found, wrong, still, expected):
        self.counts = torch.stack([wrong.sum(), still.sum(), found.float().isnan().sum()])
        self.shape = wrong.shape
        places = wrong.flatten().to(torch.uint8).topk(min(self.FEW, wrong.numel())).indices
        numbers = [found.float().flatten()[places], expected.float().flatten()[places]]
        self.places, self.numbers = places, torch.stack(numbers)

    def __str__(self):
        wrong, still, nan = self.counts.tolist()
        places = [tuple(int(i) for i in numpy.unravel_index(at, self.shape)) for at in self.places.tolist()]
        shown = [f"{at}: {x:g} for {y:g}" for at, x, y in zip(places, *self.numbers.tolist())][: int(wrong)]
        return f"{wrong} elements wrong, {still} at a second look, {nan} NaN; {', '.join(shown)}"


class Noise:
    """Numbers that every problem takes its data from, made once for each device."""

    COUNT = 1 << 23

    def __init__(self, device: int):
        generator = torch.Generator(device=place(device)).manual_seed(7)
        shape = {"device": place(device), "generator": generator}
        integers = torch.randint(-2, 3, (self.COUNT,), **shape)
        kept = torch.rand(self.COUNT, **shape) < 0.25  # sparse: sums of products stay small and exact
        exact, normal = (integers * kept).float(), torch.randn(self.COUNT, **shape)
        self.bits = {
            (name, is_normal): values.to(dtype).view(BITS[dtype.itemsize])
            for name, dtype in DTYPES.items()
            for is_normal, values in ((False, exact), (True, normal))
        }

    def slice(self, name: str, data: dict, count: int):
        bits = self.bits[name, data["normal"]]
        start = data["seed"] * 4999 % (self.COUNT // 4)
        return bits[start : start + count]


class Problem:
    """Matrices, what they should come to, and what else the library is handed."""

    def __init__(self, spec: dict, noise: Noise):
        self.spec, self.kind, self.device, self.stream = spec, spec["kind"], spec["device"], spec["stream"]
        self.used, self.holders, self.first_bits = None, 0, {}
        A, B, in_bytes, C, out_bytes = layouts.layouts(spec)
        self.dtype, self.out_dtype = DTYPES[spec["dtype"]], DTYPES[spec["out"]]
        self.inputs = Block(in_bytes, self.dtype, [*A, *B], self.device)
        self.image = self.inputs.bytes.clone()
        self.outputs = Block(out_bytes, self.out_dtype, C, self.device)
        self.A, self.B = self.inputs.stacks[: len(A)], self.inputs.stacks[len(A) :]
        self.variants = {}
        products.prepare(self, noise)

    def bits_before(self, number: int, key: tuple, bits):
        """Of the same variant and data; None where there are none. The first ones of a size are kept."""
        if number not in self.first_bits:
            self.first_bits[number] = key
            self.kept[number].copy_(bits)
        return self.kept[number] if self.first_bits[number] == key else None


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


class CudaBackend:
    """One lane: streams of its own, and flags that its checks raise."""

    noise: dict[int, Noise] = {}
    lasting_graphs: dict[int, torch.cuda.CUDAGraph] = {}
    lanes: dict[int, "CudaBackend"] = {}
    parent_step = ""

    def __init__(self, number: int = 0):
        devices = range(device_count())
        for device in devices:
            if device not in self.noise:
                self.noise[device] = Noise(device)
                self.lasting_graphs[device] = lasting_graph(device)
        torch.cuda.synchronize()
        self.streams = [[torch.cuda.Stream(device) for _ in range(STREAMS)] for device in devices]
        self.workspaces = {}  # of each stream, by its handle
        self.flags = [torch.zeros(MOST_CHECKS, dtype=torch.bool, device=place(device)) for device in devices]
        self.names = [[] for _ in devices]
        self.evidence = {}  # name of a check -> what to tell of it if it failed
        self.now, self.planted = "the beginning", None
        for device in devices:
            torch.cuda.synchronize(device)
        self.lanes[number] = self

    # Streams.

    def begin_step(self, number: int, action: dict) -> None:
        self.now = f"{self.parent_step}step {number}, {action['do']}"
        if any(len(names) > MOST_CHECKS - 1024 for names in self.names):
            self.settle()

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

    def lane(self, number: int) -> "CudaBackend":
        lane = self.lanes.get(number) or CudaBackend(number)
        lane.parent_step = f"{self.now}, thread {number}: "
        return lane

    def at_once(self, works) -> None:
        raised = []

        def guarded(work) -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    # Problems.

    def make(self, spec: dict) -> Problem:
        return Problem(spec, self.noise[spec["device"]])

    def fill(self, problem: Problem, data: dict) -> None:
        inputs = problem.inputs
        values = self.noise[problem.device].slice(problem.spec["dtype"], data, inputs.bits.numel())
        inputs.bits.copy_(values)
        inputs.bits.masked_fill_(~inputs.mask, inputs.nan)  # padding that is read shows
        problem.image.copy_(inputs.bytes)
        products.fill(problem, data)
        problem.first_bits.clear()

    def poison(self, problem: Problem, outputs=None) -> None:
        if outputs is None or outputs is problem.out:
            return problem.outputs.poison()
        storages = {output.untyped_storage().data_ptr(): output for output in outputs}
        for output in storages.values():
            storage = output.untyped_storage()
            torch.empty(0, dtype=torch.uint8, device=output.device).set_(storage).fill_(255)
        return None

    def give_back(self, problem: Problem) -> None:
        vars(problem).clear()

    # The library.

    def variant(self, problem: Problem, action: dict) -> str | None:
        """The artifact that the action forces, of those that take the problem; None for the library's choice."""
        family, given = action["family"], action["with_out"]
        if family is None:
            return None
        if (family, given) not in problem.variants:
            out = {"out": problem.out if problem.kind == "list" else problem.out[0]} if given else {}
            explained = gg_runtime.explain(*problem.operands, **problem.asked, **out)
            usable = [c["variant"] for c in explained.candidates if not c["ruled_out"]]
            problem.variants[family, given] = sorted(name for name in usable if name.startswith(family + "_sm"))
        names = problem.variants[family, given]
        return names[action["pick"] % len(names)] if names else None

    def expect(self, problem: Problem) -> None:
        pass

    def workspace(self, problem: Problem):
        """The stream's own, which is never smaller than before; of a graph, memory of its pool."""
        needed = layouts.workspace_bytes(problem.spec, gg_runtime.fused_experts_workspace)
        stream = torch.cuda.current_stream()
        known = self.workspaces.get(stream.cuda_stream)
        if torch.cuda.is_current_stream_capturing() or known is None or len(known) < needed:
            known = torch.empty(needed, dtype=torch.uint8, device=place(problem.device))
        if not torch.cuda.is_current_stream_capturing():
            self.workspaces[stream.cuda_stream] = known
        return known

    def call_layer(self, problem: Problem, with_out: bool, pick: int):
        memory = {"workspace": self.workspace(problem)} if pick % 2 else {}
        out = problem.out[0] if with_out else None
        limit = layouts.max_rows(problem.spec, pick)
        made = gg_runtime.fused_experts(*problem.operands, **problem.keywords, **memory, out=out, max_rows=limit)
        return problem.out if with_out else [made]

    def call(self, problem: Problem, name: str | None, with_out: bool, pick: int = 0):
        """A list of outputs; those that the problem brings where `with_out`."""
        if problem.kind == "layer":
            return self.call_layer(problem, with_out, pick)
        if problem.kind == "list":
            if name:
                return self.plan(problem, name, with_out).run()
            made = gg_runtime.group_gemm(*problem.operands, out=problem.out if with_out else None, **problem.keywords)
            return problem.out if with_out else made
        out = problem.out[0] if with_out else None
        forced = {"variant": name} if name else {}
        made = [gg_runtime._C.grouped_mm(*problem.operands, out=out, **problem.keywords, **forced)]
        return problem.out if with_out else made

    def plan(self, problem: Problem, name: str | None, with_out: bool, pick: int = 0):
        """Its outputs are a list, whatever the kind; those that the problem brings where `with_out`."""
        if problem.kind == "layer":
            out, limit = problem.out[0] if with_out else None, layouts.max_rows(problem.spec, pick)
            plan = gg_runtime.ExpertsPlan(*problem.operands, **problem.keywords, out=out, max_rows=limit)
            plan.out, plan.by_value = problem.out if with_out else [plan.out], True
            return plan
        is_list = problem.kind == "list"
        out = None if not with_out else problem.out if is_list else problem.out[0]
        plan = gg_runtime.Plan(*problem.operands, out=out, **problem.keywords, variant=name)
        plan.out = problem.out if with_out else plan.out if is_list else [plan.out]
        return plan

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

    # What must hold.

    def flag(self, problem: Problem, what: str, failed, evidence=None) -> None:
        names = self.names[problem.device]
        self.flags[problem.device][len(names)].copy_(failed)
        names.append(f"{self.now}: {what}; problem {problem.spec['p']}, {summary(problem.spec)}")
        if evidence:
            self.evidence[names[-1]] = evidence

    def plant(self, what: str) -> None:
        """The next check is to find this."""
        self.planted = what

    def spoil(self, problem: Problem, outputs) -> None:
        what, self.planted = self.planted, None
        if what == "result":
            outputs[-1].view(BITS[outputs[-1].element_size()])[-1, -1] ^= 4
        elif what == "unwritten":
            self.poison(problem, outputs)
        elif what == "stray":
            problem.outputs.bytes[-1] += 1
        elif what == "input":
            problem.inputs.bytes[problem.inputs.bytes.numel() // 2] ^= 1
        elif what == "fault":  # nothing more runs in this process
            problem.inputs.bytes[torch.full((1,), 1 << 40, device=place(problem.device))]

    def check(self, problem: Problem, outputs, key: tuple) -> None:
        if self.planted:
            self.spoil(problem, outputs)
        stacked = products.stacked(problem, outputs)
        which = f"variant {key[0]}{'' if key[1] else ', new outputs'}"
        checked = products.wrong(problem, stacked)
        problem.stale = True  # judged again by references that are made anew: was it the product that was wrong?
        again = products.wrong(problem, stacked)
        for number, ((found, wrong), (_, still)) in enumerate(zip(checked, again)):
            evidence = Evidence(found, wrong, still, problem.reference[number])
            self.flag(problem, f"wrong products, size {number}, {which}", wrong.any(), evidence)
            bits = found.view(BITS[found.element_size()])
            before = problem.bits_before(number, key, bits) if problem.data["normal"] else None
            if before is not None:
                self.flag(problem, f"other bits than before, size {number}, {which}", (bits != before).any())
        self.flag(problem, f"bytes around the outputs were written, {which}", problem.outputs.strays())
        inputs, image = problem.inputs.bytes, problem.image
        changed = inputs != image
        evidence = Evidence(inputs, changed, inputs != image, image)
        self.flag(problem, f"inputs were changed, {which}", changed.any(), evidence)

    def settle(self) -> None:
        for streams in self.streams:
            for stream in streams:
                stream.synchronize()
        for flags, names in zip(self.flags, self.names):
            raised = flags[: len(names)].nonzero().flatten().tolist() if names else []
            if raised:
                raise Wrong(
                    f"{len(raised)} of {len(names)} checks failed, the first after {self.told(names[raised[0]])}"
                )
            names.clear()
        self.evidence.clear()

    def told(self, name: str) -> str:
        return f"{name}; {self.evidence[name]}" if name in self.evidence else name


def summary(spec: dict) -> str:
    if spec["kind"] == "layer":
        told = ("rows", "k", "experts", "hidden", "inner", "activation", "gate_up", "bias", "on_input", "invariant")
        return f"layer in {spec['dtype']} {spec['layout']} {spec['view']}, {[spec[name] for name in told]}"
    sizes = spec.get("classes") or [spec["rows"], spec["n"], spec["k"], spec["experts"]]
    return f"{spec['dtype']} to {spec['out']} {spec['layout']} {spec['view']}, m n k count {sizes}"
