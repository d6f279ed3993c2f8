"""Which Triton this is, told by its files: importing it takes longer than a build in which nothing changed."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

BINARIES = ("_C/libtriton.so", "backends/nvidia/bin/ptxas")


@dataclass(frozen=True)
class Toolchain:
    """`digest` covers all of Triton that has a say in the code: its Python files and the binaries."""

    triton: str
    ptxas: str
    digest: str


class ToolchainError(Exception):
    """Triton is missing or cannot be used."""


def triton_folder() -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolchainError("Triton is not installed for this Python: run `make build`, or pip install triton")
    return Path(spec.origin).parent


def tool(name: str) -> Path:
    """A program that Triton carries: ptxas, cuobjdump or nvdisasm."""
    path = triton_folder() / "backends/nvidia/bin" / name
    if not path.exists():
        raise ToolchainError(f"this Triton carries no {name}: {path} does not exist")
    return path


def toolchain(memo: Path) -> Toolchain:
    """Identifies the installed Triton: its binaries by what they hold, its Python files by the hashes that were
    recorded when it was installed (cached kernels stay where one was edited since). `memo` remembers hashes of big
    files by size and modification time."""
    folder = triton_folder()
    distribution = importlib.metadata.distribution("triton")
    sources = sorted(
        f"{path} {path.hash.value}"
        for path in distribution.files or ()
        if path.parts[0] == "triton" and path.suffix != ".pyc" and path.hash
    )
    stamps = {name: _stamp(folder / name) for name in BINARIES}
    inputs = {"folder": str(folder), "stamps": stamps, "sources": _sha256("\n".join(sources).encode())}
    known = _remembered(memo)
    if known.get("inputs") == inputs:
        return Toolchain(**known["toolchain"])
    hashes = [_file_sha256(folder / name) for name in BINARIES]
    found = Toolchain(distribution.version, _ptxas_version(), _sha256("\n".join([*hashes, *sources]).encode()))
    write_atomically(memo, json.dumps({"inputs": inputs, "toolchain": asdict(found)}, indent=1))
    return found


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file at once, so that no reader and no interruption ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def _remembered(memo: Path) -> dict:
    try:
        return json.loads(memo.read_text())
    except (OSError, ValueError):
        return {}


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _ptxas_version() -> str:
    text = subprocess.run([tool("ptxas"), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V(\d+\.\d+\.\d+)", text)
    if not version:
        raise ToolchainError(f"ptxas tells no version, which the manifest names: it printed {text!r}")
    return version[1]
