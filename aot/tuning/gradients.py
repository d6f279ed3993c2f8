"""The family of weight gradients, products with ragged K: of 16 bits, and of e4m3 with scales of blocks of K.

Groups have equal parts of K, as the host takes them to have. Outputs are written: what it takes to add to them is a
factor of their bytes (csrc/forms/grouped_work.cpp).
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch

import gg_runtime

from ..spec.kernels import KERNELS, Kernel
from ..spec.variants import Variant
from .family import Family, Times
from .measurement import GradientProduct
from .timing import DEVICE, MOST_LAUNCHES, Replay, copies_for, race

# Groups, and K of each; the last ones of parts of a block, which scales do not have.
LOADS = (
    (4, 8192), (8, 4096), (16, 2048), (32, 1024), (64, 512), (128, 256), (128, 1024), (8, 512), (8, 128), (32, 128),
    (8, 16), (32, 64), (16, 96), (32, 192),
)  # fmt: skip
# M and N
SIZES = (
    (4096, 7168), (7168, 2048), (3072, 4096), (2048, 7168), (1536, 2048), (2048, 768), (1536, 512), (1024, 1024),
    (256, 512),
)  # fmt: skip
KINDS = (("bf16", "fp32"), ("bf16", "bf16"), ("e4m3", "fp32"), ("e4m3", "bf16"))
MOST_OUTPUT_BYTES = 4e9
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "e4m3": torch.float8_e4m3fn}
BLOCK = 128  # of K, that a scale is of
L2_PASSES = 2  # of copies of a product, between two launches on the same one
CHECKED_ROWS = 16
TOLERANCE = 1e-2  # of a row's norm, as in grouped.py


def grid() -> list[GradientProduct]:
    """All sizes of a kind, mixed, so that a pass that is cut short has seen some of all."""
    products = [
        GradientProduct(dtype, out, groups, groups * each, rows, columns)
        for (dtype, out), (groups, each), (rows, columns) in itertools.product(KINDS, LOADS, SIZES)
    ]
    whole = [one for one in products if not scales_of(one) or one.each % BLOCK == 0]
    fitting = [one for one in whole if one.output_bytes <= MOST_OUTPUT_BYTES]
    return random.Random(0).sample(fitting, len(fitting))


def scales_of(product: GradientProduct) -> str:
    return "block" if product.dtype == "e4m3" else ""


def does(kernel: Kernel, product: GradientProduct) -> bool:
    """Whether the kernel does all that the product is, in one launch."""
    takes_rows = kernel.source in ("rows", "either")
    return kernel.extents == "k_ends" and takes_rows and kernel.scales == scales_of(product)


class Operands:
    """A copy of a product: [K, M] and [K, N] in memory, or of e4m3 [M, K] and [N, K] and their scales."""

    def __init__(self, product: GradientProduct):
        def numbers(width: int) -> torch.Tensor:
            shape = (width, product.total) if scales_of(product) else (product.total, width)
            values = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).to(DTYPES[product.dtype])
            return values if scales_of(product) else values.mT

        self.A, self.B = numbers(product.rows), numbers(product.columns).mT
        ends = [product.each * (group + 1) for group in range(product.groups)]
        shape = (product.groups, product.rows, product.columns)
        self.out = torch.empty(shape, device=DEVICE, dtype=DTYPES[product.out])
        self.options: dict[str, Any] = {"offs": torch.tensor(ends, device=DEVICE, dtype=torch.int32), "out": self.out}
        if scales_of(product):
            blocks = product.total // BLOCK
            self.scale_a = torch.rand(blocks, product.rows, device=DEVICE).add_(0.5).mT
            self.scale_b = torch.rand(blocks, product.columns, device=DEVICE).add_(0.5)
            self.options |= {"scale_a": self.scale_a, "scale_b": self.scale_b, "k_alignment": BLOCK}

    def plan(self, variant: str) -> gg_runtime.Plan:
        return gg_runtime.Plan(self.A, self.B, variant=variant, **self.options)


class LastRows:
    """Some rows of the last group in float32, which every kernel must give."""

    def __init__(self, product: GradientProduct, operands: Operands):
        self.rows = sorted({0, product.rows - 1, *random.Random(0).sample(range(product.rows), CHECKED_ROWS)})
        k = slice(product.total - product.each, product.total)
        left, right = operands.A[self.rows, k].float(), operands.B[k].float()
        if scales_of(product):
            blocks = slice(k.start // BLOCK, k.stop // BLOCK)
            left *= operands.scale_a[self.rows, blocks].repeat_interleave(BLOCK, 1)
            right *= operands.scale_b[blocks].repeat_interleave(BLOCK, 0)
        self.right, self.out = left @ right, operands.out[-1]

    def error(self, plan: gg_runtime.Plan) -> float:
        """The largest relative error of a row, over NaN that it held."""
        self.out[self.rows] = float("nan")
        plan.run()
        difference = torch.linalg.vector_norm(self.out[self.rows].float() - self.right, dim=1)
        return float((difference / torch.linalg.vector_norm(self.right, dim=1)).max())  # max keeps NaN


class Gradients(Family[GradientProduct]):
    def __init__(self, products: list[GradientProduct] | None = None):
        self.name = "gradients"
        self._units = [[one] for one in (grid() if products is None else products)]

    def units(self) -> list[list[GradientProduct]]:
        return self._units

    def candidates(self, embedded: list[Variant], product: GradientProduct) -> list[Variant]:
        """The aligned kernels with ragged K that do all of it."""
        wanted = (product.dtype, product.out, "nt" if scales_of(product) else "tn", 16)
        aligned = [v for v in embedded if (v.dtype, v.out, v.layout, v.alignment) == wanted]
        return [v for v in aligned if does(KERNELS[v.kernel], product)]

    def measure(
        self, unit: list[GradientProduct], kernels: list[str], say: Callable[[str], None]
    ) -> dict[GradientProduct, Times]:
        (product,) = unit
        stream = torch.cuda.Stream()
        copies = [Operands(product) for _ in range(copies_for(product.bytes, L2_PASSES, MOST_LAUNCHES))]
        rows = LastRows(product, copies[0])
        replays, slots = {}, {}
        for name in kernels:
            plans = [copy.plan(name) for copy in copies]
            if not (wrong := rows.error(plans[0])) <= TOLERANCE:  # NaN is wrong too
                say(f"{name} is wrong on {product}: relative error {wrong:.1e} of a row")
                continue
            replays[name], slots[name] = Replay([plan.run for plan in plans], stream), plans[0].slots
        if not replays:
            return {}
        return {product: {name: (slots[name], us) for name, us in race(replays, product.flop).items()}}
