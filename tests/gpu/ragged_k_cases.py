"""Operands of products with ragged K: laid out as an artifact needs them, around its tile edges."""

import itertools

import torch

from cases import DTYPES, OF_B, PRIME, legal, per_16_bytes, pitch
from ragged_cases import forced


def edge_forms(artifact: dict) -> list[tuple[list[int], int, int, int]]:
    """(K of each group, all K, M, N) around the artifact's own tile edges, as near as its alignment allows."""
    block_m, block_n, block_k = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    sizes = [0, 1, block_k - 1, 0, block_k, block_k + 1, 2 * block_k, 4 * block_k + 3, 5 * block_k, 0]
    rows = (1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3)
    columns = itertools.cycle((PRIME, block_n, 1, block_n + 1, block_n - 1, 2 * block_n + 3))
    forms = []
    for turn, m in enumerate(rows):
        order = sizes[2 * turn :] + sizes[: 2 * turn]
        total = sum(order) + turn % 3 * (block_k - 1)  # none, some or many past the last group
        m, n, _ = legal(artifact, (m, next(columns), total))
        forms.append((order, total, m, n))
    return forms


class RaggedK:
    """Operands of one product in two arenas; leading strides and the stride of C's matrices leave gaps.

    A kernel that gathers gets one operand as `source`, whose rows lie in any order among rows of NaN, and their index;
    A and B are the same operands with the rows in order.
    """

    def __init__(self, artifact: dict, offs, total: int, m: int, n: int, arenas):
        self.artifact, (self.inputs, self.outputs) = artifact, arenas
        dtype, layout = artifact["dtype"], artifact["layout"]
        self.A = self.matrix(m, total, DTYPES[dtype], layout[0] in "ns")
        self.B = self.matrix(total, n, DTYPES[OF_B[dtype]], layout[-1] in "nd")
        self.C = self.matrices(len(offs), m, n, DTYPES[artifact["out_dtype"]])
        self.offs = self.inputs.array((len(offs),), torch.int32, (1,))
        self.offs.copy_(torch.as_tensor(offs))
        self.source = self.index = None
        if artifact["source"] != "rows":
            self.gather_from(total + 7)

    def gather_from(self, rows: int) -> None:
        ordered = self.ordered()
        self.source = self.matrix(rows, ordered.shape[1], ordered.dtype, True)
        dtype = torch.int64 if rows % 2 else torch.int32
        self.index = self.inputs.array((len(ordered),), dtype, (1,))
        self.index.copy_(torch.randperm(rows, device="cuda")[: len(ordered)])

    def ordered(self):
        """The rows that an index is for, as if there was none."""
        return self.A.mT if self.artifact["source"] == "indexed" else self.B

    def spread(self) -> None:
        """Brings what A or B holds to the rows that the kernel reads."""
        if self.source is not None:
            self.source.fill_(float("nan"))
            self.source[self.index.long()] = self.ordered()

    def given(self) -> tuple:
        """mat_a, mat_b, and the index as an argument."""
        if self.source is None:
            return self.A, self.B, {}
        if self.artifact["source"] == "indexed":
            return self.source.mT, self.B, {"a_index": self.index}
        return self.A, self.source, {"b_index": self.index}

    def matrix(self, rows, columns, dtype, row_major):
        leading, unit, offset = pitch(self.artifact, columns if row_major else rows, dtype)
        return self.inputs.matrix(rows, columns, dtype, (leading, unit) if row_major else (unit, leading), offset)

    def matrices(self, groups, m, n, dtype):
        leading, unit, offset = pitch(self.artifact, n, dtype)
        gap = 3 * per_16_bytes(dtype) if self.artifact["alignment"] >= 16 else 5
        return self.outputs.array((groups, m, n), dtype, (leading * m + gap, leading, unit), offset)

    def run(self, **others):
        self.spread()
        mat_a, mat_b, by_index = self.given()
        return forced(self.artifact, mat_a, mat_b, offs=self.offs, out=self.C, **by_index, **others)


def run_checked(problem: RaggedK, fill, check, **others) -> None:
    """One run on fresh data and poisoned outputs: the products are right and nothing else was written."""
    fill([problem.A, problem.B])
    problem.spread()
    problem.outputs.poison()
    inputs, outputs = problem.inputs.snapshot(), problem.outputs.snapshot()
    problem.run(**others)
    check(problem.C, problem.A, problem.B, problem.offs)
    assert problem.outputs.stray_writes(outputs) == 0
    assert problem.inputs.unchanged(inputs)


def deep_groups(bytes_of_k: int, step: int) -> list[int]:
    """K of 24 groups: none, little, and about as much as of groups whose outputs a kernel still loads, to add to them
    (LOADED_BYTES of aot/kernels/hopper/addends.py). Multiples of `step`."""
    deepest = 2048 // bytes_of_k
    return [deepest, deepest + step, 0, step, deepest - step, 2 * deepest] * 4


def check_one_addition(C, run) -> None:
    """Sums that are added to C have the bits of sums that are written, and added to it by torch."""
    for alpha in (1.0, 0.3):
        run(alpha=alpha)
        written = C.clone()
        expected = torch.randn(C.shape, device="cuda")
        C.copy_(expected)
        for _ in range(3):
            run(alpha=alpha, beta=1.0)
            expected += written
            assert torch.equal(C, expected)
