"""What this wheel holds, what it would choose, and whether it is whole."""

import hashlib
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from . import _C
from .arguments import refuse_with_lists
from .arrays import Array, is_array
from .errors import ArtifactError, UnsupportedError
from .facts import Candidate, DeviceFacts, Kernel, Manifest, Part

_MANIFEST = Path(__file__).with_name("manifest.json")


def kernels() -> list[Kernel]:
    """The embedded kernels, one dict each, sorted by name.

    Keys:
        name: as `explain` and `Plan` tell it, and `variant` takes it.
        kernel: the function of the builder that it was compiled from.
        form: products of a "list", "grouped" ones, or a step around them, such as "gather" and "combine".
        extents: what tells the sizes of groups: the "host", or on the device ends of rows, ends along K, or counts.
        addressing: by pointers, or by TMA descriptors that the device or the host makes.
        epilogue: what becomes of sums: written as they are, or through a gated activation, or its gradient.
        source: whether rows of A, or of B, are picked by an index.
        scaling: what scales multiply: nothing, or float8 inputs by one, by rows or by blocks.
        sm: the architecture: 80 serves 8.0 and later, as PTX any later one, 90 serves 9.0 alone.
        dtype, out_dtype: of the inputs, and of the output.
        layout: of A and B, n for rows and t for columns that are contiguous.
        alignment: bytes that it takes for granted of pointers, leading strides and contiguous extents.
        block_m, block_n, block_k: rows and columns of an output tile, and the K of a step.
        row_step: 0, or where row tiles are as tall as their group asks, up to block_m: of how many rows a multiple.
        stages: steps whose inputs shared memory holds at once.
        raster: row tiles that are walked together, column by column.
        listed_tiles: tiles that a CTA has at most; 0 for any number.
        consumers, split, slices: warp groups that multiply, how many of them share a tile, and in how many parts each
            writes its sums; 0 where the compiler divides the work.
        cluster: CTAs that load a part of their tiles for each other; 1 where each loads its own.
        stream_gb_s: rate at which it reads weights where memory bounds it, in GB/s; 0 where that was not measured.
        threads, shared_bytes, scratch_bytes, registers: of a CTA, and registers of a thread.
        spill_bytes: of a thread, in memory for want of registers.
        word_capacity: words of 8 bytes of the problem that go with the launch; more are uploaded before it.
        minimum_driver: as the driver counts its versions: 12000 is that of CUDA 12.0.
        cubin_bytes, cubin_sha256, ptx_bytes, ptx_sha256: of the images; 0 and None of PTX where there is none.
    """
    return _C.kernels()


def manifest() -> Manifest:
    """The build's manifest: versions, architectures, and each kernel's signature, guarantees, facts and hashes."""
    return json.loads(_MANIFEST.read_text())


def build_id() -> str:
    """sha256 of the manifest: the same for wheels of the same kernels and tables."""
    return _C.build_id


def device_facts(device: int) -> DeviceFacts:
    """What the driver tells of a GPU, by its ordinal, and which kernels it takes.

    Keys: ordinal, name, sm, multiprocessors, shared_bytes_per_block, clock_mhz and memory_gb_s (0 where the driver does
    not tell), kernels_sm (the architecture of its kernels), from_ptx (whether the driver compiles them).
    """
    return _C.device(device)


def verify() -> int:
    """Hashes every embedded image and compares it with the manifest; returns how many there are.

    Raises:
        ArtifactError: the manifest or an image was changed since the build.
    """
    text = _MANIFEST.read_bytes()
    if hashlib.sha256(text).hexdigest() != _C.build_id:
        raise ArtifactError(f"{_MANIFEST} is not the manifest that this extension was built with; reinstall the wheel")
    images = 0
    for kernel in kernels():
        cubin = "cubin", kernel["cubin_bytes"], kernel["cubin_sha256"]
        for kind, size, sha256 in (cubin, ("ptx", kernel["ptx_bytes"], kernel["ptx_sha256"])):
            if size:
                images += 1
                if _C.image_sha256(kernel["name"], kind) != sha256:
                    raise ArtifactError(f"the {kind} of {kernel['name']} is damaged (sha256); reinstall the wheel")
    return images


