"""Walks: what one process does with the library, action by action, as plain data that a seed decides.

An action is a dict with "do" and the names of what it works on: problems p, plans q, graphs g, forward passes t,
numbered as they are made. One that names something which is not there does nothing, so any part of a walk is a walk.
"""

import random
from itertools import count

from fuzz import layouts

STREAMS = 4  # of each device
MOST_PROBLEMS, MOST_PLANS, MOST_GRAPHS, MOST_PASSES = 9, 10, 5, 5
MOST_ELEMENTS = 1 << 20  # of the inputs of one problem

# A list is read from device memory where it has more than 8 groups (hopper) or 32 (basic, tma): most walks stay there.
GROUP_COUNTS = {(1, 8): 15, (9, 32): 45, (33, 80): 36, (300, 700): 4}
ACTIVATIONS = ["swiglu", "geglu", "geglu_tanh", "swiglu_oai", "silu", "gelu", "gelu_tanh", "relu", None]
GATE_ORDERS = ["gate_first", "up_first", "interleaved"]
# Of those that take a problem of the kind. Layers take the library's choice, the fused kernels among them.
FAMILIES = {
    "list": ["hopper", "tma", "basic"], "ragged": ["hopper_ragged", "basic_ragged"],
    "ragged_n": ["hopper_ragged", "basic_ragged"], "ragged_k": ["hopper_ragged_k", "basic_ragged_k"],
    "ragged_k of e4m3": ["hopper_ragged_k_block_scales", "basic_ragged_k_block_scales"],
    "stack": ["hopper_stack", "basic_stack"],
}  # fmt: skip
KINDS = {"list": 48, "ragged": 13, "layer": 12, "ragged_k": 12, "ragged_n": 5, "stack": 10}
SCALES = ["tensor", "row", "block"]  # of e4m3: one, of rows and columns, of blocks
OUT_DTYPES = {"fp16": ["fp16"], "bf16": ["bf16"], "e4m3": ["bf16", "fp16", "fp32", "e4m3"]}
WEIGHTS = {
    "make": 10, "free": 3, "fill": 5, "call": 12, "plan": 5, "run": 10, "drop": 5, "away": 8, "capture": 16,
    "replay": 16, "destroy": 8, "forward": 6, "backward": 10, "forget": 2, "trained": 5,
    "trash": 3, "busy": 2, "settle": 3, "together": 0.4,
}  # fmt: skip


def weighted(numbers: random.Random, weights: dict):
    return numbers.choices(list(weights), list(weights.values()))[0]


def takes_parts(spec: dict) -> bool:
    """Whether other launches than the product's may be needed, so that none is forced."""
    return bool(spec.get("index")) or layouts.adds(spec) or spec.get("alpha", 1) != 1 or spec.get("on_device", False)


def gathers_sums(spec: dict) -> bool:
    """As main gradients are: float32 outputs, to which each call adds."""
    return spec.get("beta") == 1 and spec["out"] == "fp32" and not spec["on_device"]


