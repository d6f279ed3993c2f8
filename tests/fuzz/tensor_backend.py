"""What a machine does with torch tensors, on a GPU (cuda_backend.py) or on the CPU (cpu_backend.py).

Every result is compared where it lies; the host looks when the machine settles.
"""

import threading

import torch

import gg_runtime
from fuzz import forms, layouts, products, training
from fuzz.blocks import BITS, Evidence, Noise, Problem
from fuzz.machine import Wrong

MOST_CHECKS = 1 << 14  # between two looks of the host


class TensorBackend:
    """One lane: flags that its checks raise. Streams and graphs are those of a class for each kind of device."""

    noise: dict[torch.device, Noise] = {}
    parent_step = ""
    has_variants = True  # that can be forced

    def __init__(self, devices: list[torch.device]):
        self.devices = devices
        for device in devices:
            if device not in self.noise:
                self.noise[device] = Noise(device)
        self.workspaces = {}  # of each stream, by its handle
        self.flags = [torch.zeros(MOST_CHECKS, dtype=torch.bool, device=device) for device in devices]
        self.names = [[] for _ in devices]
        self.evidence = {}  # name of a check -> what to tell of it if it failed
        self.now, self.planted = "the beginning", None

    def begin_step(self, number: int, action: dict) -> None:
        self.now = f"{self.parent_step}step {number}, {action['do']}"
        if any(len(names) > MOST_CHECKS - 1024 for names in self.names):
            self.settle()

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
        return Problem(spec, self.noise[self.devices[spec["device"]]])

    def fill(self, problem: Problem, data: dict) -> None:
        inputs = problem.inputs
        values = problem.noise.slice(problem.spec["dtype"], data, inputs.bits.numel())
        inputs.bits.copy_(values)
        inputs.bits.masked_fill_(~inputs.mask, inputs.nan)  # padding that is read shows
        products.fill(problem, data)
        problem.image.copy_(inputs.bytes)
        problem.first_bits.clear()

    def poison(self, problem: Problem, outputs=None) -> None:
        if outputs is None or outputs is problem.out:
            problem.outputs.poison()
            return products.put_before(problem)
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
        if family is None or not self.has_variants:
            return None
        if (family, given) not in problem.variants:
            out = {"out": problem.out if problem.kind == "list" else problem.out[0]} if given else {}
            explained = gg_runtime.explain(*problem.operands, **problem.asked, **out)
            usable = [c["variant"] for c in explained.candidates if not c["ruled_out"]]
            prefixes = layouts.kernel_prefixes(problem.spec, family)
            problem.variants[family, given] = sorted(name for name in usable if name.startswith(prefixes))
        names = problem.variants[family, given]
        return names[action["pick"] % len(names)] if names else None

    def expect(self, problem: Problem) -> None:
        pass

    def workspace(self, problem: Problem):
        """The stream's own, which is never smaller than before; of a graph, memory of its pool."""
        needed = layouts.workspace_bytes(problem.spec, gg_runtime.fused_experts_workspace)
        stream, is_captured = self.current_stream()
        known = self.workspaces.get(stream)
        if is_captured or known is None or len(known) < needed:
            block = torch.empty(needed + 128, dtype=torch.uint8, device=self.devices[problem.device])
            known = block[-block.data_ptr() % 128 :]  # the CPU's memory is on 64 bytes alone
        if not is_captured:
            self.workspaces[stream] = known
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
        if name:
            made = gg_runtime._C.grouped_mm(*problem.operands, out=out, **problem.keywords, variant=name)
        else:
            made = gg_runtime.grouped_mm(*problem.operands, out=out, **problem.keywords)
        return problem.out if with_out else [made]

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

    # Training.

    def forward(self, problem: Problem, action: dict) -> tuple[training.Recorded, list]:
        """What torch recorded, and the outputs."""
        return training.forward(problem, action["wants"], action.get("main", False))

    def drop_outputs(self, recorded: training.Recorded) -> None:
        training.drop_outputs(recorded)

    def make_room(self, recorded: training.Recorded) -> None:
        training.make_room(recorded)

    def before_backward(self, problem: Problem) -> None:
        training.note_mains(problem)

    def backward(self, problem: Problem, recorded: training.Recorded, action: dict) -> list:
        return training.backward(problem, recorded, action["seed"], action.get("again", False))

    def must_refuse(self, problem: Problem, recorded: training.Recorded) -> None:
        """A backward whose tensors were filled anew."""
        try:
            training.backward(problem, recorded, 0, False)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                return
            raise
        raise Wrong(f"{self.now}: a backward ran on tensors that were filled after its forward; {problem.spec}")

    def poison_gradients(self, problem: Problem, gradients: list) -> None:
        self.poison(problem, [gradient for gradient in gradients if gradient is not None])

    def check_gradients(self, problem: Problem, recorded: training.Recorded, gradients: list, seed: int) -> None:
        if self.planted in ("gradient", "main"):
            training.spoil(problem, recorded, gradients, self.planted)
            self.planted = None
        for name, found, wrong, expected in training.wrong(problem, recorded, gradients, seed):
            self.flag(problem, f"wrong gradient of {name}", wrong.any(), (found, wrong, wrong, expected))
        for name, differs in training.other_bits(recorded, gradients, (seed, problem.version)):
            self.flag(problem, f"other bits than before in the gradient of {name}", differs)
        self.check_inputs(problem, "backward")

    # What must hold.

    def flag(self, problem: Problem, what: str, failed, evidence=None) -> None:
        names = self.names[problem.device]
        self.flags[problem.device][len(names)].copy_(failed)
        names.append(f"{self.now}: {what}; problem {problem.spec['p']}, {summary(problem.spec)}")
        if evidence and self.may_have_failed(failed):
            self.evidence[names[-1]] = Evidence(*evidence)

    def may_have_failed(self, failed) -> bool:
        """Whether evidence is worth its time; the host does not wait to know."""
        return True

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
        elif what == "past counts":  # the NaN of a product
            size = outputs[0].itemsize
            bits = outputs[0].view(forms.INTEGERS[size])
            bits.masked_fill_(~forms.computed_rows(problem), forms.NAN_BITS[size])
        elif what == "input":
            problem.inputs.bytes[problem.inputs.bytes.numel() // 2] ^= 1
        elif what == "fault":  # nothing more runs in this process
            problem.inputs.bytes[torch.full((1,), 1 << 40, device=self.devices[problem.device])]

    def check(self, problem: Problem, outputs, key: tuple, times: int = 1) -> None:
        """`times`: how often the sums were added to outputs that are added to."""
        if self.planted in ("result", "unwritten", "stray", "past counts", "fault"):
            self.spoil(problem, outputs)
        if times != problem.times:
            problem.times, problem.stale = times, True
        stacked = products.stacked(problem, outputs)
        which = f"variant {key[0]}{'' if key[1] else ', new outputs'}"
        checked = products.wrong(problem, stacked, outputs is problem.out)
        again = checked
        if any(self.may_have_failed(wrong.any()) for _, wrong in checked):
            problem.stale = True  # judged again by references that are made anew: was it the product that was wrong?
            again = products.wrong(problem, stacked, outputs is problem.out)
        key = (*key, times)
        for number, ((found, wrong), (_, still)) in enumerate(zip(checked, again)):
            evidence = found, wrong, still, problem.reference[number]
            self.flag(problem, f"wrong products, size {number}, {which}", wrong.any(), evidence)
            bits = products.compared_bits(problem, found.view(BITS[found.element_size()]))
            before = problem.bits_before(number, key, bits) if problem.data["normal"] else None
            if before is not None:
                self.flag(problem, f"other bits than before, size {number}, {which}", (bits != before).any())
        self.flag(problem, f"bytes around the outputs were written, {which}", problem.outputs.strays())
        self.check_inputs(problem, which)

    def check_inputs(self, problem: Problem, which: str) -> None:
        if self.planted == "input":
            self.spoil(problem, [])
        inputs, image = problem.inputs.bytes, problem.image
        changed = inputs != image
        still = inputs != image if self.may_have_failed(changed.any()) else changed
        self.flag(problem, f"inputs were changed, {which}", changed.any(), (inputs, changed, still, image))

    def settle(self) -> None:
        self.synchronize()
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
        told = (
            "rows", "k", "experts", "hidden", "inner", "activation", "gate_up", "limit", "bias", "on_input",
            "invariant",
        )  # fmt: skip
        return f"layer in {spec['dtype']} {spec['layout']} {spec['view']}, {[spec.get(name) for name in told]}"
    if spec["kind"] == "list":
        return f"{spec['dtype']} to {spec['out']} {spec['layout']} {spec['view']}, m n k count {spec['classes']}"
    known = ("rows", "m", "n", "k", "experts", "bias", "masked", "scales", "index", "alpha", "beta", "on_device")
    told = ", ".join(f"{name} {spec[name]}" for name in known if name in spec)
    return f"{spec['kind']} in {spec['dtype']} to {spec['out']} {spec['layout']} {spec['view']}, {told}"
