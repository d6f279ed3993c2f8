"""What each of several processes on one GPU does: kernels that look for the next group all the time, bits compared."""

import time

import torch

import gg_runtime
from cases import DTYPES, LIST_ARTIFACTS, RAGGED_ARTIFACTS
from ragged_cases import forced

LAUNCHES = 1000  # before one look at the results: more work than a process is given at once
GROUPS = 1000
SIZES = {"m": 16, "n": 64, "k": 128}


def of_hopper(artifacts, kernel: str):
    """Every config once: fp16, and e4m3 with the layout that it takes."""
    found = [a for a in artifacts if a["kernel"] == kernel]
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
        wrong = int((self.out != self.expected).sum())
        assert wrong == 0, f"{self.name}: {wrong} elements are wrong"


def run(seconds: float) -> None:
    """Until every config has had its turn and the time is over."""
    configs = [*of_hopper(LIST_ARTIFACTS, "hopper"), *of_hopper(RAGGED_ARTIFACTS, "hopper_ragged")]
    products = [Products(artifact) for artifact in configs]
    end, rounds = time.monotonic() + seconds, 0
    while rounds == 0 or time.monotonic() < end:
        for one in products:
            one.check()
        rounds += 1
    print(f"{len(products)} configs, {rounds} rounds")