class Walk:
    """Makes the actions one by one; knows what there is, not what it holds."""

    def __init__(self, seed, *, devices: int = 1, fp8: bool = True, together: bool = True):
        self.numbers, self.fp8_numbers = random.Random(seed), random.Random(f"fp8 {seed}")
        self.devices, self.fp8, self.together = devices, fp8, together
        self.named = count(1)
        self.problems, self.plans, self.graphs, self.passes = {}, {}, {}, {}
        low, high = weighted(self.numbers, GROUP_COUNTS)
        self.usual = [self.numbers.randint(min(low, 60), min(high, 80)) for _ in range(2)]  # sizes that lists share
        self.dtypes = [dtype for dtype in OUT_DTYPES if fp8 or dtype != "e4m3"]
        self.usual_dtype = self.numbers.choice([*self.dtypes, "fp16", "bf16"])
        self.usual_layout = self.numbers.choice(["nn", "nt", "tn", "tt"])

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

    def chance(self, probability: float) -> bool:
        return self.numbers.random() < probability

    def pick(self, among):
        return self.numbers.choice(list(among))

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

    def stream(self, but=None) -> int:
        return self.pick(stream for stream in range(STREAMS) if stream != but)

    def data(self) -> dict:
        return {"seed": self.numbers.randrange(1 << 20), "normal": self.chance(0.12)}

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
        p, kind = next(self.named), weighted(self.numbers, KINDS)
        if kind == "layer":
            return self.make_layer(p)
        if kind in layouts.OTHER_FORMS:
            return self.make_other(p, kind)
        dtype = self.usual_dtype if self.chance(0.7) else self.pick(self.dtypes)
        # fp8 kernels are fast in one layout alone.
        layout = "nt" if dtype == "e4m3" and self.chance(0.8) else self.usual_layout
        spec = {
            "do": "make", "p": p, "kind": kind, "dtype": dtype, "out": self.pick(OUT_DTYPES[dtype]),
            "layout": layout if self.chance(0.7) else self.pick(["nn", "nt", "tn", "tt"]),
            "view": weighted(self.numbers, {"aligned": 88, "odd": 8, "strided": 4}),
            "out_order": "n" if self.chance(0.93) or kind == "ragged" else "t",
            "device": self.numbers.randrange(self.devices), "stream": self.stream(), "data": self.data(),
        }  # fmt: skip
        spec |= self.list_sizes() if kind == "list" else self.ragged_sizes()
        if kind == "ragged":
            spec["scales"] = self.scales(dtype)
        elif dtype == "e4m3":
            spec["scales"] = self.fp8_numbers.choice(["", *SCALES[1:]])  # lists of them
        self.problems[p] = spec
        return spec

    def scales(self, dtype: str) -> str:
        return self.fp8_numbers.choice(["", *SCALES]) if dtype == "e4m3" else ""

    def make_layer(self, p: int) -> dict:
        """A layer of experts. Its calls may take a workspace of their stream's, and, where they promise the same bits
        for it, chunks of any size."""
        even, dtype = self.chance(0.7), self.pick(["fp16", "bf16"])
        sizes = [8, 64, 96] if even else [1, 33, 61]
        self.problems[p] = {
            "do": "make", "p": p, "kind": "layer", "dtype": dtype, "out": dtype,
            "layout": self.pick(["nn", "nt", "nt"]), "view": "aligned" if self.chance(0.8) else "odd",
            "out_order": "n", "device": self.numbers.randrange(self.devices), "stream": self.stream(),
            "data": self.data(), "rows": self.pick([1, 5, 40, 300]), "k": self.pick([1, 2, 4]),
            "experts": self.pick([1, 4, 8]), "hidden": self.pick(sizes), "inner": self.pick(sizes),
            "activation": self.pick(ACTIVATIONS), "gate_up": self.pick(GATE_ORDERS), "bias": self.chance(0.4),
            "on_input": self.chance(0.2), "invariant": self.chance(0.5), "main": self.chance(0.4),
        }  # fmt: skip
        return self.problems[p]

    def make_other(self, p: int, kind: str) -> dict:
        """Ragged K, ragged columns, or stacks; half of those masked."""
        dtype, layout = self.pick(["fp16", "bf16"]), "tn" if kind == "ragged_k" else self.usual_layout
        experts = self.pick([1, 2, 4, 8, 16])
        m, n, k = self.extents(experts)
        spec = {
            "do": "make", "p": p, "kind": kind, "dtype": dtype, "out": dtype,
            "layout": layout if self.chance(0.7) else self.pick(["nn", "nt", "tn", "tt"]),
            "view": weighted(self.numbers, {"aligned": 80, "odd": 12, "strided": 8}),
            "out_order": "n" if self.chance(0.9) else "t",
            "device": self.numbers.randrange(self.devices), "stream": self.stream(), "data": self.data(),
            "experts": experts, "m": m,
        }  # fmt: skip
        if kind == "stack":
            spec |= {"n": n, "k": k, "bias": self.chance(0.3), "masked": self.chance(0.5)}
            if self.fp8 and self.fp8_numbers.random() < 0.3:
                out = self.fp8_numbers.choice(OUT_DTYPES["e4m3"])
                spec |= {"dtype": "e4m3", "out": out, "scales": self.scales("e4m3")}
                spec["layout"] = "nt" if self.fp8_numbers.random() < 0.8 else spec["layout"]
        elif kind == "ragged_n":
            spec |= {"rows": self.pick([1, 17, 64, 200, 333]), "k": k}
        else:
            spec |= {"n": n} | self.ragged_k()
            spec["out"] = "fp32" if self.chance(0.4) else dtype
            if self.fp8 and self.chance(0.4):
                spec |= self.scaled_k()
        self.problems[p] = spec
        return spec

    def ragged_k(self) -> dict:
        """Half of them plain, as gradients need them. A beta that is not 0 adds to outputs."""
        rows = self.pick([1, 17, 64, 200, 333, 1000, 4000])
        spec = {"rows": rows, "index": "", "alpha": 1.0, "beta": 0.0, "on_device": False}
        if self.chance(0.5):
            spec["index"] = self.pick(["a", "b", "ab"])
            spec |= {"sources": self.pick([1, 5, 60, 300]), "wide_index": self.chance(0.5)}
        if self.chance(0.5):
            factors = {"alpha": self.pick([1.0, 0.5, -2.0]), "beta": self.pick([0.0, 1.0, 1.0, -1.0])}
            spec |= factors | {"on_device": self.chance(0.4)}
        return spec

    def scaled_k(self) -> dict:
        """e4m3 with scales of blocks or one each, mostly as TMA takes it; most ends break a promise."""
        layout = "nt" if self.chance(0.8) else self.pick(["nn", "nt", "tn", "tt"])
        promised, scales = self.chance(0.7), "tensor" if self.chance(0.1) else "block"
        found = {"dtype": "e4m3", "out": self.pick(["bf16", "fp32", "fp32"]), "index": "", "layout": layout}
        return found | {"scales": scales, "k_alignment": 128 if promised else 1}

    def extents(self, groups: int) -> list[int]:
        even = self.chance(0.92)
        m = self.pick([1, 8, 16, 33, 64, 64, 100, 128, 130])
        n = self.pick([16, 32, 64, 64, 80, 128, 144] if even else [1, 7, 57, 65])
        k = self.pick([16, 64, 64, 80, 128, 192, 256] if even else [1, 31, 77])
        while groups * (m + n) * k > MOST_ELEMENTS:
            m, n, k = max(m // 2, 1), max(n // 2, 16), max(k // 2, 16)
        return [m, n, k]

    def list_sizes(self) -> dict:
        low, high = weighted(self.numbers, GROUP_COUNTS)
        groups = self.pick(self.usual) if self.chance(0.6) else self.numbers.randint(low, high)
        classes = min(self.pick([1, 1, 2, 3]), groups)
        cuts = sorted(self.numbers.sample(range(1, groups), classes - 1))
        counts = [end - start for start, end in zip([0, *cuts], [*cuts, groups])]
        return {
            "classes": [[*self.extents(groups), number] for number in counts],
            "order": self.numbers.randrange(1 << 20),
        }

    def ragged_sizes(self) -> dict:
        experts = self.pick([1, 4, 8, 16])
        _m, n, k = self.extents(experts)
        rows = self.pick([1, 17, 64, 200, 333])
        return {"rows": rows, "n": n, "k": k, "experts": experts, "bias": self.chance(0.3)}

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
