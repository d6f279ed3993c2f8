"""The kernels that are compiled: what each does in the words of spec/abi.py, and where it applies."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from .abi import ANY, LAYOUTS, PRODUCTS
from .arch import Arch
from .records import (
    GATED_DESCRIPTORS,
    GATED_POINTERS,
    GATHER_K_DESCRIPTORS,
    GATHERED_SCALED_DESCRIPTORS,
    GRADIENT_DESCRIPTORS,
    GROUPED_DESCRIPTORS,
    GROUPED_K_DESCRIPTORS,
    GROUPED_K_POINTERS,
    GROUPED_POINTERS,
    KEPT_DESCRIPTORS,
    LIST_DESCRIPTORS,
    LIST_POINTERS,
    QUANTIZED_DESCRIPTORS,
    SCALED_DESCRIPTORS,
    SCALED_K_DESCRIPTORS,
    SCALED_K_POINTERS,
    SCALED_LIST_POINTERS,
    SCALED_POINTERS,
    SCALED_STACK_DESCRIPTORS,
    SCALED_STACK_POINTERS,
    STACK_POINTERS,
)

UNIT_LAYOUTS = LAYOUTS[:4]  # one stride of A and of B is 1
SIXTEEN_BIT = ("fp16", "bf16")  # inputs whose outputs are of the same type
FP8_OUTPUTS = {"e4m3": ("fp16", "bf16", "fp32", "e4m3"), "e5m2": ("bf16", "fp32")}  # by the dtype of A
OF_WEIGHT_GRADIENTS = ("bf16", "fp32")  # of fp8
ALIGNING_WORDS = 7  # let descriptors lie on 64 bytes wherever the parameters start


@dataclass(frozen=True)
class Kernel:
    """A kernel of a folder of aot/kernels: what it does in the words of spec/abi.py, and where it applies.

    `function`: the entry point's name and its file's, where several kernels are one function with other policies.

    `parameter_words`: the 64-bit words that it takes by value, in its own parameters. They stay under the 4 KB that
    every driver since CUDA 12.0 accepts.

    `like`: the kernel whose figures stand in for its own, at the same tile; and where extents are the same, its
    measured rows too.

    `layouts` and `fp8_layouts` say, by the alignment in bytes that they need, what is compiled for 16-bit and for fp8
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
    fp8_outs: tuple[str, ...] = FP8_OUTPUTS["e4m3"]  # of fp8 inputs, those of FP8_OUTPUTS
    epilogue: str = "linear"
    source: str = "rows"
    scales: str = ""  # of fp8 inputs; "": one for A, and one for each group's B
    like: str = ""
    extents: str = "host"
    function: str = ""
    row_step: int = 0  # row tiles fit their group, with block_m rows at most, a multiple of these; 0: with block_m
    listed_tiles: int = 0  # that a CTA has at most; 0: as many as there are
    gluon: bool = False  # written in Gluon, where warps or lanes differ
    ends_partitions: bool = False  # of two consumer groups, or else ptxas spills: build/partitions.py
    may_overlap: bool = False  # waits, before it ends, for the launch ahead of it: programmatic dependent launch

    @property
    def entry(self) -> str:
        return self.function or self.name

    @property
    def sums_per_output(self) -> int:
        return 1 if self.epilogue in ("linear", "gated_gradient") else 2

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
            outs = tuple(out for out in FP8_OUTPUTS.get(dtype, ()) if out in self.fp8_outs)
            layouts = self.fp8_layouts if arch.fp8 else {}
        return itertools.product(outs, layouts.get(alignment, ()))


