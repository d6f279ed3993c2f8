"""What gets compiled: a kernel in a config, and the one predicate that says which of them fit together."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from .abi import ANY, DTYPES, FP8
from .arch import ARCHS, Arch
from .kernels import KERNELS, SIXTEEN_BIT, Kernel

TABLES = Path(__file__).parent.parent / "tables"
ELEMENT_BYTES = {dtype.name: dtype.bytes for dtype in DTYPES.values()}
SCALED_COLUMNS = 128  # for which `quantize` writes one scale
WIDE = 192  # columns of a tile that PTX multiplies: kernels/hopper/wide.py
# Block, warps, consumers, split and slices of fitted tiles: kernels/hopper/fitted.py.
FITTED = (192, 256, 64, 4, 2, 6, 2)
# What the name of a config says only where it is not the default.
LETTERS = {"consumers": "c", "split": "p", "slices": "e", "raster": "r", "cluster": "u"}


@dataclass(frozen=True, order=True)
class Config:
    """How a kernel is tiled. What multiplies nothing has words (`pack`), entries (routing) or rows (those
    that move them) of a step in block_m, bins (routing) or columns (the others) in block_n.

    `warps`: of one consumer group, where there are `consumers` groups; `split`: how many of them share a tile, each
    some of its rows; `raster`: row tiles that a band of the tile order spans; `slices`: parts that a tile is written
    out in. A consumer group alone writes quarters while it multiplies the next tile. `cluster`: CTAs that load a part
    of their tiles for each other.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    raster: int = 8
    consumers: int = 1
    split: int = 1
    slices: int = 1
    cluster: int = 1

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k}_s{self.stages}w{self.warps}"
        unusual = (name for name in LETTERS if getattr(self, name) != getattr(Config, name))
        return text + "".join(f"{LETTERS[name]}{getattr(self, name)}" for name in unusual)


@dataclass(frozen=True)
class Variant:
    """One thing to compile. `dtype` is that of the inputs, `out` that of the outputs."""

    kernel: str
    sm: int
    dtype: str
    out: str
    layout: str
    alignment: int
    config: Config

    @property
    def scaling(self) -> str:
        return KERNELS[self.kernel].scales or ("tensor" if self.dtype in FP8 else "none")

    @property
    def name(self) -> str:
        if not KERNELS[self.kernel].multiplies:
            bins = f"_{self.config.block_n}" if self.config.block_n > 1 and self.dtype == ANY else ""
            dtype = "" if self.dtype == ANY else f"_{self.dtype}_a{self.alignment}"
            return f"{self.kernel}_sm{self.sm}{dtype}{bins}"
        dtypes = self.dtype if self.out == self.dtype else f"{self.dtype}_{self.out}"
        return f"{self.kernel}_sm{self.sm}_{dtypes}_{self.layout}_a{self.alignment}_{self.config}"


def fits(variant: Variant, arch: Arch) -> str | None:
    """Why the variant cannot be compiled well for this architecture, or None if it can.

    The tuner, the builder and the tests of the selector all ask here, so a config is legal everywhere or nowhere.
    """
    kernel, config = KERNELS[variant.kernel], variant.config
    if not kernel.runs_on(arch):
        return f"{kernel.name} is for sm_{kernel.minimum_sm}{'' if kernel.exact_sm else ' and later'}"
    if not kernel.multiplies:
        return _fits_memory(variant)
    wide = kernel.in_parts and config.block_n == WIDE
    sizes = () if wide or kernel.row_step else (config.block_m, config.block_n, config.block_k)
    if any(size != _power_of_two(size) for size in sizes):
        return "Triton's blocks are powers of two"
    if kernel.described:
        return _fits_hopper(variant, arch)
    threads = 32 * config.warps
    if config.block_m * config.block_n // threads > 128:
        return "more than 128 accumulators a thread spill"
    if variant.alignment < 16 and (config.block_m + config.block_n) * config.block_k // threads > 32:
        return "unaligned elements are loaded one by one: more than 32 a thread and step spill"
    # The epilogue reuses the ring, or takes more; barriers and words of a reduction lie beside it.
    output = config.block_m * config.block_n * ELEMENT_BYTES[variant.out]
    return _room(max(_ring_bytes(variant), output) + 1024, arch)


def _fits_memory(variant: Variant) -> str | None:
    """The same for the kernels that multiply nothing."""
    if variant.kernel in ("quantize", "activate_quantize") and variant.config.block_n != SCALED_COLUMNS:
        return f"a scale is for {SCALED_COLUMNS} columns, and a program writes one for each row of its block"
    return None


def is_swapped(kernel: str, config: Config) -> bool:
    """Whether tiles are summed as their transposes, as kernels/hopper/tiling.py says."""
    return KERNELS[kernel].described and config.block_m < 64


