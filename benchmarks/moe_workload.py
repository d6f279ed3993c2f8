"""Tensors of one ragged product, in as many copies as it takes that weights come from memory, not from L2."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from .shapes import RaggedShape
from .timing import Call
from .workload import Copy, copies_for

L2_PASSES = 8  # of a pass over twice its size, L2 still holds a part when the next begins
DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
TOLERANCE = 4e-3  # of a row's norm; rounding to bfloat16 alone makes 1.7e-3


@dataclass(frozen=True)
class RaggedCopy:
    """A [rows, K], W [experts, N, K], C [rows, N] in bfloat16; offs are the groups' ends, int32."""

    A: torch.Tensor
    W: torch.Tensor
    C: torch.Tensor
    offs: torch.Tensor
    shape: RaggedShape

    @property
    def B(self) -> torch.Tensor:
        return self.W.transpose(-2, -1)

    @cached_property
    def products(self) -> Copy:
        """The same memory as a list of the products that have rows."""
        A, C = (whole.split(self.shape.group_rows) for whole in (self.A, self.C))
        used = [group for group, rows in enumerate(self.shape.group_rows) if rows]
        return Copy([A[g] for g in used], {"nt": [self.B[g] for g in used]}, [C[g] for g in used])


@dataclass(frozen=True)
class Launch:
    """A call on one copy, the memory that it writes, and which rows of that are the product's, where it pads."""

    call: Call
    output: Callable[[], torch.Tensor]
    rows: torch.Tensor | None = None

    def product(self) -> torch.Tensor:
        return self.output() if self.rows is None else self.output()[self.rows]


class RaggedWorkload:
    """A ragged product, its copies, and the product in float32 that every copy must give."""

    def __init__(self, shape: RaggedShape, seed: int = 0):
        self.shape = shape
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(*sizes):
            values = torch.randn(*sizes, device="cuda", dtype=torch.bfloat16, generator=generator)
            return values.to(DTYPES[shape.dtype])

        A, W = normal(shape.rows, shape.depth), normal(shape.experts, shape.columns, shape.depth)
        offs = torch.tensor(list(accumulate(shape.group_rows)), device="cuda", dtype=torch.int32)
        C = torch.empty(shape.rows, shape.columns, device="cuda", dtype=torch.bfloat16)
        first = RaggedCopy(A, W, C, offs, shape)
        more = copies_for(shape.bytes, L2_PASSES) - 1
        self.copies = [first, *(RaggedCopy(A.clone(), W.clone(), C.clone(), offs, shape) for _ in range(more))]
        self.reference = torch.empty(C.shape, device="cuda")
        groups = self.reference.split([len(a) for a in first.products.A])
        for a, b, product in zip(first.products.A, first.products.B["nt"], groups):
            torch.mm(a.float(), b.float(), out=product)
        self.norms = torch.linalg.vector_norm(self.reference, dim=1)

    def check(self, product: torch.Tensor, tolerance: float = TOLERANCE) -> float:
        """The largest relative error of a row; ArithmeticError above the tolerance or where nothing was written."""
        difference = torch.linalg.vector_norm(product.float().sub_(self.reference), dim=1)
        error = float((difference / self.norms).max())  # max keeps NaN
        if not error <= tolerance:
            raise ArithmeticError(f"relative error {error:.1e} in a row, at most {tolerance:.0e} is right")
        return error
