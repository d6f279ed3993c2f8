"""Compiled artifacts by the content of all that went into them. Nothing here imports Triton."""

import ast
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from ..spec.abi import ARGUMENTS, DTYPES
from ..spec.arch import ARCHS
from ..spec.variants import KERNELS, LIST_WORDS, Variant
from .artifact import LAYOUT, Artifact
from .toolchain import Toolchain

HERE = Path(__file__).parent
SOURCES = HERE.parent / "kernels"


class SourceChanged(Exception):
    """A file was edited during the build, so nobody knows which text was compiled."""


class Cache:
    """Artifacts in a folder, one folder a key. Safe for several builds at once: an entry appears by rename."""

    def __init__(self, folder: Path, toolchain: Toolchain):
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._toolchain = toolchain
        self._sources: dict[str, str] = {}

    def key(self, variant: Variant) -> str:
        if variant.kernel not in self._sources:
            self._sources[variant.kernel] = source_digest(variant.kernel)
        parts = {
            "layout": LAYOUT,
            "sources": self._sources[variant.kernel],
            "variant": asdict(variant),
            "arch": asdict(ARCHS[variant.sm]),
            "words": LIST_WORDS[variant.kernel],
            "addressing": KERNELS[variant.kernel].addressing,
            "epilogue": KERNELS[variant.kernel].epilogue,
            "types": [DTYPES[name].triton for name in (variant.dtype, variant.out) if name in DTYPES],
            "arguments": _argument_types(variant.kernel),
            "toolchain": self._toolchain.digest,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def get(self, variant: Variant) -> Artifact | None:
        """The artifact, or None when it must be compiled; a damaged entry counts as missing."""
        entry = self.folder / self.key(variant)
        try:
            return Artifact.load(entry)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(entry, ignore_errors=True)
            return None

    def put(self, artifact: Artifact) -> None:
        """Raises SourceChanged when the source is no longer the one that the key stands for."""
        kernel = artifact.variant.kernel
        if source_digest(kernel) != self._sources[kernel]:
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


def _argument_types(kernel: str) -> dict[str, str]:
    """Of the arguments that the kernel's function names."""
    functions = ast.walk(ast.parse(_entry(kernel).read_text()))
    entry = KERNELS[kernel].entry
    (function,) = (node for node in functions if isinstance(node, ast.FunctionDef) and node.name == entry)
    return {name.arg: ARGUMENTS[name.arg].type for name in function.args.args if name.arg in ARGUMENTS}


def _entry(kernel: str) -> Path:
    return SOURCES / KERNELS[kernel].folder / f"{KERNELS[kernel].entry}.py"


def kernel_files(kernel: str) -> list[Path]:
    """The source of a kernel and of what it imports by relative imports, directly or not, sorted."""
    found: set[Path] = set()
    waiting = [_entry(kernel)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                waiting += _imported(path, node)
    return sorted(found)


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
    for path in (*kernel_files(kernel), HERE / "compile.py", HERE / "elf.py"):
        digest.update(code_digest(path.read_text()))
    return digest.hexdigest()


def code_digest(text: str) -> bytes:
    """Of a Python file's code. Comments, docstrings and line breaks decide nothing, so they compile nothing anew."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).digest()