KERNELS = {
    kernel.name: kernel
    for kernel in (
        # By value 32 groups (kernels/schedule.py), with scales of rows or blocks 26, with descriptors 8
        # (kernels/hopper/hopper.py); `pack` takes as many words as there is room for, a kernel for grouped products its
        # one record.
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
        *(
            Kernel(
                f"basic_{scales}_scales",
                "pointer",
                "list",
                "pointers",
                90,
                True,
                26 * (1 + SCALED_LIST_POINTERS.words),
                {},
                {1: ("strided",)},
                scales=scales,
                like="basic",
                function="basic_scaled",
            )
            for scales in ("row", "block")
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
        Kernel("quantize", "memory", "quantize", "pointers", 90, True, 0, {16: (ANY,), 2: (ANY,)}, may_overlap=True),
        Kernel("activate_quantize", "memory", "activate_quantize", "pointers", 90, True, 0, {16: (ANY,), 2: (ANY,)}),
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
        Kernel("add_row_sums", "memory", "add_row_sums", "pointers", 80, False, 0, {4: (ANY,)}, dtypes=(ANY,)),
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
        # Its tiles are as tall as their group asks.
        Kernel(
            "hopper_ragged_fitted",
            "hopper",
            "grouped",
            "host_descriptors",
            90,
            True,
            GROUPED_DESCRIPTORS.words + ALIGNING_WORDS,
            {16: ("nn", "nt")},
            extents="m_ends",
            row_step=8,
            listed_tiles=128,
            gluon=True,
        ),
        # fp8 with a scale for each row of A and column of B, or for each block of them.
        *(
            Kernel(
                f"{family}_{form}_{scales}_scales",
                "hopper" if family == "hopper" else "pointer",
                "grouped",
                addressing,
                90,
                True,
                words,
                {},
                layouts,
                scales=scales,
                like=f"{family}_ragged",
                extents=extents,
                function=entry,
                gluon=family == "hopper",
                ends_partitions=family == "hopper",
            )
            for scales in ("row", "block")
            for form, extents, pointers, descriptors in (
                ("ragged", "m_ends", SCALED_POINTERS, SCALED_DESCRIPTORS),
                ("stack", "m_counts", SCALED_STACK_POINTERS, SCALED_STACK_DESCRIPTORS),
            )
            for family, entry, addressing, words, layouts in (
                ("basic", f"basic_{form}", "pointers", pointers.words, {1: ("strided",)}),
                (
                    "hopper",
                    "hopper_scaled" if form == "ragged" else "hopper_scaled_stack",
                    "host_descriptors",
                    descriptors.words + ALIGNING_WORDS,
                    {16: ("nt",)},
                ),
            )
        ),
        # The up projection of a layer of experts in fp8, and the same with the activation and its quantization.
        *(
            Kernel(
                name,
                "hopper",
                "grouped",
                "host_descriptors",
                90,
                True,
                record.words + ALIGNING_WORDS,
                {},
                {16: ("nt",)},
                fp8_outs=(out,),
                epilogue=epilogue,
                source="indexed",
                scales="block",
                like="hopper_ragged_block_scales",
                extents="m_ends",
                function="hopper_scaled",
                gluon=True,
                ends_partitions=True,
            )
            for name, epilogue, record, out in (
                ("hopper_gather_block_scales", "linear", GATHERED_SCALED_DESCRIPTORS, "bf16"),
                ("hopper_gather_quantized", "gated_quantized", QUANTIZED_DESCRIPTORS, "e4m3"),
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
        # fp8 with a scale for each 1x128 of A and of B^T, counted from each group's start.
        Kernel(
            "basic_ragged_k_block_scales",
            "pointer",
            "grouped",
            "pointers",
            90,
            True,
            SCALED_K_POINTERS.words,
            {},
            {1: ("strided",)},
            fp8_outs=OF_WEIGHT_GRADIENTS,
            scales="block",
            like="basic_ragged_block_scales",
            extents="k_ends",
        ),
        Kernel(
            "hopper_ragged_k_block_scales",
            "hopper",
            "grouped",
            "host_descriptors",
            90,
            True,
            SCALED_K_DESCRIPTORS.words + ALIGNING_WORDS,
            {},
            {16: ("nt",)},
            fp8_outs=OF_WEIGHT_GRADIENTS,
            scales="block",
            like="hopper_ragged_block_scales",
            extents="k_ends",
            gluon=True,
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
            {1: ("nt", "strided")},
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
        Kernel(
            "hopper_gather_dgated",
            "hopper",
            "grouped",
            "host_descriptors",
            90,
            True,
            GRADIENT_DESCRIPTORS.words + ALIGNING_WORDS,
            {16: ("nn", "nt")},
            epilogue="gated_gradient",
            source="indexed",
            like="hopper_gather",
            extents="m_ends",
            function="hopper_dgated",
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
                record.words + ALIGNING_WORDS,
                {16: layouts},
                fp8_layouts,
                epilogue=epilogue,
                like="hopper_ragged",
                extents="m_counts",
                function="hopper_stack",
                gluon=True,
            )
            for name, epilogue, record, layouts, fp8_layouts in (
                ("hopper_stack", "linear", GROUPED_DESCRIPTORS, UNIT_LAYOUTS, {16: ("nt",)}),
                ("hopper_stack_gated", "gated", GATED_DESCRIPTORS, ("nn", "nt"), {}),
                ("hopper_stack_gated_pairs", "gated_pairs", GATED_DESCRIPTORS, ("nn",), {}),
            )
        ),
    )
}
LIST_WORDS = {kernel.name: kernel.parameter_words for kernel in KERNELS.values()}
