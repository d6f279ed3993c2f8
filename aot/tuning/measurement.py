"""What is timed, a product, and its time on a kernel."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from ..spec.abi import EPILOGUES, FP8, SOURCES
from ..spec.kernels import KERNELS
from ..spec.variants import ELEMENT_BYTES, Config, Variant
from ..splits import group_rows

ROWS_FROM_ONE = 4  # of a product, from a row of A by an index
LITTLE_K = 192  # of a group: below, its product is mostly its output
Shapes = tuple[tuple[int, int, int], ...]


class CostKey(NamedTuple):
    """What has one row of costs: a kernel's config for inputs of 16 bits, or of 8.

    `out`: of a ragged K, fp32 or bf16, which stands for both types of 16 bits: outputs of float32 make a tile take
    longer. Of others "", all outputs.
    """

    kernel: str
    alignment: int
    fp8: bool
    config: Config
    out: str = ""

    @property
    def name(self) -> str:
        to = f" to {self.out}" if self.out else ""
        return f"{self.kernel} {'e4m3 ' if self.fp8 else ''}{self.config}{to}"


@dataclass(frozen=True)
class ListProduct:
    """A list of fp16 products; B has N contiguous in `nn`, K in `nt`."""

    layout: str
    shapes: Shapes

    @property
    def flop(self) -> int:
        return sum(2 * m * n * k for m, n, k in self.shapes)

    @property
    def bytes(self) -> int:
        return sum(2 * (m * k + k * n + m * n) for m, n, k in self.shapes)

    @property
    def groups(self) -> list[list[int]]:
        """[[M, N, K, count], ...], sorted."""
        return [[*shape, count] for shape, count in sorted(Counter(self.shapes).items())]

    def to_json(self) -> list:
        return [self.layout, [[*shape, len(list(same))] for shape, same in groupby(self.shapes)]]

    @classmethod
    def from_json(cls, row: list) -> "ListProduct":
        layout, runs = row
        return cls(layout, tuple((m, n, k) for m, n, k, count in runs for _ in range(count)))


@dataclass(frozen=True)
class GroupedProduct:
    """[rows, depth] @ [experts, depth, columns], the rows divided as `split` draws; outputs are bf16.

    `epilogue` and `source` as in spec/abi.py: a gated product has half as many outputs a row, an indexed one takes rows
    of A by an index. `scales` as in spec/kernels.py: "row" or "block" in e4m3, or none.
    """

    dtype: str  # of A and B, bf16 or e4m3
    split: str
    experts: int
    rows: int
    columns: int
    depth: int
    epilogue: str = EPILOGUES[0]
    source: str = SOURCES[0]
    scales: str = ""

    @property
    def kind(self) -> str:
        """By which losses are told apart."""
        return f"{self.dtype}, scales by {self.scales}" if self.scales else self.dtype

    @property
    def outputs(self) -> int:
        """Of a row."""
        return self.columns if self.epilogue == EPILOGUES[0] else self.columns // 2

    @property
    def keeps(self) -> bool:
        """The pre-activation, as another output."""
        return self.epilogue == "gated_kept"

    @property
    def rows_of_a(self) -> int:
        """An index picks each of them several times, as tokens choose several experts."""
        return self.rows if self.source == SOURCES[0] else max(1, self.rows // ROWS_FROM_ONE)

    @property
    def group_rows(self) -> tuple[int, ...]:
        return group_rows(self.split, self.experts, self.rows)

    @property
    def layer(self) -> "GroupedProduct":
        """What the host knows of it: all but the split."""
        return replace(self, split="")

    @property
    def flop(self) -> int:
        return 2 * self.rows * self.columns * self.depth

    @property
    def expert_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype] * self.columns * self.depth

    @property
    def facts(self) -> str:
        return f"{self.dtype} {self.experts} groups, {self.rows} rows ({self.split}), N {self.columns}, K {self.depth}"

    def to_json(self) -> list:
        plain = [self.dtype, self.split, self.experts, self.rows, self.columns, self.depth]
        does = [self.epilogue, self.source]
        if self.scales:
            return [*plain, *does, self.scales]
        return plain if does == [EPILOGUES[0], SOURCES[0]] else plain + does

    @classmethod
    def from_json(cls, row: list) -> "GroupedProduct":
        return cls(*row)


@dataclass(frozen=True)
class GradientProduct:
    """[rows, K of a group] @ [K of a group, columns] for each group: equal parts of `total`."""

    dtype: str  # of A and B, bf16 or e4m3
    out: str  # bf16 or fp32
    groups: int
    total: int
    rows: int
    columns: int

    @property
    def kind(self) -> str:
        """By which losses are told apart."""
        return f"{self.dtype} to {self.out}" + (f", K below {LITTLE_K} in each group" if self.each < LITTLE_K else "")

    @property
    def each(self) -> int:
        """K of a group."""
        return self.total // self.groups

    @property
    def flop(self) -> int:
        return 2 * self.total * self.rows * self.columns

    @property
    def output_bytes(self) -> int:
        return ELEMENT_BYTES[self.out] * self.groups * self.rows * self.columns

    @property
    def bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype] * self.total * (self.rows + self.columns) + self.output_bytes

    @property
    def facts(self) -> str:
        return f"{self.dtype} to {self.out} {self.groups} groups, M {self.rows}, N {self.columns}, K {self.each} each"

    def to_json(self) -> list:
        return [self.dtype, self.out, self.groups, self.total, self.rows, self.columns]

    @classmethod
    def from_json(cls, row: list) -> "GradientProduct":
        return cls(*row)


Product = ListProduct | GroupedProduct | GradientProduct
ProductT = TypeVar("ProductT", bound=Product)
AnyProduct = TypeVar("AnyProduct", bound=Product, covariant=True)  # of what is only read


@dataclass(frozen=True)
class Measurement(Generic[AnyProduct]):
    """Microseconds of a product on a kernel, and how many CTAs of it the GPU holds at once."""

    product: AnyProduct
    key: CostKey
    slots: int
    us: float


ListMeasurement = Measurement[ListProduct]
GroupedMeasurement = Measurement[GroupedProduct]
GradientMeasurement = Measurement[GradientProduct]
RaggedMeasurement = Measurement[GroupedProduct | GradientProduct]


def key_of(variant: Variant) -> CostKey:
    (out,) = key_outs(variant.kernel, [variant.out])
    return CostKey(variant.kernel, variant.alignment, variant.dtype in FP8, variant.config, out)


def key_outs(kernel: str, outs: Iterable[str]) -> list[str]:
    """The `out` of each key that a kernel has for outputs of these dtypes."""
    if KERNELS[kernel].extents != "k_ends":
        return [""]
    return sorted({"fp32" if out == "fp32" else "bf16" for out in outs})


def by_product(measurements: Iterable[Measurement[ProductT]]) -> dict[ProductT, list[Measurement[ProductT]]]:
    found: dict[ProductT, list[Measurement[ProductT]]] = {}
    for m in measurements:
        found.setdefault(m.product, []).append(m)
    return found


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
