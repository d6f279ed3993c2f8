"""C, C++ and assembly by one compiler from PyPI, for the wheel and for tests: what the machine has is not asked."""

import importlib.util
import platform
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from tempfile import TemporaryDirectory

from .toolchain import ToolchainError

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build/zig"  # objects by content; and libc++, which zig compiles from its source

# Of a machine, as platform.machine() and wheel tags name it: any processor, any Linux with glibc 2.17 (2012) or later.
TARGETS = {machine: ["-target", f"{machine}-linux-gnu.2.17", "-mcpu=baseline"] for machine in ("x86_64", "aarch64")}
LANGUAGES = {".c": ["cc", "-std=c11"], ".cpp": ["c++", "-std=c++17"], ".S": ["cc"]}
FLAGS = ["-O2", "-g0", "-fPIC", "-Wall", "-Wextra", "-Werror"]

# zig would link an unwinder of its own. Before 3.14, Python ends daemon threads at exit by pthread_exit, which unwinds
# their frames with glibc's, libgcc_s.so.1; a frame of ours that answers through another one crashes. So libgcc_s is
# linked, by a library that has no more than its names: those that libc++ uses, in the version of every libgcc_s.
UNWINDER = "libgcc_s.so.1"
UNWINDER_VERSION = "GCC_3.0"
UNWINDER_NAMES = [
    "_Unwind_DeleteException", "_Unwind_GetIP", "_Unwind_GetLanguageSpecificData", "_Unwind_GetRegionStart",
    "_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_SetGR", "_Unwind_SetIP",
]  # fmt: skip


def shared_library(
    library: Path,
    sources: Sequence[Path],
    *,
    machine: str = platform.machine(),
    include: Iterable[Path] = (),
    system_include: Iterable[Path] = (),
    flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
) -> Path:
    """Compiles each source by its suffix and links them. A warning is an error, but in headers of `system_include`."""
    if machine not in TARGETS:
        raise ToolchainError(f"there is no target for {machine}; there are {', '.join(sorted(TARGETS))}")
    CACHE.mkdir(parents=True, exist_ok=True)
    headers = [f"-I{folder}" for folder in include]
    headers += [word for folder in system_include for word in ("-isystem", folder)]
    with TemporaryDirectory(dir=CACHE) as scratch:
        objects = [Path(scratch, f"{index}.o") for index in range(len(sources))]

        def compile_one(source: Path, target: Path) -> None:
            # What .incbin brings is unknown to zig's cache, so assembly goes past it.
            cache = Path(scratch) if source.suffix == ".S" else CACHE
            words = LANGUAGES[source.suffix] + TARGETS[machine] + FLAGS + headers
            run([*words, *flags, "-c", source, "-o", target], cache)

        with ThreadPoolExecutor(cpu_count()) as pool:
            list(pool.map(compile_one, sources, objects))
        driver, linked = "cc", objects
        if any(source.suffix == ".cpp" for source in sources):
            driver, linked = "c++", [*objects, unwinder(Path(scratch), machine)]
        run([driver, *TARGETS[machine], "-O2", "-shared", *link_flags, *linked, "-o", library])
    return library


def unwinder(folder: Path, machine: str) -> Path:
    """A libgcc_s.so.1 to link with, not to run with."""
    source, versions, library = folder / "unwinder.c", folder / "unwinder.map", folder / UNWINDER
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in UNWINDER_NAMES))
    versions.write_text(f"{UNWINDER_VERSION} {{ {'; '.join(UNWINDER_NAMES)}; }};\n")
    names = [f"-Wl,-soname,{UNWINDER}", f"-Wl,--version-script={versions}"]
    run(["cc", *TARGETS[machine], *FLAGS, "-shared", "-nostdlib", *names, source, "-o", library])
    return library


def run(arguments: Sequence, cache: Path = CACHE) -> None:
    """zig, without the caller's environment: variables such as CPATH have a say in what a compiler reads."""
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(CACHE), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    subprocess.run([compiler(), *map(str, arguments)], check=True, env=caches)


def compiler() -> Path:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise ToolchainError("ziglang, the C++ compiler, is missing here: pip install -r requirements/wheel.txt")
    return Path(spec.origin).with_name("zig")
