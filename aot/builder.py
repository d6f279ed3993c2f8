"""Variants in, build/aot out: parallel, cached, all or nothing."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .build.artifact import Artifact
from .build.cache import Cache, SourceChanged
from .build.toolchain import tool, toolchain
from .build.workers import compile_all
from .emit.generate import generate
from .emit.manifest import manifest_text
from .spec.tables import tables_sha256
from .spec.variants import Variant, variants

BUILD = Path(__file__).parent.parent / "build"
GENERATED = "aot"


class BuildFailed(Exception):
    """Some variants could not be built; `reasons` says why, by variant name."""

    def __init__(self, reasons: dict[str, str]):
        super().__init__(f"{len(reasons)} variants could not be built")
        self.reasons = reasons


def build(
    archs: Sequence[int],
    jobs: int,
    timeout: float,
    console: Console,
    folder: Path = BUILD,
    kernels: Sequence[str] = (),
) -> int:
    """Brings folder/aot up to date. Returns how many variants had to be compiled.

    `timeout`: seconds for a variant. `kernels`: those to build, with what they need; all if there are none. Raises
    BuildFailed after all variants had their turn, and EmitError when the tables name what is not built; folder/aot is
    then as before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "lock", console):
        for left in (*folder.glob("new-*"), *folder.glob("cache/new-*")):  # by a build that was killed
            shutil.rmtree(left)
        found = toolchain(folder / "toolchain.json")
        wanted = list(variants(archs, kernels))
        cache = Cache(folder / "cache", found)
        known = {variant: artifact for variant in wanted if (artifact := cache.get(variant))}
        missing = [variant for variant in wanted if variant not in known]
        fresh, reasons = _compile(missing, cache, jobs, timeout, console) if missing else ({}, {})
        if reasons:
            raise BuildFailed(reasons)
        artifacts = [(known | fresh)[variant] for variant in wanted]
        manifest = manifest_text(artifacts, found, tables_sha256())
        replace_folder(folder / GENERATED, generate(artifacts, manifest))
        return len(missing)


def _compile(
    missing: list[Variant], cache: Cache, jobs: int, timeout: float, console: Console
) -> tuple[dict[Variant, Artifact], dict[str, str]]:
    done: dict[Variant, Artifact] = {}
    reasons: dict[str, str] = {}
    compiling = contextlib.closing(compile_all(missing, tool("ptxas"), jobs, timeout))
    with compiling as results, _progress(len(missing), console) as advance:
        for variant, artifact, reason in results:
            try:
                if artifact:
                    cache.put(artifact)
                    done[variant] = artifact
            except SourceChanged as change:
                reason = str(change)
            if reason:
                reasons[variant.name] = reason
            advance(variant.name, len(reasons))
    return done, reasons


@contextlib.contextmanager
def _progress(total: int, console: Console) -> Iterator[Callable[[str, int], None]]:
    note = TextColumn("{task.fields[note]}")
    columns = TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("compiling", total=total, note="")

        def advance(name: str, failures: int) -> None:
            bar.update(task, advance=1, note=f"[red]{failures} failed[/] {name}" if failures else name)

        yield advance


@contextlib.contextmanager
def _alone(path: Path, console: Console) -> Iterator[None]:
    """Holds the lock of a build folder; the system releases it however the process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"another build holds {path}; waiting for it to finish", soft_wrap=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_folder(target: Path, files: dict[str, bytes]) -> None:
    """Makes `target` hold exactly these files. Equal content is left alone, dates included.

    Else the folder is written beside it, manifest.json last, and put in its place by rename. Killed between the two
    renames, it leaves no folder, and the next build makes it from the cache.
    """
    if _current(target) == files:
        return
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="new-", ignore_cleanup_errors=True) as name:
        filled, former = Path(name) / "filled", Path(name) / "former"
        for path in sorted(files, key=lambda path: path == "manifest.json"):
            (filled / path).parent.mkdir(parents=True, exist_ok=True)
            (filled / path).write_bytes(files[path])
        if target.exists():
            target.rename(former)
        filled.rename(target)


def _current(target: Path) -> dict[str, bytes]:
    return {str(path.relative_to(target)): path.read_bytes() for path in sorted(target.rglob("*")) if path.is_file()}