@dataclass(frozen=True)
class Explanation:
    """Which kernel a call would take, and why.

    Attributes:
        device: the GPU's name.
        variant: the kernel's name, of the one with the most products if there are two; None when there is nothing to
            compute.
        reason: "measured on NVIDIA H200: ..." for a row of the tables, which serves no other GPU; "tile of a plain
            product that was measured on NVIDIA H200: ..." for one that gathers or activates besides; else "cost model
            ...: ...", which says on which GPU its figures were measured and by what they were scaled.
        predicted_us: the model's time in microseconds; with batch_invariant, of the batch that the choice is made for.
        from_ptx: the driver compiles the kernel's PTX, because no cubin fits this GPU.
        upload_us: charged besides, 3.5 for each launch that brings a long list to device memory. A `Plan` makes these
            once and is not charged, so that it may take another kernel.
        launches: kernels that the call launches; of lists of more than 8 groups for `hopper` an estimate where `device`
            was described, as the driver of a GPU decides which words of a list differ.
        parts: dicts of variant, groups (how many), predicted_us, upload_us and launches: one, or two where the groups
            that TMA cannot read are left to another kernel than the rest; with an index, an activation, a beta or a
            long ragged K also the kernels that gather and activate rows and add up parts, in the order of their
            launches. The figures above are their sums.
        candidates: those for all groups at once, the usable ones first: dicts of variant, predicted_us, upload_us and
            ruled_out (why, or None).
    """

    device: str
    variant: str | None
    reason: str
    predicted_us: float
    upload_us: float
    from_ptx: bool
    launches: int
    parts: list[Part]
    candidates: list[Candidate]

    def __str__(self) -> str:
        origin = " (compiled by the driver from PTX: no cubin fits this GPU)" if self.from_ptx else ""
        uploads = f" and {self.upload_us:.1f} for uploads" if self.upload_us else ""
        by = " by the model, which did not choose" if self.reason.startswith(("measured on", "tile of")) else ""
        lines = [
            f"{self.variant or 'no kernel'} on {self.device}{origin}",
            f"  {self.reason}; {self.launches} launch(es), {self.predicted_us:.1f} us predicted{by}{uploads}",
        ]
        if len(self.parts) > 1:
            lines += [f"  {part['variant']} for {part['groups']} group(s)" for part in self.parts]
        for candidate in self.candidates:
            if candidate["variant"] not in [part["variant"] for part in self.parts]:
                passed_over = candidate["ruled_out"] or f"{candidate['predicted_us']:.1f} us predicted"
                lines.append(f"  passed over {candidate['variant']}: {passed_over}")
        return "\n".join(lines)


