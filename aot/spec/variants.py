"""What gets compiled: kernels, configs, and the one predicate that says which of them fit together."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from .abi import ANY, DTYPES, LAYOUTS, PRODUCTS
from .arch import ARCHS, Arch
from .records import (
    GATED_DESCRIPTORS,
    GATED_POINTERS,
    GATHER_K_DESCRIPTORS,
    GROUPED_DESCRIPTORS,
    GROUPED_K_DESCRIPTORS,
    GROUPED_K_POINTERS,
    GROUPED_POINTERS,
    KEPT_DESCRIPTORS,
    LIST_DESCRIPTORS,
    LIST_POINTERS,
    SCALED_DESCRIPTORS,
    SCALED_POINTERS,
    STACK_POINTERS,
)

TABLES = Path(__file__).parent.parent / "tables"
ELEMENT_BYTES = {dtype.name: dtype.bytes for dtype in DTYPES.values()}
UNIT_LAYOUTS = LAYOUTS[:4]  # one stride of A and of B is 1
SIXTEEN_BIT = ("fp16", "bf16")  # inputs whose outputs are of the same type
FP8_OUTPUTS = ("fp16", "bf16", "fp32", "e4m3")
# What the name of a config says only where it is not the default.
LETTERS = {"consumers": "c", "split": "p", "slices": "e", "raster": "r"}
ALIGNING_WORDS = 7  # let descriptors lie on 64 bytes wherever the parameters start


@dataclass(frozen=True, order=True)
class Config:
    """How a kernel is tiled. What multiplies nothing has words (`pack`), entries (routing) or rows (those
    that move them) of a step in block_m, bins (routing) or columns (the others) in block_n.

    `warps`: of one consumer group, where there are `consumers` groups; `split`: how many of them share a tile, each
    some of its rows; `raster`: row tiles that a band of the tile order spans; `slices`: parts that a tile is written
    out in. A consumer group alone writes quarters while it multiplies the next tile.
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

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k}_s{self.stages}w{self.warps}"
        unusual = (name for name in LETTERS if getattr(self, name) != getattr(Config, name))
        return text + "".join(f"{LETTERS[name]}{getattr(self, name)}" for name in unusual)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a folder of aot/kernels: what it does in the words of spec/abi.py, and where it applies.

    `function`: the entry point's name and its file's, where several kernels are one function with other policies.

    `parameter_words`: the 64-bit words that it takes by value, in its own parameters. They stay under the 4 KB that
    every driver since CUDA 12.0 accepts.

    `like`: the kernel whose figures stand in for its own, at the same tile; and where extents are the same, its
    measured rows too.

    `layouts` and `fp8_layouts` say, by the alignment in bytes that they need, what is compiled for 16-bit and for e4m3
    inputs; an alignment of 2 or 1 is the element's own.
    """

    name: str
    folder: str
    form: str
    addressing: str
    minimum_sm: int
    exact_sm: bool  # only on minimum_sm, not later
    parameter_words: int
    layouts: dict[int, tuple[str, ...]]
    fp8_layouts: dict[int, tuple[str, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = SIXTEEN_BIT  # of `layouts`
    more_outs: tuple[str, ...] = ()  # of `dtypes`, besides their own
    epilogue: str = "linear"
    source: str = "rows"
    scales: str = ""  # of e4m3 inputs; "": one for A, and one for each group's B
    like: str = ""
    extents: str = "host"
    function: str = ""
    gluon: bool = False  # written in Gluon, where warps or lanes differ

    @property
    def entry(self) -> str:
        return self.function or self.name

    @property
    def sums_per_output(self) -> int:
        return 1 if self.epilogue == "linear" else 2

    @property
    def multiplies(self) -> bool:
        return self.form in PRODUCTS

    @property
    def described(self) -> bool:
        """Whether it has TMA descriptors among its words."""
        return self.addressing == "host_descriptors"

    def runs_on(self, arch: Arch) -> bool:
        return arch.sm == self.minimum_sm or (arch.sm > self.minimum_sm and not self.exact_sm)

    def forms(self, arch: Arch, dtype: str, alignment: int) -> Iterator[tuple[str, str]]:
        """(output dtype, layout) of what is compiled for inputs of a dtype and an alignment."""
        if dtype in self.dtypes:
            outs, layouts = (dtype, *self.more_outs), self.layouts
        else:
            outs, layouts = FP8_OUTPUTS, self.fp8_layouts if arch.fp8 else {}
        return itertools.product(outs, layouts.get(alignment, ()))


KERNELS = {
    kernel.name: kernel
    for kernel in (
        # By value 32 groups (kernels/schedule.py), with descriptors 8 (kernels/hopper/hopper.py); `pack` takes as many
        # words as there is room for, a kernel for grouped products its one record.
        Kernel(
            "basic",
            "pointer",
            "list",
            "pointers",
            80,
            False,
            32 * (1 + LIST_POINTERS.words),
            {16: UNIT_LAYOUTS, 2: LAYOUTS},
            {1: ("nt", "strided")},
        ),
        Kernel(
            "tma", "tma", "list", "device_descriptors", 90, True, 32 * (1 + LIST_POINTERS.words), {16: UNIT_LAYOUTS}
        ),
        Kernel(
            "hopper",
            "hopper",
            "list",
            "host_descriptors",
            90,
            True,
            8 + 8 * LIST_DESCRIPTORS.words + ALIGNING_WORDS,
            {16: UNIT_LAYOUTS},
            {16: ("nt",)},
            gluon=True,
        ),
        Kernel("pack", "memory", "upload", "pointers", 80, False, 500, {8: (ANY,)}, dtypes=(ANY,)),
        Kernel(
            "route_count", "memory", "route_count", "pointers", 80, False, 0, {4: (ANY,)}, dtypes=(ANY,), gluon=True
        ),
        Kernel(
            "route_place", "memory", "route_place", "pointers", 80, False, 0, {4: (ANY,)}, dtypes=(ANY,), gluon=True
        ),
        Kernel("combine", "memory", "combine", "pointers", 80, False, 0, {16: (ANY,), 2: (ANY,)}),
        Kernel("gather", "memory", "gather", "pointers", 80, False, 0, {16: (ANY,), 2: (ANY,)}),
        Kernel("activate", "memory", "activate", "pointers", 80, False, 0, {16: (ANY,), 2: (ANY,)}),
        Kernel(
            "activation_gradient", "memory", "activation_gradient", "pointers", 80, False, 0, {16: (ANY,), 2: (ANY,)}
        ),
        Kernel("quantize", "memory", "quantize", "pointers", 90, True, 0, {16: (ANY,), 2: (ANY,)}),
        Kernel(
            "add_parts",
            "memory",
            "add_parts",
            "pointers",
            80,
            False,
            0,
            {16: (ANY,), 2: (ANY,)},
            dtypes=(*SIXTEEN_BIT, "fp32"),
        ),
        # A group may start at any row, so nothing of an A with rows contiguous is aligned: tn and tt have no 16.
        Kernel(
            "basic_ragged",
            "pointer",
            "grouped",
            "pointers",
            80,
            False,
            GROUPED_POINTERS.words,
            {16: ("nn", "nt"), 2: LAYOUTS},
            {1: ("nt", "strided")},
            extents="m_ends",
        ),
        # For the same reason TMA cannot fetch its rows: a box starts on 16 bytes, or the instruction is illegal.
        Kernel(
            "hopper_ragged",
            "hopper",
            "grouped",
            "host_descriptors",
            90,
            True,
            GROUPED_DESCRIPTORS.words + ALIGNING_WORDS,
            {16: ("nn", "nt")},
            {16: ("nt",)},
            extents="m_ends",
            gluon=True,
        ),
        # e4m3 with a scale for each row of A and column of B, or for each block of them.
        *(
            Kernel(
                f"{function}_{scales}_scales",
                folder,
                "grouped",
                addressing,
                90,
                True,
                words,
                {},
                layouts,
                scales=scales,
                like=function,
                extents="m_ends",
                function=function,
                gluon=folder == "hopper",
            )
            for scales in ("row", "block")
            for function, folder, addressing, words, layouts in (
                ("basic_ragged", "pointer", "pointers", SCALED_POINTERS.words, {1: ("strided",)}),
                (
                    "hopper_ragged",
                    "hopper",
                    "host_descriptors",
                    SCALED_DESCRIPTORS.words + ALIGNING_WORDS,
                    {16: ("nt",)},
                ),
            )
        ),
        Kernel(
            "basic_gated",
            "pointer",
            "grouped",
            "pointers",
            80,
            False,
            GATED_POINTERS.words,
            {16: ("nn", "nt")},
            epilogue="gated",
            source="either",
            like="basic_ragged",
            extents="m_ends",
        ),
        *(
            Kernel(
                name,
                "hopper",
                "grouped",
                "host_descriptors",
                90,
                True,
                GATED_DESCRIPTORS.words + ALIGNING_WORDS,
                {16: layouts},
                epilogue=epilogue,
                source=source,
                like="hopper_ragged",
                extents="m_ends",
                function="hopper_ragged",
                gluon=True,
            )
            for name, epilogue, source, layouts in (
                ("hopper_gated", "gated", "rows", ("nn", "nt")),
                ("hopper_gated_pairs", "gated_pairs", "rows", ("nn",)),
                ("hopper_gather", "linear", "indexed", ("nn", "nt")),
                ("hopper_gather_gated", "gated", "indexed", ("nn", "nt")),
                ("hopper_gather_gated_pairs", "gated_pairs", "indexed", ("nn",)),
            )
        ),
        # A group may start at any K: a matrix with K contiguous is aligned nowhere.
        Kernel(
            "basic_ragged_k",
            "pointer",
            "grouped",
            "pointers",
            80,
            False,
            GROUPED_K_POINTERS.words,
            {16: ("tn",), 2: LAYOUTS},
            more_outs=("fp32",),
            like="basic_ragged",
            extents="k_ends",
        ),
        Kernel(
            "hopper_ragged_k",
            "hopper",
            "grouped",
            "host_descriptors",
            90,
            True,
            GROUPED_K_DESCRIPTORS.words + ALIGNING_WORDS,
            {16: ("tn",)},
            more_outs=("fp32",),
            like="hopper_ragged",
            extents="k_ends",
            gluon=True,
        ),
        *(
            Kernel(
                name,
                "hopper",
                "grouped",
                "host_descriptors",
                90,
                True,
                GATHER_K_DESCRIPTORS.words + ALIGNING_WORDS,
                {16: ("tn",)},
                more_outs=("fp32",),
                source=source,
                like="hopper_ragged",
                extents="k_ends",
                function="hopper_ragged_k",
                gluon=True,
            )
            for name, source in (("hopper_gather_k", "indexed"), ("hopper_gather_k_b", "indexed_b"))
        ),
        # Groups of a stack start where the host says, so an A with rows contiguous may be aligned.
        Kernel(
            "basic_stack",
            "pointer",
            "grouped",
            "pointers",
            80,
            False,
            STACK_POINTERS.words,
            {16: UNIT_LAYOUTS, 2: LAYOUTS},
            like="basic_ragged",
            extents="m_counts",
        ),
        *(
            Kernel(
                name,
                "hopper",
                "grouped",
                "host_descriptors",
                90,
                True,
                KEPT_DESCRIPTORS.words + ALIGNING_WORDS,
                {16: ("nn", "nt")},
                epilogue="gated_kept",
                source=source,
                like=like,
                extents="m_ends",
                function="hopper_kept",
                gluon=True,
            )
            for name, source, like in (
                ("hopper_gated_kept", "rows", "hopper_gated"),
                ("hopper_gather_gated_kept", "indexed", "hopper_gather_gated"),
            )
        ),
        *(
            Kernel(
                name,
                "hopper",
                "grouped",
                "host_descriptors",
                90,
                True,
                record.words + ALIGNING_WORDS,
                {16: layouts},
                epilogue=epilogue,
                like="hopper_ragged",
                extents="m_counts",
                function="hopper_stack",
                gluon=True,
            )
            for name, epilogue, record, layouts in (
                ("hopper_stack", "linear", GROUPED_DESCRIPTORS, UNIT_LAYOUTS),
                ("hopper_stack_gated", "gated", GATED_DESCRIPTORS, ("nn", "nt")),
                ("hopper_stack_gated_pairs", "gated_pairs", GATED_DESCRIPTORS, ("nn",)),
            )
        ),
    )
}
LIST_WORDS = {kernel.name: kernel.parameter_words for kernel in KERNELS.values()}


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
        return KERNELS[self.kernel].scales or ("tensor" if self.dtype == "e4m3" else "none")

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
        return None
    if any(size & (size - 1) for size in (config.block_m, config.block_n, config.block_k)):
        return "Triton's blocks are powers of two"
    if kernel.described:
        return _fits_hopper(variant, arch)
    threads = 32 * config.warps
    if config.block_m * config.block_n // threads > 128:
        return "more than 128 accumulators a thread spill"
    if variant.alignment < 16 and (config.block_m + config.block_n) * config.block_k // threads > 32:
        return "unaligned elements are loaded one by one: more than 32 a thread and step spill"
    # The epilogue reuses the ring; barriers and words of a reduction lie beside it.
    return _room(_ring_bytes(variant) + 1024, arch)


def grouped_sibling(kernel: str) -> str | None:
    """The kernel for grouped products that reaches matrices as `kernel` does, and goes through the same pipeline."""
    alike = (other.name for other in KERNELS.values() if other.addressing == KERNELS[kernel].addressing)
    return next((name for name in alike if KERNELS[name].form == "grouped"), None)


def is_swapped(kernel: str, config: Config) -> bool:
    """Whether tiles are summed as their transposes, as kernels/hopper/tiling.py says."""
    return KERNELS[kernel].described and config.block_m < 64


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
    rows = config.block_m // config.split  # of a consumer group
    swapped = is_swapped(variant.kernel, config)
    if swapped and (config.consumers, config.slices) != (1, 1):
        return "a tile of less than 64 rows has one consumer group, and is written out whole"
    if swapped and sums == 2 and (kernel.epilogue == "gated_pairs" or config.block_n < 128):
        return "gate and up of a transposed tile are in one thread only as halves of 64 columns and more"
    if (config.block_n if swapped else rows) % (16 * config.warps):
        return "a warp multiplies 16 rows"
    # fp8 sums are promoted to a second set of accumulators: wgmma keeps too few bits of its own.
    limit = 64 if variant.dtype == "e4m3" else 128
    if rows * config.block_n // (32 * config.warps) > limit:
        return f"more than {limit} accumulators a thread spill"
    ahead = config.consumers == 1 and config.slices * sums == 4
    if ahead and kernel.epilogue == "gated_pairs":
        return "what is written out ahead is rounded in pairs of neighbouring columns, which are in different threads"
    if ahead and (variant.dtype == "e4m3" or bytes_out != 2):
        return "what is written out ahead was summed without promotion, and rounded to 16 bits"
    buffers = 2 if ahead else config.consumers
    outputs = buffers * rows * config.block_n // sums // config.slices * bytes_out
    return _room(_ring_bytes(variant) + outputs + 1024, arch)


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
