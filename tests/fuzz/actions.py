"""Walks: what one process does with the library, action by action, as plain data that a seed decides.

An action is a dict with "do" and the names of what it works on: problems p, plans q, graphs g, forward passes t,
numbered as they are made. One that names something which is not there does nothing, so any part of a walk is a walk.
"""

from itertools import count

from fuzz import layouts
from fuzz.problems import Problems, weighted

MOST_PROBLEMS, MOST_PLANS, MOST_GRAPHS, MOST_PASSES = 9, 10, 5, 5

# Of those that take a problem of the kind. Layers take the library's choice, the fused kernels among them.
FAMILIES = {
    "list": ["hopper", "tma", "basic"], "ragged": ["hopper_ragged", "basic_ragged"],
    "ragged_n": ["hopper_ragged", "basic_ragged"], "ragged_k": ["hopper_ragged_k", "basic_ragged_k"],
    "ragged_k of e4m3": ["hopper_ragged_k_block_scales", "basic_ragged_k_block_scales"],
    "stack": ["hopper_stack", "basic_stack"],
}  # fmt: skip
WEIGHTS = {
    "make": 10, "free": 3, "fill": 5, "call": 12, "plan": 5, "run": 10, "drop": 5, "away": 8, "capture": 16,
    "replay": 16, "destroy": 8, "forward": 6, "backward": 10, "forget": 2, "trained": 5,
    "trash": 3, "busy": 2, "settle": 3, "together": 0.4,
}  # fmt: skip


def takes_parts(spec: dict) -> bool:
    """Whether other launches than the product's may be needed, so that none is forced."""
    return bool(spec.get("index")) or layouts.adds(spec) or spec.get("alpha", 1) != 1 or spec.get("on_device", False)


def gathers_sums(spec: dict) -> bool:
    """As main gradients are: float32 outputs, to which each call adds."""
    return spec.get("beta") == 1 and spec["out"] == "fp32" and not spec["on_device"]


