"""What gets compiled: kernels, configs, and the one predicate that says which of them fit together."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .arch import ARCHS, Arch

TABLES = Path(__file__).with_name("tables")
CONFIG_FIELDS = ("block_m", "block_n", "block_k", "stages", "warps", "raster", "consumers", "slices")
ELEMENT_BYTES = {"fp16": 2, "bf16": 2}
LAYOUTS = ("nn", "nt", "tn", "tt")

# 64-bit words that a kernel takes by value, in its own parameters, under the 4 KB that every driver since CUDA 12.0
# accepts: 32 groups of 13 words (kernels/schedule.py), or 8 groups with descriptors (kernels/hopper.py) that lie on
# 64 bytes wherever the parameters start; `pack` takes as many as there is room for.
LIST_WORDS = {"basic": 32 * 13, "tma": 32 * 13, "hopper": 8 + 8 * 56 + 7, "pack": 500}


@dataclass(frozen=True, order=True)
class Config:
    """How a kernel is tiled.

    `warps`: of one consumer group, where there are `consumers` groups; `raster`: row tiles that a band of the tile order
    spans; `slices`: parts that a tile is written out in, one buffer for all.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    raster: int = 8
    consumers: int = 1
    slices: int = 1

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k}_s{self.stages}w{self.warps}"
        extras = (("c", self.consumers, 1), ("e", self.slices, 1), ("r", self.raster, 8))
        return text + "".join(f"{letter}{value}" for letter, value, usual in extras if value != usual)


@dataclass(frozen=True)
class Kernel:
    """An entry point in aot/kernels and where it applies. `layouts` by the alignment that they need."""

    name: str
    minimum_sm: int
    exact_sm: bool  # only on minimum_sm, not later
    layouts: dict[int, tuple[str, ...]]  # alignment in bytes -> layouts; alignment 2: the element's own
    dtypes: tuple[str, ...] = ("fp16", "bf16")
    gluon: bool = False

    def runs_on(self, arch: Arch) -> bool:
        return arch.sm == self.minimum_sm or (arch.sm > self.minimum_sm and not self.exact_sm)


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("basic", 80, False, {16: LAYOUTS, 2: (*LAYOUTS, "strided")}),
        Kernel("tma", 90, True, {16: LAYOUTS}),
        Kernel("hopper", 90, True, {16: LAYOUTS}, gluon=True),
        Kernel("pack", 80, False, {8: ("any",)}, ("any",)),
    )
}


@dataclass(frozen=True)
class Variant:
    """One thing to compile."""

    kernel: str
    sm: int
    dtype: str
    layout: str
    alignment: int
    config: Config

    @property
    def name(self) -> str:
        if self.kernel == "pack":
            return f"pack_sm{self.sm}"
        return f"{self.kernel}_sm{self.sm}_{self.dtype}_{self.layout}_a{self.alignment}_{self.config}"


PACK_CONFIG = Config(128, 1, 1, 1, 4)  # block_m: words for each program


def fits(kernel: str, config: Config, arch: Arch, dtype: str, alignment: int) -> str | None:
    """Why the config cannot be compiled well for this architecture, or None if it can.

    The tuner, the builder and the tests of the selector all ask here, so a config is legal everywhere or nowhere.
    """
    definition = KERNELS[kernel]
    if not definition.runs_on(arch):
        return f"{kernel} is for sm_{definition.minimum_sm}{'' if definition.exact_sm else ' and later'}"
    if kernel == "pack":
        return None
    if any(size & (size - 1) for size in (config.block_m, config.block_n, config.block_k)):
        return "Triton's blocks are powers of two"
    tile_bytes = (config.block_m + config.block_n) * config.block_k * ELEMENT_BYTES[dtype]
    threads = 32 * config.warps
    if config.block_m * config.block_n // threads > 128:
        return "more than 128 accumulators a thread spill"
    if kernel == "hopper":
        outputs = config.consumers * config.block_m * config.block_n // config.slices * ELEMENT_BYTES[dtype]
        if tile_bytes * config.stages + outputs + 1024 > arch.shared_bytes:
            return f"{config.stages} stages of {tile_bytes} bytes and outputs exceed {arch.shared_bytes} bytes"
        if config.block_m % (16 * config.warps) or config.block_n % 64 or config.block_k % 64:
            return "a warp multiplies 16 rows, and TMA boxes are 64 elements wide"
    elif alignment == 16:
        # The epilogue reuses the ring; barriers and words of a reduction lie beside it.
        if tile_bytes * config.stages + 1024 > arch.shared_bytes:
            return f"{config.stages} stages of {tile_bytes} bytes exceed {arch.shared_bytes} bytes of shared memory"
    elif (config.block_m + config.block_n) * config.block_k // threads > 32:
        return "unaligned elements are loaded one by one: more than 32 a thread and step spill"
    return None


def table_path(kernel: str, sm: int) -> Path:
    """The configs that `kernel` is compiled in for `sm`. 86, 89, 100 and 120 have no table of their own: sm_80's holds."""
    own = TABLES / f"{kernel}_sm{sm}.json"
    return own if own.exists() else TABLES / f"{kernel}_sm80.json"


def table_rows(kernel: str, sm: int) -> list[dict]:
    """Rows of the kernel's table: {"alignment", "block_m", ..., "raster", "launch_us", "tile_us", "step_us"}."""
    return json.loads(table_path(kernel, sm).read_text())["configs"]


def config_of(row: dict) -> Config:
    return Config(**{name: row[name] for name in CONFIG_FIELDS if name in row})


def variants(archs: Iterable[int]) -> Iterator[Variant]:
    """Everything that a wheel for these architectures holds, in the order of their names."""
    found = []
    for sm in archs:
        arch = ARCHS[sm]
        found.append(Variant("pack", sm, "any", "any", 8, PACK_CONFIG))
        for kernel in KERNELS.values():
            if kernel.name == "pack" or not kernel.runs_on(arch):
                continue
            for row in table_rows(kernel.name, sm):
                config, alignment = config_of(row), row["alignment"]
                for dtype in kernel.dtypes:
                    if fits(kernel.name, config, arch, dtype, alignment) is None:
                        found += [
                            Variant(kernel.name, sm, dtype, layout, alignment, config)
                            for layout in kernel.layouts[alignment]
                        ]
    return iter(sorted(found, key=lambda variant: variant.name))
