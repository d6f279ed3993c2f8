"""Builds the extension and the programs beside it with a sanitizer, in folders of their own under build/sanitize."""

import json
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

import pybind11

import gg_runtime

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # for aot, behind the installed gg_runtime
AOT = ROOT / "build/aot"
FLAGS = ["-O0", "-g1", "-fno-omit-frame-pointer", "-fPIC", "-fvisibility=hidden", "-Wall"]
INCLUDES = [f"-I{folder}" for folder in (ROOT / "csrc", AOT, pybind11.get_include(), sysconfig.get_path("include"))]


@dataclass
class Sanitizer:
    name: str
    flags: list[str]
    library: str  # to be loaded before an interpreter that was built without it

    @property
    def folder(self) -> Path:
        return ROOT / "build/sanitize" / self.name

    def preloaded(self) -> str:
        """For LD_PRELOAD; with the C++ library, whose throw the sanitizer looks for at its start."""
        return f"{of_gcc(self.library)}:{of_gcc('libstdc++.so')}"


def of_gcc(library: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        sys.exit(f"gcc has no {library}: install what belongs to it")
    return str(path)


ADDRESS = Sanitizer("address", ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], "libasan.so")
THREAD = Sanitizer("thread", ["-fsanitize=thread"], "libtsan.so")


def compiled(sanitizer: Sanitizer, source: Path) -> Path:
    """The object of a source; made anew where the source, a header or this file is newer."""
    target = sanitizer.folder / "objects" / source.parent.name / f"{source.name}.o"  # names repeat between folders
    target.parent.mkdir(parents=True, exist_ok=True)
    inputs = [source, Path(__file__), *ROOT.glob("csrc/**/*.h*"), AOT / "manifest.json"]
    if target.exists() and target.stat().st_mtime > max(path.stat().st_mtime for path in inputs):
        return target
    language = ["g++", "-std=c++17"] if source.suffix == ".cpp" else ["gcc", "-std=c11"]
    run([*language, *FLAGS, *sanitizer.flags, *INCLUDES, "-c", source, "-o", target], cwd=ROOT)
    return target


def run(command: list, **options) -> None:
    subprocess.run(list(map(str, command)), check=True, **options)


def objects(sanitizer: Sanitizer, *more: Path) -> list[Path]:
    sources = [*sorted(ROOT.glob("csrc/**/*.cpp")), AOT / "launchers.c", AOT / "table.c", AOT / "images.S", *more]
    with ThreadPoolExecutor(cpu_count()) as pool:
        return list(pool.map(lambda source: compiled(sanitizer, source), sources))


def copy_python(sanitizer: Sanitizer) -> Path:
    """gg_runtime without its extension; the folder to import it from."""
    package = sanitizer.folder / "site/gg_runtime"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "gg_runtime", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(AOT / "manifest.json", package)
    return package.parent


def build_package(sanitizer: Sanitizer) -> Path:
    """gg_runtime with an extension of this sanitizer; the folder to import it from."""
    site = copy_python(sanitizer)
    extension = site / "gg_runtime" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    run(["g++", "-shared", *sanitizer.flags, *objects(sanitizer), "-ldl", "-o", extension])
    return site


def build_planted(sanitizer: Sanitizer) -> Path:
    library = sanitizer.folder / "planted.so"
    planted = compiled(sanitizer, Path(__file__).with_name("planted.cpp"))
    run(["g++", "-shared", *sanitizer.flags, planted, "-o", library])
    return library


def build_races(sanitizer: Sanitizer) -> Path:
    """races.cpp with all of csrc and the interpreter."""
    program = sanitizer.folder / "races"
    folder, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    python = [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-lpython{version}"]
    linked = objects(sanitizer, Path(__file__).with_name("races.cpp"))
    run(["g++", *sanitizer.flags, *linked, *python, "-ldl", "-lpthread", "-rdynamic", "-o", program])
    return program


def manifest() -> dict:
    """Of the kernels that are linked here; those of the installed package must be the same."""
    built = json.loads((AOT / "manifest.json").read_text())
    if built != gg_runtime.manifest():
        sys.exit("the package that is installed holds other kernels than build/aot: run make build")
    return built
