"""The kernels that are compiled: what each does in the words of spec/abi.py, and where it applies."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .abi import ANY, HALVING_EPILOGUES, LAYOUTS, PRODUCTS
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
    SCALED_LIST_DESCRIPTORS,
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
Layouts = Mapping[int, tuple[str, ...]]  # by the alignment in bytes that they need


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
    layouts: Layouts
    fp8_layouts: Layouts = field(default_factory=dict)
    dtypes: tuple[str, ...] = SIXTEEN_BIT  # of `layouts`
    more_outs: tuple[str, ...] = ()  # of `dtypes`, besides their own
    fp8_outs: tuple[str, ...] = FP8_OUTPUTS["e4m3"]  # of fp8 inputs, those of FP8_OUTPUTS
    epilogue: str = "linear"
    source: str = "rows"
    scales: str = ""  # of fp8 inputs; "": one for A, and one for each group's B
    in_parts: bool = False  # sums of fp8 are promoted in parts of a tile's columns: kernels/hopper/promotion.py
    like: str = ""
    extents: str = "host"
    function: str = ""
    row_step: int = 0  # row tiles fit their group, with block_m rows at most, a multiple of these; 0: with block_m
    listed_tiles: int = 0  # that a CTA has at most; 0: as many as there are
    gluon: bool = False  # written in Gluon, where warps or lanes differ
    may_overlap: bool = False  # waits, before it ends, for the launch ahead of it: programmatic dependent launch

    @property
    def entry(self) -> str:
        return self.function or self.name

    @property
    def sums_per_output(self) -> int:
        return 2 if self.epilogue in HALVING_EPILOGUES else 1

    @property
    def ends_partitions(self) -> bool:
        """Of two consumer groups, or else ptxas spills: build/partitions.py."""
        return self.in_parts

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


def _pointers(
    name: str, words: int, layouts: Layouts, fp8_layouts: Layouts | None = None, *, form: str = "grouped", **more: Any
) -> Kernel:
    """A kernel that reads matrices by pointers, on sm_80 and later; on sm_90 alone where all of its inputs are fp8."""
    sm = (80, False) if layouts else (90, True)
    return Kernel(name, "pointer", form, "pointers", *sm, words, layouts, fp8_layouts or {}, **more)


def _descriptors(
    name: str, words: int, layouts: Layouts, fp8_layouts: Layouts | None = None, *, form: str = "grouped", **more: Any
) -> Kernel:
    """A kernel in Gluon that reads matrices by TMA descriptors, which the host made, on sm_90 alone."""
    words += ALIGNING_WORDS
    fp8_layouts = fp8_layouts or {}
    return Kernel(name, "hopper", form, "host_descriptors", 90, True, words, layouts, fp8_layouts, gluon=True, **more)


def _memory(name: str, *alignments: int, form: str = "", words: int = 0, fp8: bool = False, **more: Any) -> Kernel:
    """A kernel that multiplies nothing, which is a form of its own. `fp8`: what it makes is for sm_90 alone."""
    sm = (90, True) if fp8 else (80, False)
    layouts = dict.fromkeys(alignments, (ANY,))
    return Kernel(name, "memory", form or name, "pointers", *sm, words, layouts, **more)


def _lists() -> Iterator[Kernel]:
    """By value 32 groups (kernels/schedule.py), with scales of rows or blocks 26; with descriptors 8
    (kernels/hopper/hopper.py), with such scales 7."""
    groups = 32 * (1 + LIST_POINTERS.words)
    yield _pointers("basic", groups, {16: UNIT_LAYOUTS, 2: LAYOUTS}, {1: ("nt", "strided")}, form="list")
    yield Kernel("tma", "tma", "list", "device_descriptors", 90, True, groups, {16: UNIT_LAYOUTS})
    yield _descriptors("hopper", 8 + 8 * LIST_DESCRIPTORS.words, {16: UNIT_LAYOUTS}, {16: ("nt",)}, form="list")
    for scales in ("row", "block"):
        yield _pointers(
            f"basic_{scales}_scales", 26 * (1 + SCALED_LIST_POINTERS.words), {}, {1: ("strided",)}, form="list",
            scales=scales, like="basic", function="basic_scaled",
        )  # fmt: skip
        yield _descriptors(
            f"hopper_{scales}_scales", 8 + 7 * SCALED_LIST_DESCRIPTORS.words, {}, {16: ("nt",)}, form="list",
            scales=scales, like=f"hopper_ragged_{scales}_scales", function="hopper_scaled_list", in_parts=True,
        )  # fmt: skip
    # One scale for each A and B: large tiles, by the same loop. Smaller ones are `hopper`'s.
    yield _descriptors(
        "hopper_tensor_scales", 8 + 8 * LIST_DESCRIPTORS.words, {}, {16: ("nt",)}, form="list",
        like="hopper_ragged_row_scales", function="hopper_scaled_list", in_parts=True,
    )  # fmt: skip


def _around_products() -> Iterator[Kernel]:
    """What brings records to the device, routes, and stands before and behind a product."""
    yield _memory("pack", 8, form="upload", words=500, dtypes=(ANY,))  # as many words as there is room for
    yield _memory("route_count", 4, dtypes=(ANY,), gluon=True)
    yield _memory("route_place", 4, dtypes=(ANY,), gluon=True)
    yield _memory("combine", 16, 2)
    yield _memory("gather", 16, 2)
    yield _memory("activate", 16, 2)
    yield _memory("activation_gradient", 16, 2)
    yield _memory("quantize", 16, 2, fp8=True, may_overlap=True)
    yield _memory("activate_quantize", 16, 2, fp8=True)
    yield _memory("add_parts", 16, 2, dtypes=(*SIXTEEN_BIT, "fp32"))
    yield _memory("add_row_sums", 4, dtypes=(ANY,))


def _ragged_rows() -> Iterator[Kernel]:
    """A group may start at any row, so nothing of an A with rows contiguous is aligned: tn and tt have no 16. For the
    same reason TMA cannot fetch its rows: a box starts on 16 bytes, or the instruction is illegal."""
    yield _pointers(
        "basic_ragged", GROUPED_POINTERS.words, {16: ("nn", "nt"), 2: LAYOUTS}, {1: ("nt", "strided")}, extents="m_ends"
    )
    yield _descriptors("hopper_ragged", GROUPED_DESCRIPTORS.words, {16: ("nn", "nt")}, {16: ("nt",)}, extents="m_ends")
    yield _descriptors(  # its tiles are as tall as their group asks
        "hopper_ragged_fitted", GROUPED_DESCRIPTORS.words, {16: ("nn", "nt")}, extents="m_ends", row_step=8,
        listed_tiles=128,
    )  # fmt: skip


def _scaled() -> Iterator[Kernel]:
    """fp8 with a scale for each row of A and column of B, or for each block of them."""
    for scales in ("row", "block"):
        for form, extents, pointers, descriptors in (
            ("ragged", "m_ends", SCALED_POINTERS, SCALED_DESCRIPTORS),
            ("stack", "m_counts", SCALED_STACK_POINTERS, SCALED_STACK_DESCRIPTORS),
        ):
            yield _pointers(
                f"basic_{form}_{scales}_scales", pointers.words, {}, {1: ("strided",)}, scales=scales,
                like="basic_ragged", extents=extents, function=f"basic_{form}",
            )  # fmt: skip
            yield _descriptors(
                f"hopper_{form}_{scales}_scales", descriptors.words, {}, {16: ("nt",)}, scales=scales,
                like="hopper_ragged", extents=extents, in_parts=True,
                function="hopper_scaled" if form == "ragged" else "hopper_scaled_stack",
            )  # fmt: skip
    # One scale for A and one for each group's B: large tiles, by the same loop. Smaller ones are `hopper_ragged`'s.
    for form, extents in (("ragged", "m_ends"), ("stack", "m_counts")):
        yield _descriptors(
            f"hopper_{form}_tensor_scales", GROUPED_DESCRIPTORS.words, {}, {16: ("nt",)},
            like=f"hopper_{form}_row_scales", extents=extents, in_parts=True,
            function="hopper_scaled" if form == "ragged" else "hopper_scaled_stack",
        )  # fmt: skip
    # The up projection of a layer of experts in fp8, and the same with the activation and its quantization.
    for name, epilogue, record, out in (
        ("hopper_gather_block_scales", "linear", GATHERED_SCALED_DESCRIPTORS, "bf16"),
        ("hopper_gather_quantized", "gated_quantized", QUANTIZED_DESCRIPTORS, "e4m3"),
    ):
        yield _descriptors(
            name, record.words, {}, {16: ("nt",)}, fp8_outs=(out,), epilogue=epilogue, source="indexed", scales="block",
            like="hopper_ragged_block_scales", extents="m_ends", function="hopper_scaled", in_parts=True,
        )  # fmt: skip


def _up_projections() -> Iterator[Kernel]:
    """Rows by an index, a gated activation, or both."""
    yield _pointers(
        "basic_gated", GATED_POINTERS.words, {16: ("nn", "nt")}, epilogue="gated", source="either", like="basic_ragged",
        extents="m_ends",
    )  # fmt: skip
    for name, epilogue, source, layouts in (
        ("hopper_gated", "gated", "rows", ("nn", "nt")),
        ("hopper_gated_pairs", "gated_pairs", "rows", ("nn",)),
        ("hopper_gather", "linear", "indexed", ("nn", "nt")),
        ("hopper_gather_gated", "gated", "indexed", ("nn", "nt")),
        ("hopper_gather_gated_pairs", "gated_pairs", "indexed", ("nn",)),
    ):
        yield _descriptors(
            name, GATED_DESCRIPTORS.words, {16: layouts}, epilogue=epilogue, source=source, like="hopper_ragged",
            extents="m_ends", function="hopper_ragged",
        )  # fmt: skip


def _ragged_k() -> Iterator[Kernel]:
    """A group may start at any K: a matrix with K contiguous is aligned nowhere."""
    yield _pointers(
        "basic_ragged_k", GROUPED_K_POINTERS.words, {16: ("tn",), 2: LAYOUTS}, more_outs=("fp32",), like="basic_ragged",
        extents="k_ends",
    )  # fmt: skip
    for name, record, source in (
        ("hopper_ragged_k", GROUPED_K_DESCRIPTORS, "rows"),
        ("hopper_gather_k", GATHER_K_DESCRIPTORS, "indexed"),
        ("hopper_gather_k_b", GATHER_K_DESCRIPTORS, "indexed_b"),
    ):
        yield _descriptors(
            name, record.words, {16: ("tn",)}, more_outs=("fp32",), source=source, like="hopper_ragged",
            extents="k_ends", function="hopper_ragged_k",
        )  # fmt: skip
    # fp8 with a scale for each 1x128 of A and of B^T, counted from each group's start.
    of_fp8 = {"fp8_outs": OF_WEIGHT_GRADIENTS, "scales": "block", "extents": "k_ends"}
    yield _pointers(
        "basic_ragged_k_block_scales", SCALED_K_POINTERS.words, {}, {1: ("strided",)}, like="basic_ragged_block_scales",
        **of_fp8,
    )  # fmt: skip
    yield _descriptors(
        "hopper_ragged_k_block_scales", SCALED_K_DESCRIPTORS.words, {}, {16: ("nt",)},
        like="hopper_ragged_block_scales", in_parts=True, **of_fp8,
    )  # fmt: skip


def _gradients() -> Iterator[Kernel]:
    """Up projections that keep the pre-activation, and the way back through the activation."""
    for name, source, like in (
        ("hopper_gated_kept", "rows", "hopper_gated"),
        ("hopper_gather_gated_kept", "indexed", "hopper_gather_gated"),
    ):
        yield _descriptors(
            name, KEPT_DESCRIPTORS.words, {16: ("nn", "nt")}, epilogue="gated_kept", source=source, like=like,
            extents="m_ends", function="hopper_kept",
        )  # fmt: skip
    yield _descriptors(
        "hopper_gather_dgated", GRADIENT_DESCRIPTORS.words, {16: ("nn", "nt")}, epilogue="gated_gradient",
        source="indexed", like="hopper_gather", extents="m_ends", function="hopper_dgated",
    )  # fmt: skip


def _stacks() -> Iterator[Kernel]:
    """Groups of a stack start where the host says, so an A with rows contiguous may be aligned."""
    yield _pointers(
        "basic_stack", STACK_POINTERS.words, {16: UNIT_LAYOUTS, 2: LAYOUTS}, {1: ("nt", "strided")},
        like="basic_ragged", extents="m_counts",
    )  # fmt: skip
    for name, epilogue, record, layouts, fp8_layouts in (
        ("hopper_stack", "linear", GROUPED_DESCRIPTORS, UNIT_LAYOUTS, {16: ("nt",)}),
        ("hopper_stack_gated", "gated", GATED_DESCRIPTORS, ("nn", "nt"), {}),
        ("hopper_stack_gated_pairs", "gated_pairs", GATED_DESCRIPTORS, ("nn",), {}),
    ):
        yield _descriptors(
            name, record.words, {16: layouts}, fp8_layouts, epilogue=epilogue, like="hopper_ragged", extents="m_counts",
            function="hopper_stack",
        )  # fmt: skip


FAMILIES = (
    _lists, _around_products, _ragged_rows, _scaled, _up_projections, _ragged_k, _gradients, _stacks,
)  # fmt: skip
KERNELS = {kernel.name: kernel for family in FAMILIES for kernel in family()}
LIST_WORDS = {kernel.name: kernel.parameter_words for kernel in KERNELS.values()}
