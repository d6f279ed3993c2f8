"""The families of grouped products with ragged M: a grid of sizes for the cost model, MoE layers for rows, and what
fused kernels do for both.

Some thousand products of milliseconds: nothing is allocated between them. All products lie in the same memory, and a
kernel's graph serves every split, as `offs` are read on the device.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from ..spec.kernels import KERNELS, Kernel
from ..spec.variants import ELEMENT_BYTES, Variant
from .family import Family, Times
from .layers import MOST_ROWS, MOST_WEIGHT_BYTES, Layer
from .measurement import GroupedProduct
from .timing import DEVICE, MOST_LAUNCHES, Replay, copies_for, race

LARGEST_FLOP = 6e12  # of a product of the grid, about ten milliseconds
GRID_WEIGHT_BYTES = 8e9
EXPERTS = (1, 8, 32, 128, 512)
ROWS_EACH = (1, 4, 16, 64, 192, 512, 2048, 8192)
# N and K
SIZES = ((256, 512), (1536, 2048), (2048, 768), (2048, 4096), (4096, 7168), (7168, 2048), (28672, 4096), (512, 8192))
SPLITS = ("uniform", "multinomial", "zipf", "half-empty")
L2_PASSES = 8  # of a pass over twice its size, L2 still holds a part when the next begins
DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
CHECKED_ROWS = 16
TOLERANCE = 1e-2  # of a row's norm; rounding to bfloat16 alone makes 1.7e-3
SCALED_BLOCK = 128  # of K, and of B's columns, that a scale of a block is of
MEMORY_SHARE = 0.8  # of what is free; the rest is for graphs


def grid() -> list[GroupedProduct]:
    """Sizes and splits in bf16, mixed; then every third in e4m3."""
    found = []
    for index, (experts, each, (columns, depth)) in enumerate(itertools.product(EXPERTS, ROWS_EACH, SIZES)):
        product = GroupedProduct("bf16", SPLITS[index % len(SPLITS)], experts, experts * each, columns, depth)
        weights = experts * product.expert_bytes
        if product.rows <= MOST_ROWS and weights <= GRID_WEIGHT_BYTES and product.flop <= LARGEST_FLOP:
            found.append(product)
    mixed = random.Random(0).sample(found, len(found))
    return mixed + [GroupedProduct("e4m3", *one.to_json()[1:]) for one in mixed[::3]]


class Memory:
    """Of the largest product and of its weights' copies: the others use the first part of it."""

    def __init__(self, dtype: str, products: Sequence[GroupedProduct]):
        def numbers(count: float) -> torch.Tensor:
            values = torch.empty(int(count), device=DEVICE, dtype=DTYPES[dtype])
            for part in values.split(1 << 28):  # of which e4m3 has no generator
                part.copy_(torch.randn(part.numel(), device=DEVICE, dtype=torch.bfloat16))
            return values

        mine, self.dtype, self.element = [one for one in products if one.dtype == dtype], dtype, ELEMENT_BYTES[dtype]
        free, _ = torch.cuda.mem_get_info()
        self.A = numbers(max(one.rows_of_a * one.depth for one in mine))
        self.C = torch.empty(max(one.rows * one.outputs for one in mine), device=DEVICE, dtype=torch.bfloat16)
        kept = max(one.rows * one.columns * one.keeps for one in mine)
        self.kept = torch.empty(kept, device=DEVICE, dtype=torch.bfloat16)
        room = max(
            0.0, MEMORY_SHARE * free - self.element * self.A.numel() - 2 * self.C.numel() - 2 * self.kept.numel()
        )
        self.weight_bytes = min(MOST_WEIGHT_BYTES, room)
        self.W = numbers(self.weight_bytes / self.element)
        self.offs = torch.empty(max(one.experts for one in mine), device=DEVICE, dtype=torch.int32)
        self.index = torch.empty(max(one.rows for one in mine), device=DEVICE, dtype=torch.int32)
        self.stream = torch.cuda.Stream()

    def split(self, product: GroupedProduct) -> None:
        """The graphs of all splits read what lies here."""
        self.offs[: product.experts].copy_(torch.tensor(list(accumulate(product.group_rows)), dtype=torch.int32))
        if product.source == "indexed":
            self.index[: product.rows].copy_(routed_rows(product))

    def copies(self, unit: list[GroupedProduct]) -> int:
        """Of the weights, so that a pass over those that are read leaves nothing of them in L2, or all that fit."""
        used = min(sum(map(bool, product.group_rows)) for product in unit)
        fit = int(self.weight_bytes / (unit[0].experts * unit[0].expert_bytes))
        return min(copies_for(used * unit[0].expert_bytes, L2_PASSES, MOST_LAUNCHES), fit)

    def operands(self, product: GroupedProduct, copies: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """A, the copies of B, C."""
        sizes = (copies, product.experts, product.columns, product.depth)
        A = self.A[: product.rows_of_a * product.depth].view(product.rows_of_a, product.depth)
        C = self.C[: product.rows * product.outputs].view(product.rows, product.outputs)
        W = self.W[: math.prod(sizes)]
        if layout_of(product) == "nn":
            return A, list(W.view(copies, product.experts, product.depth, product.columns)), C
        return A, [each.mT for each in W.view(sizes)], C

    def options(self, product: GroupedProduct) -> dict[str, Any]:
        """What a `Plan` is told of the product besides."""
        options: dict[str, Any] = {"offs": self.offs[: product.experts]}
        if product.epilogue != "linear":
            pairs = product.epilogue == "gated_pairs"
            options |= {"activation": "swiglu", "gate_up": "interleaved" if pairs else "gate_first"}
        if product.keeps:
            options["preactivation"] = self.kept[: product.rows * product.columns].view(product.rows, product.columns)
        if product.source == "indexed":
            options["a_index"] = self.index[: product.rows]
        if product.scales:
            options["scale_a"], options["scale_b"] = (self._scale(shape) for shape in scale_shapes(product))
        return options

    def _scale(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, device=DEVICE) + 0.5


def layout_of(product: GroupedProduct) -> str:
    """Of what is measured: as checkpoints have weights, and where columns of gate and up are in turns the other way."""
    return "nn" if product.epilogue == "gated_pairs" else "nt"


def scale_shapes(product: GroupedProduct) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of scale_a and scale_b."""
    if product.scales == "row":
        return (product.rows_of_a,), (product.experts, product.columns)
    steps = -(-product.depth // SCALED_BLOCK)
    return (product.rows_of_a, steps), (product.experts, -(-product.columns // SCALED_BLOCK), steps)


def routed_rows(product: GroupedProduct) -> torch.Tensor:
    """Rows of A by an index, int32: any of them, rising within a group, as routing has them."""
    group = torch.arange(product.experts).repeat_interleave(torch.tensor(product.group_rows))
    drawn = torch.randint(product.rows_of_a, (product.rows,), generator=torch.Generator().manual_seed(0))
    return (torch.sort(group * product.rows_of_a + drawn).values % product.rows_of_a).to(torch.int32)


def times_scale(product: GroupedProduct, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A row of A, or B of a group as [columns, depth], times its scales."""
    if product.scales == "row":
        return values * scale.unsqueeze(-1)
    for dim, size in enumerate(values.shape):
        scale = scale.repeat_interleave(SCALED_BLOCK, dim).narrow(dim, 0, size)
    return values * scale


def activated(product: GroupedProduct, sums: torch.Tensor) -> torch.Tensor:
    """The outputs of rows of sums."""
    if product.epilogue == "linear":
        return sums
    half = product.outputs
    pairs = product.epilogue == "gated_pairs"
    gate, up = (sums[:, ::2], sums[:, 1::2]) if pairs else (sums[:, :half], sums[:, half:])
    return torch.nn.functional.silu(gate) * up


class SomeRows:
    """Some rows of a product in float32, the first and the last among them, which every kernel must give."""

    def __init__(self, product: GroupedProduct, A: torch.Tensor, B: torch.Tensor, options: dict[str, Any]):
        count, index = product.rows, options.get("a_index")
        self.rows = sorted({0, count - 1, *random.Random(0).sample(range(count), min(CHECKED_ROWS, count))})
        ends = list(accumulate(product.group_rows))
        groups = [next(group for group, end in enumerate(ends) if row < end) for row in self.rows]
        read = self.rows if index is None else index[self.rows].tolist()

        def sums_of(row: int, group: int) -> torch.Tensor:
            left, right = A[row].float(), B[group].float()
            if product.scales:
                left = times_scale(product, left, options["scale_a"][row])
                right = times_scale(product, right.mT, options["scale_b"][group]).mT
            return left @ right

        sums = torch.stack([sums_of(row, group) for row, group in zip(read, groups)])
        self.right = activated(product, sums)

    def error(self, plan: gg_runtime.Plan, C: torch.Tensor) -> float:
        """The largest relative error of a row, over NaN that it held."""
        C[self.rows] = float("nan")
        plan.run()
        difference = torch.linalg.vector_norm(C[self.rows].float() - self.right, dim=1)
        return float((difference / torch.linalg.vector_norm(self.right, dim=1)).max())  # max keeps NaN


def does(kernel: Kernel, product: GroupedProduct) -> bool:
    """Whether the kernel does all that the product is, in one launch."""
    takes = kernel.source in (product.source, "either")
    same_scales = kernel.scales == product.scales
    return kernel.extents == "m_ends" and kernel.epilogue == product.epilogue and takes and same_scales


class Grouped(Family[GroupedProduct]):
    """Products in units that differ in the split alone."""

    def __init__(self, name: str, units: list[list[GroupedProduct]]):
        self.name, self._units = name, units
        self.memory: Memory | None = None

    def units(self) -> list[list[GroupedProduct]]:
        return self._units

    def candidates(self, embedded: list[Variant], product: GroupedProduct) -> list[Variant]:
        """The aligned kernels with ragged rows and bf16 outputs that do all of it."""
        wanted = (product.dtype, "bf16", layout_of(product), 16)
        aligned = [v for v in embedded if (v.dtype, v.out, v.layout, v.alignment) == wanted]
        return [v for v in aligned if does(KERNELS[v.kernel], product)]

    def measure(
        self, unit: list[GroupedProduct], kernels: list[str], say: Callable[[str], None]
    ) -> dict[GroupedProduct, Times]:
        first, memory = unit[0], self._memory(unit[0].dtype)
        copies = memory.copies(unit)
        if copies < 1:
            say(f"{first.experts} experts, N {first.columns}, K {first.depth}: weights do not fit this GPU's memory")
            return {}
        replays, slots = self._graphs(first, copies, kernels, say)
        times: dict[GroupedProduct, Times] = {}
        for product in unit if replays else ():
            memory.split(product)
            times[product] = {name: (slots[name], us) for name, us in race(replays, product.flop).items()}
        return times

    def _graphs(
        self, product: GroupedProduct, copies: int, kernels: list[str], say: Callable[[str], None]
    ) -> tuple[dict[str, Replay], dict[str, int]]:
        """Of the kernels that are right, and their slots."""
        memory = self._memory(product.dtype)
        A, B, C = memory.operands(product, copies)
        memory.split(product)
        options, replays, slots = memory.options(product), {}, {}
        rows = SomeRows(product, A, B[0], options)
        for name in kernels:
            plans = [gg_runtime.Plan(A, each, out=C, variant=name, **options) for each in B]
            if not (wrong := rows.error(plans[0], C)) <= TOLERANCE:  # NaN is wrong too
                say(f"{name} is wrong on {product}: relative error {wrong:.1e} of a row")
                continue
            replays[name], slots[name] = Replay([plan.run for plan in plans], memory.stream), plans[0].slots
        return replays, slots

    def _memory(self, dtype: str) -> Memory:
        if not (self.memory and self.memory.dtype == dtype):
            self.memory = None  # before the next takes as much
            torch.cuda.empty_cache()
            self.memory = Memory(dtype, [product for unit in self._units for product in unit])
        return self.memory


def ragged() -> Grouped:
    return Grouped("ragged", [[product] for product in grid()])


def of_layers(layers: list[Layer]) -> Grouped:
    return Grouped("layers", [unit for layer in layers for unit in layer.products()])
