"""manifest.json: what a wheel holds, as text that needs no extension to read."""

import json
from typing import TYPE_CHECKING, Literal

from ..build.artifact import Argument, Artifact, sha256
from ..build.toolchain import Toolchain
from ..spec.arch import ARCHS
from ..spec.kernels import KERNELS

if TYPE_CHECKING:  # only the names: the builder runs without the package, and is not shipped with it
    from gg_runtime.facts import Guarantees, Image, Manifest, ManifestEntry

FORMAT = 1


def manifest_text(artifacts: list[Artifact], toolchain: Toolchain, tables_sha256: str) -> str:
    """Sorted, without dates and paths: the same artifacts give the same text."""
    content: Manifest = {
        "format": FORMAT,
        "triton": toolchain.triton,
        "ptxas": toolchain.ptxas,
        "tables_sha256": tables_sha256,
        "archs": {
            str(sm): {"generation": ARCHS[sm].generation, "ran_on_hardware": ARCHS[sm].ran_on_hardware}
            for sm in sorted({artifact.variant.sm for artifact in artifacts})
        },
        "artifacts": {artifact.variant.name: _entry(artifact) for artifact in artifacts},
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _entry(artifact: Artifact) -> "ManifestEntry":
    variant = artifact.variant
    entry: ManifestEntry = {
        "kernel": variant.kernel,
        "form": KERNELS[variant.kernel].form,
        "extents": KERNELS[variant.kernel].extents,
        "addressing": KERNELS[variant.kernel].addressing,
        "epilogue": KERNELS[variant.kernel].epilogue,
        "source": KERNELS[variant.kernel].source,
        "scaling": variant.scaling,
        "sm": variant.sm,
        "dtype": variant.dtype,
        "out_dtype": variant.out,
        "layout": variant.layout,
        "alignment": variant.alignment,
        "config": str(variant.config),
        "symbol": artifact.symbol,
        "signature": [f"{argument.name}: {_type(argument)}" for argument in artifact.arguments],
        "guarantees": _guarantees(artifact),
        "launch": {
            "threads": artifact.threads,
            "programmatic": artifact.programmatic_launch,
            "shared_bytes": artifact.shared_bytes,
            "scratch_bytes": artifact.scratch_bytes,
            "scratch_alignment": artifact.scratch_alignment,
        },
        "parameters": _parameter_runs(artifact),
        "parameter_bytes": artifact.parameter_bytes,
        "word_capacity": artifact.word_capacity,
        "word_skip": artifact.word_skip,
        "registers": artifact.registers,
        "spill_bytes": artifact.spill_bytes,
        "elf_abi": artifact.elf_abi,
        "minimum_driver": artifact.minimum_driver,
        "ptx_isa": artifact.ptx_isa,
        "cubin": _image(artifact.cubin),
    }
    if "ptx" in artifact.images:
        entry["ptx"] = _image(artifact.ptx)
    return entry


def _image(data: bytes) -> "Image":
    return {"bytes": len(data), "sha256": sha256(data)}


def _type(argument: Argument) -> str:
    return argument.type if argument.count == 1 else f"{argument.type}[{argument.count}]"


def _guarantees(artifact: Artifact) -> "Guarantees":
    """What the caller's tensors must keep for the result to be right; the selector checks it."""
    variant = artifact.variant
    unit = {"n": "last", "t": "first"}
    kernel = KERNELS[variant.kernel]
    if not kernel.multiplies:
        return {"pointer_bytes": variant.alignment}
    ragged = kernel.form == "grouped"
    guarantees: Guarantees = {"pointer_bytes": variant.alignment, "sizes": "below 2**31"}
    if ragged:
        guarantees["counts" if kernel.extents == "m_counts" else "offs"] = "int32, contiguous, any values"
    if variant.layout == "strided":
        return guarantees
    guarantees["unit_stride"] = {"A": unit[variant.layout[0]], "B": unit[variant.layout[1]], "C": "last"}
    if variant.alignment == 16:
        through_pointers = kernel.addressing == "pointers"
        guarantees["leading_stride_bytes"] = 16
        if ragged:
            guarantees["group_stride_bytes"] = 16
        guarantees["contiguous_extent_bytes"] = dict.fromkeys("ABC" if through_pointers else "C", 16)
        guarantees["minimum_K"] = 0 if through_pointers else 1  # TMA has no descriptor for nothing
        if not through_pointers:
            _add_tma_limits(guarantees, ragged)
            if kernel.extents == "k_ends" and variant.layout == "tn":
                guarantees["maximum_K"] = 2**30  # counted back from there, as rows are
            elif kernel.extents == "k_ends":
                guarantees["k_alignment"] = 128  # a k-tile's box starts where a group does
        if kernel.epilogue != "linear" and variant.layout[1] == "n":
            guarantees["half_of_N_bytes"] = 16  # up's columns start behind gate's
        if kernel.source in ("indexed", "indexed_b"):
            _add_indexed_limits(guarantees, "B" if kernel.source == "indexed_b" else "A")
    return guarantees


def _add_tma_limits(guarantees: "Guarantees", ragged: bool) -> None:
    """Sizes are rounded up to tiles in 32 bits; A and C of a ragged product have their rows counted back from 2^30."""
    guarantees["maximum_size"] = 2**31 - 256
    if ragged:
        guarantees["minimum_E"] = 1
        guarantees["maximum_E"] = 2**23 - 1
        guarantees["maximum_rows"] = 2**30
        guarantees["maximum_row_stride"] = 2**33 - 1


def _add_indexed_limits(guarantees: "Guarantees", operand: Literal["A", "B"]) -> None:
    """Rows are copied by 16 bytes, at offsets that 32 bits hold in that unit. Strides are elements, of 32 bits too.
    What is left of a row is counted in bytes, of 31 bits."""
    extents: dict[str, int] = guarantees.get("contiguous_extent_bytes", {})
    guarantees["contiguous_extent_bytes"] = {operand: 16} | extents
    guarantees["maximum_bytes_of_A" if operand == "A" else "maximum_bytes_of_B"] = 2**36 - 17
    guarantees["maximum_row_stride"] = 2**32 - 1
    guarantees["maximum_row_bytes"] = 2**31 - 1


def _parameter_runs(artifact: Artifact) -> list[list[int]]:
    """[offset, size, count] of parameters that lie one behind the other with the same size."""
    runs: list[list[int]] = []
    for parameter in artifact.parameters:
        if runs and runs[-1][1] == parameter.size and runs[-1][0] + runs[-1][1] * runs[-1][2] == parameter.offset:
            runs[-1][2] += 1
        else:
            runs.append([parameter.offset, parameter.size, 1])
    return runs