def multiplied_in_halves(variant: Variant) -> bool:
    """Whether a tile's columns are multiplied in two batches of 128, in PTX: kernels/hopper/wide.py."""
    kernel = KERNELS[variant.kernel]
    return kernel.in_parts and kernel.extents != "k_ends" and variant.config.block_n == 256


def _fits_hopper(variant: Variant, arch: Arch) -> str | None:
    """The same for the warp-specialized kernels."""
    config, layout = variant.config, variant.layout
    bytes_in, bytes_out = ELEMENT_BYTES[variant.dtype], ELEMENT_BYTES[variant.out]
    kernel = KERNELS[variant.kernel]
    sums = kernel.sums_per_output
    boxes = (
        (config.block_k if layout[0] == "n" else config.block_m) * bytes_in,
        (config.block_n if layout[1] == "n" else config.block_k) * bytes_in,
        config.block_n // sums // config.slices * bytes_out,
    )
    if any(inner % 128 for inner in boxes):
        return f"TMA boxes are 128 bytes wide, and {boxes} bytes of A, B and C are contiguous"
    if config.cluster > 1 and (reason := _not_clustered(variant)):
        return reason
    rows = config.block_m // config.split  # of a consumer group
    block = (config.block_m, config.block_n, config.block_k)
    if kernel.row_step:
        if (*block, config.warps, config.consumers, config.split, config.slices) != FITTED:
            return "fitted tiles have 192 rows at most, in 6 boxes, and 256 columns, half for each of two groups"
        return _room(_ring_bytes(variant) + 16 * kernel.listed_tiles + 512, arch)  # C passes through the ring
    swapped = is_swapped(variant.kernel, config)
    if swapped and (config.consumers, config.slices) != (1, 1):
        return "a tile of less than 64 rows has one consumer group, and is written out whole"
    if swapped and sums == 2 and (kernel.epilogue == "gated_pairs" or config.block_n < 128):
        return "gate and up of a transposed tile are in one thread only as halves of 64 columns and more"
    parts = (3, 6) if kernel.extents == "k_ends" else (3,)
    if config.block_n == WIDE and ((rows, config.block_k) != (64, 128) or config.slices not in parts):
        return f"{WIDE} columns are three parts of a group's 64 rows and of 128 bytes of K, with a buffer each"
    if reason := _unfit_subtiles(variant):
        return reason
    if (config.block_n if swapped else rows) % (16 * config.warps):
        return "a warp multiplies 16 rows"
    # fp8 sums are promoted to a second set of accumulators: wgmma keeps too few bits of its own.
    # It is of 128 columns where they are promoted in parts.
    limit = 64 if variant.dtype in FP8 and not kernel.in_parts else 128
    if rows * config.block_n // (32 * config.warps) > limit:
        return f"more than {limit} accumulators a thread spill"
    ahead = config.consumers == 1 and config.slices * sums == 4
    if ahead and kernel.epilogue == "gated_pairs":
        return "what is written out ahead is rounded in pairs of neighbouring columns, which are in different threads"
    if ahead and (variant.dtype in FP8 or bytes_out != 2):
        return "what is written out ahead was summed without promotion, and rounded to 16 bits"
    if kernel.epilogue == "gated_gradient":
        if (config.consumers, config.block_k, config.block_n) != (1, 64, 2 * config.block_m):
            return "a part of z and what is made of it take a slot of the ring, for one consumer group"
        return _room(_ring_bytes(variant) + 4 * config.block_m * 4 + 1024, arch)  # weights and places of rows
    if config.block_n == WIDE:
        each = 3  # one for each part of a tile's columns
    else:
        each = 2 if kernel.scales and kernel.extents == "k_ends" else 1  # one is filled while TMA reads the other
    buffers = 2 if ahead else config.consumers * each
    outputs = buffers * rows * config.block_n // sums // config.slices * bytes_out
    barriers = 1024  # and what warps are told: 2 * 8 bytes a stage, some 200, and gaps
    return _room(_ring_bytes(variant) + _scale_bytes(variant) + outputs + barriers, arch)


