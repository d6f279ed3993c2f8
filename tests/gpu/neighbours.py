"""What each of several processes on one GPU does: kernels that look for the next group all the time, bits compared."""

import time

import torch

import gg_runtime
import neighbours_forms
import up_projection_oracle
from cases import DTYPES, LIST_ARTIFACTS, RAGGED_ARTIFACTS, UP_ARTIFACTS
from ragged_cases import forced

LAUNCHES = 1000  # before one look at the results: more work than a process is given at once
GROUPS = 1000
SIZES = {"m": 16, "n": 64, "k": 128}


def of_hopper(artifacts):
    """Every config of the pipeline's kernels once: fp16, and e4m3 with the layout that it takes."""
    found = [a for a in artifacts if a["addressing"] == "host_descriptors"]
    return [a for a in found if (a["dtype"], a["layout"]) == ("fp16", "nn") or a["out_dtype"] == "fp32"]


def integers(artifact, *shape):
    return torch.randint(-2, 3, shape, device="cuda").to(DTYPES[artifact["dtype"]])


class Products:
    def __init__(self, artifact):
        self.name = artifact["name"]
        self.a = integers(artifact, GROUPS, SIZES["m"], SIZES["k"])
        by_columns = artifact["layout"][1] == "t"
        stored = (GROUPS, SIZES["n"], SIZES["k"]) if by_columns else (GROUPS, SIZES["k"], SIZES["n"])
        self.b = integers(artifact, *stored).mT if by_columns else integers(artifact, *stored)
        self.expected = (self.a.float() @ self.b.float()).to(DTYPES[artifact["out_dtype"]])
        self.out = torch.empty_like(self.expected)
        self.run = self.list() if artifact in LIST_ARTIFACTS else self.ragged(artifact)

    def list(self):
        return gg_runtime.Plan([*self.a], [*self.b], out=[*self.out], variant=self.name).run

    def ragged(self, artifact):
        rows = GROUPS * SIZES["m"]
        offs = torch.arange(SIZES["m"], rows + 1, SIZES["m"], device="cuda", dtype=torch.int32)
        out_dtype = DTYPES[artifact["out_dtype"]] if artifact["dtype"] == "e4m3" else None
        a, out = self.a.view(rows, -1), self.out.view(rows, -1)
        return lambda: forced(artifact, a, self.b, offs=offs, out=out, out_dtype=out_dtype)

    def check(self) -> None:
        self.out.fill_(float("nan"))
        for _ in range(LAUNCHES):
            self.run()
        wrong = int((self.out.float() != self.expected.float()).sum())
        assert wrong == 0, f"{self.name}: {wrong} elements are wrong"


class UpProducts(Products):
    """With rows by an index or a gated activation: the first launch is checked, and the others have its bits."""

    def __init__(self, artifact):
        self.name = artifact["name"]
        rows, n, k = GROUPS * SIZES["m"], SIZES["n"], SIZES["k"]
        a, b = integers(artifact, rows, k), integers(artifact, GROUPS, k, n)
        offs = torch.arange(SIZES["m"], rows + 1, SIZES["m"], device="cuda", dtype=torch.int32)
        index = torch.randint(-9, rows + 9, (rows,), device="cuda") if artifact["source"] == "indexed" else None
        activation = None if artifact["epilogue"] == "linear" else "swiglu"
        order = "interleaved" if artifact["epilogue"] == "gated_pairs" else "up_first"
        self.out = torch.empty(rows, n if activation is None else n // 2, device="cuda", dtype=a.dtype)
        given = {"offs": offs, "out": self.out, "a_index": index, "activation": activation, "gate_up": order}
        if artifact["epilogue"] == "gated_kept":
            given["preactivation"] = torch.empty(rows, n, device="cuda", dtype=a.dtype)
        self.run = lambda: forced(artifact, a, b, **given)
        self.run()
        z = up_projection_oracle.sums(a, b, offs, index=index)
        assert "preactivation" not in given or torch.equal(given["preactivation"].double(), z), self.name
        if activation is None:
            assert torch.equal(self.out.double(), z), self.name
        else:
            up_projection_oracle.assert_one_rounding(self.out, z, activation, order)
        self.expected = self.out.clone()


class FormProducts(Products):
    """Of the other forms: the first launch is checked, and the others have its bits."""

    def __init__(self, artifact):
        self.name = artifact["name"]
        self.run, self.out = neighbours_forms.checked(artifact)
        self.expected = self.out.clone()


def run(seconds: float) -> None:
    """Until every config has had its turn and the time is over."""
    configs = [*of_hopper(LIST_ARTIFACTS), *of_hopper(RAGGED_ARTIFACTS)]
    products = [Products(artifact) for artifact in configs]
    products += [UpProducts(artifact) for artifact in of_hopper(UP_ARTIFACTS)]
    products += [FormProducts(artifact) for artifact in neighbours_forms.extremes()]
    end, rounds = time.monotonic() + seconds, 0
    while rounds == 0 or time.monotonic() < end:
        for one in products:
            one.check()
        rounds += 1
    print(f"{len(products)} configs, {rounds} rounds")
