"""Operands of grouped_mm: laid out as an artifact needs them, around its tile edges; splits of rows into groups."""

import itertools
import random
from itertools import accumulate

import torch

import gg_runtime
from cases import DTYPES, PRIME, legal, per_16_bytes, pitch
from oracle import fill_sparse_integers

INT32 = 2**31


def forced(artifact: dict, mat_a, mat_b, **others):
    """grouped_mm by this artifact, whatever the library would choose."""
    return gg_runtime._C.grouped_mm(mat_a, mat_b, **others, variant=artifact["name"])


def as_offs(sizes):
    """int32 ends on the device, for the rows of each group."""
    return torch.tensor(list(accumulate(sizes)), dtype=torch.int32, device="cuda")


def random_sizes(groups: int, rows: int, seed: int, occupied: float = 1.0) -> list[int]:
    """Rows of each group, each row in a group drawn evenly from a share of them."""
    numbers = random.Random(seed)
    some = numbers.sample(range(groups), max(1, round(occupied * groups)))
    sizes = [0] * groups
    for _ in range(rows):
        sizes[numbers.choice(some)] += 1
    return sizes


def garbage(rows: int) -> dict[str, list[int]]:
    """Ends that no one should pass, 9 each."""
    numbers = random.Random(rows)
    return {
        "negative": [-1, -5, -INT32, 3, 7, -7, 9, 9, -1],
        "decreasing": [rows - 8 * i for i in range(9)],
        "too large": [5, rows + 1, INT32 - 1, INT32 - 1, rows, 3, INT32 - 1, 0, rows],
        "past the rows at once": [INT32 - 1] * 9,
        "all negative": [-INT32] * 9,
        "up and down": [40, 2, 41, 3, 42, -4, 43, 5, 44],
        "near the rows": [numbers.randint(-3, rows + 3) for _ in range(9)],
        "any int32": [numbers.randrange(-INT32, INT32) for _ in range(9)],
    }


def operands(sizes, n, k, dtype=torch.bfloat16, tail=0, transposed=False, fill=fill_sparse_integers):
    """A with `tail` rows past the groups, B, offs and a poisoned output; `transposed`: B lies as [E, N, K]."""
    rows, groups = sum(sizes) + tail, len(sizes)
    A = torch.empty(rows, k, device="cuda", dtype=dtype)
    B = torch.empty(groups, *((n, k) if transposed else (k, n)), device="cuda", dtype=dtype)
    fill([A, B])
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=dtype)
    return A, B.mT if transposed else B, as_offs(sizes), out


def edge_forms(artifact: dict) -> list[tuple[list[int], int, int, int]]:
    """(rows of each group, all rows, N, K) around the artifact's own tile edges, as near as its alignment allows."""
    block_m, block_n, block_k = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    sizes = [0, 1, block_m - 1, 0, block_m, block_m + 1, 2 * block_m, 2 * block_m + 3, 0]
    columns = itertools.cycle((1, block_n - 1, block_n, block_n + 1, 2 * block_n + 3))
    depths = (1, 16, block_k - 1, block_k, block_k + 1, 3 * block_k + 5, PRIME, 5 * block_k)
    forms = []
    for turn, k in enumerate(depths):
        order = sizes[turn:] + sizes[:turn]
        rows = sum(sizes) + turn % 3 * (block_m - 1)  # none, some or many past the last group
        forms.append((order, *legal(artifact, (rows, next(columns), k))))
    return forms


class Ragged:
    """Operands of one grouped_mm in two arenas; leading strides and the stride of a group leave gaps."""

    def __init__(self, artifact: dict, offs, rows: int, n: int, k: int, arenas):
        self.artifact, (self.inputs, self.outputs) = artifact, arenas
        dtype, out_dtype = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]]
        layout = artifact["layout"]
        self.A = self.matrix(self.inputs, rows, k, dtype, layout[0] in "ns")
        self.B = self.matrices(len(offs), k, n, dtype, layout[-1] in "nd")
        self.C = self.matrix(self.outputs, rows, n, out_dtype, True)
        self.offs = self.inputs.array((len(offs),), torch.int32, (1,))
        self.offs.copy_(torch.as_tensor(offs))

    def matrix(self, arena, rows, columns, dtype, row_major):
        leading, unit, offset = pitch(self.artifact, columns if row_major else rows, dtype)
        return arena.matrix(rows, columns, dtype, (leading, unit) if row_major else (unit, leading), offset)

    def matrices(self, groups, k, n, dtype, row_major):
        leading, unit, offset = pitch(self.artifact, n if row_major else k, dtype)
        gap = 3 * per_16_bytes(dtype) if self.artifact["alignment"] >= 16 else 5
        strides = (leading, unit) if row_major else (unit, leading)
        apart = leading * (k if row_major else n) + gap
        return self.inputs.array((groups, k, n), dtype, (apart, *strides), offset)

    def run(self, **others):
        return forced(self.artifact, self.A, self.B, offs=self.offs, out=self.C, **others)


def run_checked(problem: Ragged, fill, check) -> None:
    """One run on fresh data and poisoned outputs: the products are right and nothing else was written."""
    fill([problem.A, problem.B])
    problem.outputs.poison()
    inputs, outputs = problem.inputs.snapshot(), problem.outputs.snapshot()
    problem.run()
    check(problem.C, problem.A, problem.B, problem.offs)
    assert problem.outputs.stray_writes(outputs) == 0
    assert problem.inputs.unchanged(inputs)