class Walk(Problems):
    """Makes the actions one by one; knows what there is, not what it holds."""

    def __init__(self, seed, *, devices: int = 1, fp8: bool = True, together: bool = True):
        super().__init__(seed, devices, fp8)
        self.together = together
        self.named = count(1)
        self.problems, self.plans, self.graphs, self.passes = {}, {}, {}, {}

    def actions(self, steps: int) -> list[dict]:
        actions = []
        while len(actions) < steps:
            actions += self.next()
        return actions[:steps]

    def next(self) -> list[dict]:
        legal = {name: weight for name, weight in WEIGHTS.items() if self.possible(name)}
        made = getattr(self, "a_" + weighted(self.numbers, legal))()
        return made if isinstance(made, list) else [made]

    def possible(self, name: str) -> bool:
        may_record = self.trainable() and len(self.passes) < MOST_PASSES
        return {
            "make": len(self.problems) < MOST_PROBLEMS,
            "plan": self.problems and len(self.plans) < MOST_PLANS,
            "away": self.lists() and len(self.plans) < MOST_PLANS,
            "capture": self.problems and len(self.graphs) < MOST_GRAPHS,
            "forward": may_record, "trained": may_record, "backward": self.passes, "forget": self.passes,
            "run": self.plans, "drop": self.plans, "replay": self.graphs, "destroy": self.graphs,
            "free": len(self.problems) > 3, "fill": self.problems, "call": self.problems,
            "together": self.together,
        }.get(name, True)  # fmt: skip

    # Pieces of actions.

    def lists(self) -> list[int]:
        return [p for p, spec in self.problems.items() if spec["kind"] == "list"]

    def trainable(self) -> list[int]:
        return [p for p, spec in self.problems.items() if layouts.has_gradients(spec)]

    def with_out(self, p: int, probability: float) -> bool:
        return layouts.adds(self.problems[p]) or self.chance(probability)

    def has_descriptors(self, p: int) -> bool:
        """Whether TMA takes the list and its descriptors are uploaded: what goes wrong with them goes wrong here."""
        spec = self.problems[p]
        even = spec["view"] == "aligned" and all(n % 16 == 0 for _, n, _, _ in spec["classes"])
        return even and sum(entry[3] for entry in spec["classes"]) > 8

    def cycles(self) -> int:
        return self.numbers.randrange(2_000_000, 6_000_000)  # 1 to 3 ms

    def variant(self, p: int, descriptors: float = 0.2) -> dict:
        """A forced one in half of the calls: `pick` counts among those that take the problem. `descriptors`: how
        probable it is that it is the family whose lists hold TMA descriptors.
        """
        forced = {"pick": self.numbers.randrange(64)}
        if self.problems[p]["kind"] == "layer" or takes_parts(self.problems[p]):
            return {"family": None, **forced}
        kind, dtype = self.problems[p]["kind"], self.problems[p]["dtype"]
        families = FAMILIES.get(f"{kind} of {dtype}", FAMILIES[kind])
        if self.chance(descriptors):
            return {"family": families[0], **forced}
        return {"family": self.pick(families), **forced} if self.chance(0.35) else {"family": None}

    # Actions.

    def a_make(self) -> dict:
        p = next(self.named)
        self.problems[p] = self.make(p)
        return self.problems[p]

    def a_free(self) -> dict:
        p = self.pick(self.problems)
        del self.problems[p]
        return {"do": "free", "p": p}

    def a_fill(self) -> dict:
        return {"do": "fill", "p": self.pick(self.problems), "stream": self.stream(), "data": self.data()}

    def call_of(self, p: int, descriptors: float = 0.2) -> dict:
        call = {"do": "call", "p": p, "with_out": self.with_out(p, 0.75), **self.variant(p, descriptors)}
        return call | {"times": self.numbers.randint(1, 3)} if gathers_sums(self.problems[p]) else call

    def a_call(self) -> dict:
        return self.call_of(self.pick(self.problems)) | {"stream": self.stream()}

    def plan_of(self, p: int, descriptors: float = 0.4) -> dict:
        q = next(self.named)
        self.plans[q] = {"p": p}
        return {"do": "plan", "q": q, "p": p, "with_out": self.with_out(p, 0.9), **self.variant(p, descriptors)}

    def a_plan(self) -> dict | list[dict]:
        return self.plan_of(self.pick(self.problems)) | {"stream": self.stream()}

    def a_run(self) -> dict:
        return {"do": "run", "q": self.pick(self.plans), "stream": self.stream()}

    def a_drop(self) -> dict:
        q = self.pick(self.plans)
        del self.plans[q]
        return {"do": "drop", "q": q}

    def a_away(self) -> list[dict]:
        """A plan whose list comes late, on a stream that is busy, runs on another; is dropped there, perhaps."""
        stream = self.stream()
        plan = self.plan_of(self.pick(self.lists())) | {"stream": stream}
        device = self.problems[plan["p"]]["device"]
        actions = [{"do": "busy", "stream": stream, "device": device, "cycles": self.cycles()}, plan]
        if self.chance(0.6):
            actions.insert(0, self.a_trash() | {"stream": stream, "device": device})
        other = self.stream(but=stream)
        if self.chance(0.3):
            actions.append({"do": "busy", "stream": other, "device": device, "cycles": self.cycles()})
        actions.append({"do": "run", "q": plan["q"], "stream": other})
        if self.chance(0.4):
            actions.append({"do": "drop", "q": plan["q"]})
            actions.append(self.a_trash() | {"stream": stream, "device": device})
            del self.plans[plan["q"]]
        return actions

    def a_capture(self) -> dict:
        """One to six calls; mostly of lists that are alike, so that one takes the memory that another's list had."""
        g, device = next(self.named), self.problems[self.pick(self.problems)]["device"]
        here = [p for p, spec in self.problems.items() if spec["device"] == device]
        lists = [p for p in self.lists() if p in here]
        among, descriptors = lists if lists and self.chance(0.7) else here, 0.2
        uploaded = [p for p in lists if self.has_descriptors(p)]
        if len(uploaded) > 1 and self.chance(0.6):
            among, descriptors = uploaded, 0.95
        calls = []
        for _ in range(self.numbers.randint(2, 6) if self.chance(0.85) else 1):
            planned = [q for q, plan in self.plans.items() if plan["p"] in here]
            trainable = [p for p in self.trainable() if p in here]
            weights = {"call": 12, "plan": 2 if lists else 0, "run": 3 if planned else 0}
            what = weighted(self.numbers, weights | {"train": 4 if trainable else 0})
            if what == "call":
                calls.append(self.call_of(self.pick(among), descriptors))
            elif what == "run":
                calls.append({"do": "run", "q": self.pick(planned)})
            elif what == "train":
                p = self.pick(trainable)
                calls.append({"do": "train", "p": p, **self.recorded(p), "seed": self.numbers.randrange(1 << 20)})
            else:
                calls += self.inner_plan(self.pick(lists))
        self.graphs[g] = {"problems": here, "device": device}
        return {"do": "capture", "g": g, "device": device, "stream": self.stream(), "calls": calls}

    def inner_plan(self, p: int) -> list[dict]:
        plan = self.plan_of(p) | {"with_out": True}
        calls = [plan, {"do": "run", "q": plan["q"]}]
        if self.chance(0.6):
            calls.append({"do": "drop", "q": plan["q"]})
            del self.plans[plan["q"]]
        return calls

    def a_replay(self) -> dict:
        g = self.pick(self.graphs)
        fills = [[p, self.data()] for p in self.graphs[g]["problems"] if p in self.problems and self.chance(0.3)]
        return {"do": "replay", "g": g, "stream": self.stream(), "times": self.pick([1, 1, 2, 3]), "fills": fills}

    def recorded(self, p: int) -> dict:
        """Of a forward pass: which of a, b and the biases have a gradient, and whether the outputs go before it."""
        into_main = self.problems[p].get("main", False) and self.chance(0.7)
        wants = "abc" if into_main else self.pick(["a", "b", "ab", "ab", "abc", "abc", "bc"])
        return {"wants": wants, "drops": self.chance(0.4), "main": into_main}

    def forward_of(self, p: int) -> dict:
        t = next(self.named)
        self.passes[t] = {"p": p, "seed": self.numbers.randrange(1 << 20)}
        return {"do": "forward", "t": t, "p": p, **self.recorded(p), "stream": self.stream()}

    def a_forward(self) -> dict:
        return self.forward_of(self.pick(self.trainable()))

    def backward_of(self, t: int, again: float) -> dict:
        """Once more with the same gradients of the outputs is once more the same bits."""
        seed = self.passes[t]["seed"] if self.chance(0.8) else self.numbers.randrange(1 << 20)
        action = {"do": "backward", "t": t, "seed": seed, "again": self.chance(again), "stream": self.stream()}
        if not action["again"]:
            del self.passes[t]
        return action

    def a_backward(self) -> dict:
        return self.backward_of(self.pick(self.passes), 0.5)

    def a_forget(self) -> dict:
        t = self.pick(self.passes)
        del self.passes[t]
        return {"do": "forget", "t": t}

    def a_trained(self) -> list[dict]:
        """A forward pass on a stream that is busy, its backward on another, with memory taken and given in between."""
        forward = self.forward_of(self.pick(self.trainable()))
        here = {"stream": forward["stream"], "device": self.problems[forward["p"]]["device"]}
        actions = [{"do": "busy", **here, "cycles": self.cycles()}, forward]
        if self.chance(0.7):
            actions.append(self.a_trash() | here)
        other = self.stream(but=forward["stream"])
        if self.chance(0.3):
            actions.append({"do": "busy", **here, "stream": other, "cycles": self.cycles()})
        actions.append(self.backward_of(forward["t"], 0.3) | {"stream": other})
        return [*actions, self.a_trash() | here] if self.chance(0.5) else actions

    def a_destroy(self) -> dict:
        g = self.pick(self.graphs)
        del self.graphs[g]
        return {"do": "destroy", "g": g}

    def a_trash(self) -> dict:
        """Bytes that the memory of later lists begins with: of ones, no list is made."""
        size = self.pick([1 << 13, 1 << 15, 1 << 17, 1 << 20])
        device = self.numbers.randrange(self.devices)
        return {"do": "trash", "stream": self.stream(), "device": device, "bytes": size, "byte": 255}

    def a_busy(self) -> dict:
        device = self.numbers.randrange(self.devices)
        return {"do": "busy", "stream": self.stream(), "device": device, "cycles": self.cycles()}

    def a_settle(self) -> dict:
        return {"do": "settle"}

    def a_together(self) -> dict:
        seeds = [self.numbers.randrange(1 << 30) for _ in range(2)]
        walks = [Walk(seed, devices=self.devices, fp8=self.fp8, together=False).actions(20) for seed in seeds]
        return {"do": "together", "walks": walks}


def walk(seed, steps: int, devices: int = 1, fp8: bool = True) -> list[dict]:
    """`fp8`: whether the GPUs multiply it."""
    return Walk(seed, devices=devices, fp8=fp8).actions(steps)