def _unfit_subtiles(variant: Variant) -> str | None:
    """Why consumer groups could not pass each other's parts of a tile, or None if they can."""
    kernel, config = KERNELS[variant.kernel], variant.config
    if kernel.in_parts and config.consumers == 2 and config.split == 1:
        return "two consumer groups that promote sums in parts share each tile"
    if kernel.extents != "k_ends" or config.block_n == WIDE:
        return None
    if kernel.scales and config.slices * min(128, config.block_n) // config.block_n % 2:
        return "the subtiles of 128 columns go through two buffers in turns: their number is even"
    if not kernel.scales and variant.out == "fp32" and config.split == 2:
        # Where sums are added to, subtiles of both groups come through the ring in turns: kernels/hopper/addends.py.
        subtile = config.block_m // config.split * config.block_n // config.slices * ELEMENT_BYTES[variant.out]
        subtiles, in_slot = config.split * config.slices, _ring_bytes(variant) // config.stages // subtile
        if in_slot < 2 or subtiles % in_slot == 1 or -(-subtiles // in_slot) > config.stages:
            return "C comes through the ring: each slot has a subtile of both consumer groups, and there are enough"
    return None


def _not_clustered(variant: Variant) -> str | None:
    """Why kernels/hopper/cluster.py does not have its clusters, or None if it does."""
    kernel, config = KERNELS[variant.kernel], variant.config
    in_turns = kernel.in_parts and kernel.source == "rows" and kernel.extents == "m_ends"
    if not in_turns or kernel.epilogue != "linear" or variant.layout != "nt":
        return "clusters are for ragged rows of fp8 as they lie"
    if (config.cluster, config.block_n, config.split, config.stages % 2) != (2, 256, 2, 0):
        return "clusters have two CTAs, tiles of 256 columns for two consumer groups, and an even number of stages"
    return None


def _scale_bytes(variant: Variant) -> int:
    """Of the scales in the ring: kernels/hopper/scale_ring.py."""
    config = variant.config
    kernel = KERNELS[variant.kernel]
    by_column = kernel.scales == "row" or kernel.extents == "k_ends"
    part = min(128, config.block_n & -config.block_n)
    of_b = _power_of_two(config.block_n if by_column else config.block_n // part)
    rows, slots = config.block_m, config.stages
    if kernel.scales == "block" and kernel.extents == "k_ends" and config.block_n == WIDE:
        slots += 2
    elif kernel.scales == "block" and kernel.extents != "k_ends" and config.block_n > 128:
        rows, slots = config.block_m + 8, _power_of_two(config.stages + 4)  # copied by chunks
    return 4 * (rows + of_b) * slots if kernel.scales else 0


def _power_of_two(count: int) -> int:
    """The least one that is not below."""
    return 1 << (count - 1).bit_length()


def _ring_bytes(variant: Variant) -> int:
    config = variant.config
    step = (config.block_m + config.block_n) * config.block_k * ELEMENT_BYTES[variant.dtype]
    return step * config.stages


def _room(needed: int, arch: Arch) -> str | None:
    if needed > arch.shared_bytes:
        return f"its stages and outputs take {needed} bytes of shared memory, and a block has {arch.shared_bytes}"
    return None


def table_path(kernel: str, sm: int) -> Path:
    """The configs that `kernel` is compiled in for `sm`: its own, or sm_80's for 86, 89, 100 and 120."""
    own = TABLES / f"sm{sm}" / f"{kernel}.json"
    return own if own.exists() else TABLES / "sm80" / f"{kernel}.json"


def table_rows(kernel: str, sm: int) -> list[dict]:
    """Rows of the kernel's table: {"alignment", "block_m", ..., "raster"}, and "dtypes" where they are not the 16-bit
    ones, "outs" where they are not all. What they cost is in the tables of each GPU."""
    return json.loads(table_path(kernel, sm).read_text())["configs"]


def config_of(row: dict) -> Config:
    return Config(**{field.name: row[field.name] for field in fields(Config) if field.name in row})


def dtypes_of(row: dict) -> tuple[str, ...]:
    """The input dtypes that a row of a table is for."""
    return tuple(row.get("dtypes", SIXTEEN_BIT))


def variants(archs: Iterable[int], kernels: Sequence[str] = ()) -> Iterator[Variant]:
    """Everything that a wheel for these architectures holds, in the order of their names; of some kernels alone, and of
    `pack`, which any list may need, where `kernels` names them."""
    found = []
    for sm in archs:
        arch = ARCHS[sm]
        for kernel in KERNELS.values():
            wanted = not kernels or kernel.name in kernels or kernel.form == "upload"
            if wanted and kernel.runs_on(arch):
                found += [v for row in table_rows(kernel.name, sm) for v in _of_row(kernel, row, arch)]
    return iter(sorted(found, key=lambda variant: variant.name))


def _of_row(kernel: Kernel, row: dict, arch: Arch) -> Iterator[Variant]:
    config, alignment = config_of(row), row["alignment"]
    for dtype in dtypes_of(row):
        for out, layout in kernel.forms(arch, dtype, alignment):
            variant = Variant(kernel.name, arch.sm, dtype, out, layout, alignment, config)
            if out in row.get("outs", (out,)) and fits(variant, arch) is None:
                yield variant