@overload
def explain(
    a: Sequence[Array],
    b: Sequence[Array],
    *,
    out: Sequence[Array] | None = None,
    device: dict[str, Any] | None = None,
    out_dtype: object = None,
    scale_a: Array | Sequence[Array] | None = None,
    scale_b: Array | Sequence[Array] | None = None,
) -> Explanation: ...
@overload
def explain(
    a: Array,
    b: Array,
    *,
    out: Array | None = None,
    device: dict[str, Any] | None = None,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: object = None,
    batch_invariant: bool = False,
    a_index: Array | None = None,
    activation: str | None = None,
    gate_up: str = "gate_first",
    swiglu_limit: float | None = None,
    preactivation: Array | None = None,
    b_index: Array | None = None,
    counts: Array | None = None,
    alpha: float | Array = 1.0,
    beta: float | Array = 0.0,
    k_alignment: int = 1,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
) -> Explanation: ...
def explain(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    device: dict[str, Any] | None = None,
    offs: Any = None,
    bias: Any = None,
    out_dtype: object = None,
    batch_invariant: bool = False,
    a_index: Any = None,
    activation: Any = None,
    gate_up: Any = "gate_first",
    swiglu_limit: Any = None,
    preactivation: Any = None,
    b_index: Any = None,
    counts: Any = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    k_alignment: int = 1,
    scale_a: Any = None,
    scale_b: Any = None,
) -> Explanation:
    """What `group_gemm(a, b, ...)` or, of arrays, `grouped_mm(a, b, ...)` would launch; launches nothing.

    Args:
        a, b: lists of matrices as for `group_gemm`, or mat_a and mat_b of `grouped_mm`.
        out, out_dtype, offs, bias, batch_invariant, a_index, activation, gate_up, swiglu_limit, preactivation, b_index,
            counts, alpha, beta, k_alignment, scale_a, scale_b: as for those; new outputs are taken to be row-major and
            aligned.
        device: a GPU to ask about instead of the arrays' own, {"sm": 90, "multiprocessors": 132,
            "shared_bytes_per_block": 232448}; needed when they are on the CPU. It may say besides, as the driver would:
            "name", such as "NVIDIA H200", without which no measured row is taken; "clock_mhz" of the multiprocessors at
            most, such as 1980; "memory_gb_s", twice the memory clock times the bus width in bytes, such as 4814. The
            last two are numbers from 1 to 10**6.

    Raises:
        ValueError, TypeError, UnsupportedError: as the call would, and for a `device` that is no description of a GPU.
    """
    if offs is None and not is_array(a):
        refuse_with_lists(
            "explain", bias=bias, batch_invariant=batch_invariant, a_index=a_index, activation=activation,
            gate_up=gate_up, swiglu_limit=swiglu_limit, preactivation=preactivation, b_index=b_index,
            counts=counts, alpha=alpha, beta=beta, k_alignment=k_alignment,
        )  # fmt: skip
        return Explanation(**_C.explain_list(a, b, out, out_dtype, scale_a, scale_b, device))
    others = (
        a_index, activation, gate_up, swiglu_limit, preactivation, b_index, counts, alpha, beta, k_alignment, scale_a,
        scale_b,
    )  # fmt: skip
    return Explanation(**_C.explain_grouped(a, b, offs, bias, out, out_dtype, bool(batch_invariant), *others, device))


def preload(device: int | None = None) -> int:
    """Loads the kernels that `device` (an ordinal; every visible GPU by default) takes, ahead of the first call.

    First use loads a kernel in about 0.1 ms, safely even while a stream is captured; this moves that to start-up. Where
    no cubin fits the GPU the driver compiles each kernel's PTX, which takes it about 0.15 s.

    Returns:
        int: how many kernels were loaded, over all devices; those without kernels are passed over.

    Raises:
        UnsupportedError: no driver or GPU, or `device`, or every one, runs no embedded kernel.
        TypeError: `device` is no integer.
        ValueError: there is no GPU of this number, from 0 to 63.
    """
    if device is not None:
        try:  # not all callers check types
            ordinal = operator.index(device)
        except TypeError:
            needed = "the number of a GPU is needed, such as 0, or None for all"
            raise TypeError(f"preload: device is {device!r}; {needed}") from None
        return _load_all(_C.device(ordinal))
    found: list[DeviceFacts] = []
    refusal: UnsupportedError | None = None
    for ordinal in range(_C.device_count()):
        try:
            found.append(_C.device(ordinal))
        except UnsupportedError as error:  # of one GPU among others
            refusal = error
    if refusal and not found:
        raise refusal
    return sum(map(_load_all, found))


def _load_all(facts: DeviceFacts) -> int:
    names = [kernel["name"] for kernel in kernels_for(facts)]
    for name in names:
        _C.load(name, facts["ordinal"])
    return len(names)


def kernels_for(facts: DeviceFacts) -> list[Kernel]:
    """The kernels that a device takes, by its facts from `_C.device`."""
    eligible = set(_C.eligible(facts["sm"], facts["shared_bytes_per_block"]))
    return [kernel for kernel in kernels() if kernel["sm"] == facts["kernels_sm"] and kernel["name"] in eligible]
