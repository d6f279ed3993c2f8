"""Compiled artifacts by the content of all that went into them. Nothing here imports Triton."""

import ast
import functools
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from ..spec.abi import ARGUMENTS, DTYPES
from ..spec.arch import ARCHS
from ..spec.kernels import KERNELS, LIST_WORDS
from ..spec.records import imported_record
from ..spec.variants import Variant, multiplied_in_halves
from .artifact import LAYOUT, Artifact
from .toolchain import Toolchain

HERE = Path(__file__).parent
SOURCES = HERE.parent / "kernels"
EPILOGUES = SOURCES / "epilogues"
RECORDS = SOURCES / "records.py"


class SourceChanged(Exception):
    """A file was edited during the build, so nobody knows which text was compiled."""


class Cache:
    """Artifacts in a folder, one folder a key. Safe for several builds at once: an entry appears by rename."""

    def __init__(self, folder: Path, toolchain: Toolchain):
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._toolchain = toolchain
        self._kernels: dict[str, dict] = {}

    def key(self, variant: Variant) -> str:
        if variant.kernel not in self._kernels:
            self._kernels[variant.kernel] = _kernel_parts(variant.kernel)
        parts = {
            "layout": LAYOUT,
            "kernel": self._kernels[variant.kernel],
            "variant": asdict(variant),
            "arch": asdict(ARCHS[variant.sm]),
            "in_halves": multiplied_in_halves(variant),
            "types": [DTYPES[name].triton for name in (variant.dtype, variant.out) if name in DTYPES],
            "toolchain": self._toolchain.digest,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def get(self, variant: Variant) -> Artifact | None:
        """The artifact, or None when it must be compiled; a damaged entry counts as missing, and makes room."""
        entry = self.folder / self.key(variant)
        try:
            return Artifact.load(entry)
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(entry, ignore_errors=True)
            return None

    def put(self, artifact: Artifact) -> None:
        """Raises SourceChanged when the source is no longer the one that the key stands for."""
        kernel = artifact.variant.kernel
        if source_digest(kernel) != self._kernels[kernel]["sources"]:
            raise SourceChanged(f"the source of {kernel} changed while it was compiled: build again")
        entry = self.folder / self.key(artifact.variant)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="new-", ignore_cleanup_errors=True) as name:
            filled = Path(name) / "entry"
            filled.mkdir()
            artifact.save(filled)
            try:
                os.rename(filled, entry)
            except OSError:
                if not entry.is_dir():  # else another build was first, with the same content
                    raise


def _kernel_parts(kernel: str) -> dict:
    """What all variants of a kernel share of their keys."""
    row = KERNELS[kernel]
    more = {} if (row.epilogue, row.source) == ("linear", "rows") else {"source": row.source}
    if row.scales:
        more["scales"] = row.scales
    return more | {
        "sources": source_digest(kernel),
        "words": LIST_WORDS[kernel],
        "addressing": row.addressing,
        "ends_partitions": row.ends_partitions,
        "may_overlap": row.may_overlap,
        "epilogue": row.epilogue,
        "records": _records(kernel),
        "arguments": _argument_types(kernel),
    }


def _argument_types(kernel: str) -> dict[str, str]:
    """Of the arguments that the kernel's function names."""
    functions = ast.walk(ast.parse(_entry(kernel).read_text()))
    entry = KERNELS[kernel].entry
    (function,) = (node for node in functions if isinstance(node, ast.FunctionDef) and node.name == entry)
    return {name.arg: ARGUMENTS[name.arg].type for name in function.args.args if name.arg in ARGUMENTS}


def _entry(kernel: str) -> Path:
    return SOURCES / KERNELS[kernel].folder / f"{KERNELS[kernel].entry}.py"


def kernel_files(kernel: str) -> list[Path]:
    """The source of a kernel and of what it imports by relative imports, directly or not, sorted.

    Of the epilogues only the kernel's own, although `make_epilogue` imports them all. Of aot/spec nothing: the key has
    what reaches the compiler from there.
    """
    found: set[Path] = set()
    waiting = [_entry(kernel)]
    while waiting:
        path = waiting.pop()
        if path == EPILOGUES / "__init__.py":
            path = EPILOGUES / f"{KERNELS[kernel].epilogue}.py"
        if path in found or SOURCES not in path.parents:
            continue
        found.add(path)
        waiting += [file for node in _relative_imports(path.read_text()) for file in _imported(path, node)]
    return sorted(found)


# By text, as code_digest: most kernels share most files, and a file may be edited during a build.
@functools.cache
def _relative_imports(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level]


def _records(kernel: str) -> dict:
    """Where the fields of each record lie that the kernel's files import from kernels/records.py."""
    names = {
        alias.name
        for path in kernel_files(kernel)
        for node in _relative_imports(path.read_text())
        if RECORDS in _imported(path, node)
        for alias in node.names
    }
    records = {name: imported_record(name) for name in names}
    return {name: [unit, record.words, record.word_offsets()] for name, (record, unit) in records.items()}


def _imported(path: Path, node: ast.ImportFrom) -> list[Path]:
    """The files of `from .module import names` in the file `path`: of modules and packages, names among them."""
    place = path.parents[node.level - 1]
    places = [place]
    for name in node.module.split(".") if node.module else ():
        place /= name
        places.append(place)
    places += [place / alias.name for alias in node.names]
    files = (file for one in places for file in (one.with_suffix(".py"), one / "__init__.py"))
    return [file for file in files if file.is_file()]


def source_digest(kernel: str) -> str:
    """Of the code that decides what the kernel's variants compile to, Triton's own apart."""
    digest = hashlib.sha256()
    for path in (
        *kernel_files(kernel),
        *(HERE / name for name in ("clusters.py", "compile.py", "elf.py", "partitions.py", "yields.py")),
    ):
        digest.update(code_digest(path.read_text()))
    return digest.hexdigest()


@functools.cache
def code_digest(text: str) -> bytes:
    """Of a Python file's code. Comments, docstrings and line breaks decide nothing, so they compile nothing anew."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).digest()
