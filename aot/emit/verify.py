"""Holds build/aot against itself: every file against its hash, every cubin against what the manifest says of it."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..build.artifact import MINIMUM_DRIVER_BY_ELF_ABI
from ..build.elf import read_cubin
from .generate import SUMS

if TYPE_CHECKING:
    from gg_runtime.facts import Manifest, ManifestEntry


def verify(folder: Path) -> list[str]:
    """What is wrong, one sentence each; empty when all is well. Raises FileNotFoundError without a manifest."""
    text = (folder / "manifest.json").read_bytes()
    manifest: Manifest = json.loads(text)
    problems = [problem for name, entry in manifest["artifacts"].items() for problem in _artifact(folder, name, entry)]
    problems += _sources(folder)
    table = (folder / "table.c").read_text() if (folder / "table.c").exists() else ""
    if f'gg_build_id[] = "{hashlib.sha256(text).hexdigest()}"' not in table:
        problems.append("table.c does not carry the hash of manifest.json: the two are of different builds")
    return problems


def _sources(folder: Path) -> list[str]:
    """Of the generated texts, and of files that nobody generated. Images have their hashes in the manifest as well."""
    lines = (folder / SUMS).read_text().splitlines() if (folder / SUMS).exists() else []
    sums = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    problems = [f"{path} is no file of this build" for path in sorted(there.keys() - sums.keys() - {SUMS})]
    for path in sorted(sums):
        text = not path.startswith("images/")
        if text and (path not in there or hashlib.sha256(there[path].read_bytes()).hexdigest() != sums[path]):
            problems.append(f"{path} is missing or does not match its hash in {SUMS}")
    return problems


def _artifact(folder: Path, name: str, entry: "ManifestEntry") -> list[str]:
    problems = []
    for kind in entry.keys() & {"cubin", "ptx"}:
        image = entry[kind]
        path = folder / "images" / f"{name}.{kind}"
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != image["sha256"] or len(data) != image["bytes"]:
            problems.append(f"{name}: {path.name} is missing or does not match its hash")
        elif kind == "cubin":
            problems += [f"{name}: {problem}" for problem in _cubin(data, entry)]
    return problems


def _cubin(data: bytes, entry: "ManifestEntry") -> list[str]:
    facts = read_cubin(data)
    parameters = [
        (offset + size * index, size) for offset, size, count in entry["parameters"] for index in range(count)
    ]
    found_and_said = {
        "symbol": (facts.symbol, entry["symbol"]),
        "ELF ABI": (facts.abi, entry["elf_abi"]),
        "minimum driver": (MINIMUM_DRIVER_BY_ELF_ABI.get(facts.abi), entry["minimum_driver"]),
        "parameters": ([(one.offset, one.size) for one in facts.parameters], parameters),
        "bytes of parameters": (facts.parameter_bytes, entry["parameter_bytes"]),
        "threads": (facts.threads, entry["launch"]["threads"]),
        "registers": (facts.registers, entry["registers"]),
        "spills": (facts.stack_bytes, entry["spill_bytes"]),
    }
    return [
        f"{what}: the cubin has {found}, the manifest {said}"
        for what, (found, said) in found_and_said.items()
        if found != said
    ]
