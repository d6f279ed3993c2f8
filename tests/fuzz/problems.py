"""The problems of a walk, as plain data that a seed decides: sizes, layouts, dtypes, and what a call has besides."""

import random

from fuzz import layouts

STREAMS = 4  # of each device
MOST_ELEMENTS = 1 << 20  # of the inputs of one problem

# A list is read from device memory where it has more than 8 groups (hopper) or 32 (basic, tma): most walks stay there.
GROUP_COUNTS = {(1, 8): 15, (9, 32): 45, (33, 80): 36, (300, 700): 4}
ACTIVATIONS = ["swiglu", "geglu", "geglu_tanh", "swiglu_oai", "silu", "gelu", "gelu_tanh", "relu", None]
GATE_ORDERS = ["gate_first", "up_first", "interleaved"]
KINDS = {"list": 48, "ragged": 13, "layer": 12, "ragged_k": 12, "ragged_n": 5, "stack": 10}
SCALES = ["tensor", "row", "block"]  # of e4m3: one, of rows and columns, of blocks
OUT_DTYPES = {"fp16": ["fp16"], "bf16": ["bf16"], "e4m3": ["bf16", "fp16", "fp32", "e4m3"]}


def weighted(numbers: random.Random, weights: dict):
    return numbers.choices(list(weights), list(weights.values()))[0]


class Problems:
    """Draws the actions that make problems, many of which have sizes, a dtype and a layout in common."""

    def __init__(self, seed, devices: int, fp8: bool):
        self.numbers, self.fp8_numbers = random.Random(seed), random.Random(f"fp8 {seed}")
        self.limit_numbers = random.Random(f"limits {seed}")
        self.devices, self.fp8 = devices, fp8
        low, high = weighted(self.numbers, GROUP_COUNTS)
        self.usual = [self.numbers.randint(min(low, 60), min(high, 80)) for _ in range(2)]  # sizes that lists share
        self.dtypes = [dtype for dtype in OUT_DTYPES if fp8 or dtype != "e4m3"]
        self.usual_dtype = self.numbers.choice([*self.dtypes, "fp16", "bf16"])
        self.usual_layout = self.numbers.choice(["nn", "nt", "tn", "tt"])

    def chance(self, probability: float) -> bool:
        return self.numbers.random() < probability

    def pick(self, among):
        return self.numbers.choice(list(among))

    def stream(self, but=None) -> int:
        return self.pick(stream for stream in range(STREAMS) if stream != but)

    def data(self) -> dict:
        return {"seed": self.numbers.randrange(1 << 20), "normal": self.chance(0.12)}

    def make(self, p: int) -> dict:
        """Of any kind, called `p`."""
        kind = weighted(self.numbers, KINDS)
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
        return spec

    def make_layer(self, p: int) -> dict:
        """A layer of experts. Its calls may take a workspace of their stream's, and, where they promise the same bits
        for it, chunks of any size."""
        even, dtype = self.chance(0.7), self.pick(["fp16", "bf16"])
        sizes = [8, 64, 96] if even else [1, 33, 61]
        spec = {
            "do": "make", "p": p, "kind": "layer", "dtype": dtype, "out": dtype,
            "layout": self.pick(["nn", "nt", "nt"]), "view": "aligned" if self.chance(0.8) else "odd",
            "out_order": "n", "device": self.numbers.randrange(self.devices), "stream": self.stream(),
            "data": self.data(), "rows": self.pick([1, 5, 40, 300]), "k": self.pick([1, 2, 4]),
            "experts": self.pick([1, 4, 8]), "hidden": self.pick(sizes), "inner": self.pick(sizes),
            "activation": self.pick(ACTIVATIONS), "gate_up": self.pick(GATE_ORDERS), "bias": self.chance(0.4),
            "on_input": self.chance(0.2), "invariant": self.chance(0.5), "main": self.chance(0.4),
        }  # fmt: skip
        is_limited = spec["activation"] in ("swiglu", "swiglu_oai")
        return spec | {"limit": self.limit_numbers.choice([None, 5.0, 20.0, float("inf")]) if is_limited else None}

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
        return spec

    def scales(self, dtype: str) -> str:
        return self.fp8_numbers.choice(["", *SCALES]) if dtype == "e4m3" else ""

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
