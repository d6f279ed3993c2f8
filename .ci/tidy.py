"""clang-tidy over csrc, on all cores: tidy.py PYTHON, the interpreter of the environment that `make build` builds in.

C++ and C headers are those of PyPI's ziglang where that environment has it, so that findings are the same on every
machine, else those of the machine; without either nothing is checked, and that is said. A file that was found clean is
not looked at again until it, a header of ours that it includes, or a tool changes: build/lint/tidy remembers.
"""

import hashlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BUILD = Path("build/lint")
GENERATED = BUILD / "include"  # abi.h, which needs no kernel
CLEAN = BUILD / "tidy"
TIDY = Path(sys.executable).with_name("clang-tidy")
TARGET = ["c++", "-target", "x86_64-linux-gnu.2.17", "-std=c++17"]

# Asked of the other interpreter: where headers lie, and what to compare when those may have changed.
FACTS = """
import importlib.metadata, importlib.util, json, sys, sysconfig
import pybind11
from pathlib import Path
from aot.emit.abi_header import abi_header
zig = importlib.util.find_spec("ziglang")
print(json.dumps({
    "abi.h": abi_header(),
    "include": [pybind11.get_include(), sysconfig.get_path("include")],
    "zig": str(Path(zig.origin).with_name("zig")) if zig else None,
    "versions": [sys.version, pybind11.__version__, importlib.metadata.version("ziglang") if zig else ""],
}))
"""


def zig_flags(zig: Path) -> list[str]:
    """The libraries' headers and macros as zig's own clang gets them, which prints its command and compiles nothing.

    What belongs to the compiler comes from clang-tidy's clang, whose version is another.
    """
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(Path("build/zig").absolute()))
    probe = probe_file("int probe;\n")
    told = subprocess.run([zig, *TARGET, "-c", "-###", probe], capture_output=True, text=True, env=caches, check=True)
    (command,) = (line for line in told.stderr.splitlines() if '"-cc1"' in line)
    words = shlex.split(command)
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] in ("-isystem", "-D")]
    own = str(zig.with_name("lib") / "include")
    return [
        "-nostdinc++",
        "-nostdlibinc",
        *(word for pair in pairs if Path(pair[1]).absolute() != Path(own) for word in pair),
    ]


def probe_file(text: str) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / "probe.cpp"
    path.write_text(text)
    return path


def missing_header(flags: list[str]) -> str:
    """What the compiler says of a header that is not there; empty when all are."""
    probe = probe_file("#include <string>\n#include <pthread.h>\n#include <Python.h>\n")
    done = subprocess.run(
        [TIDY, "--quiet", "--checks=-*,misc-unused-*", probe, "--", *flags], capture_output=True, text=True
    )
    found = re.search(r"'[^']+' file not found", done.stdout)
    if done.returncode and not found:
        raise SystemExit(f"clang-tidy cannot read the system's headers:\n{done.stdout}{done.stderr}")
    return found[0] if found else ""


def included(path: Path, seen: set[Path]) -> set[Path]:
    """The file and those of our headers that it reads, directly or not."""
    if path not in seen:
        seen.add(path)
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            for folder in (Path("csrc"), GENERATED):
                if (folder / name).is_file():
                    included(folder / name, seen)
    return seen


def key(path: Path, tools: list[str]) -> str:
    texts = [f"{one}\n{one.read_text()}" for one in sorted(included(path, set()))]
    return hashlib.sha256(json.dumps([*tools, *texts]).encode()).hexdigest()


def check(path: Path, flags: list[str], tools: list[str]) -> str:
    """What clang-tidy found; empty when it was found clean, now or earlier."""
    mark, now = CLEAN / path.relative_to("csrc").with_suffix(".sha256"), key(path, tools)
    if mark.is_file() and mark.read_text() == now:
        return ""
    done = subprocess.run([TIDY, "--quiet", path, "--", *flags], capture_output=True, text=True)
    if done.returncode:
        return done.stdout or done.stderr
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(now)
    return ""


def main() -> int:
    facts = json.loads(subprocess.run([sys.argv[1], "-c", FACTS], capture_output=True, text=True, check=True).stdout)
    GENERATED.mkdir(parents=True, exist_ok=True)
    (GENERATED / "abi.h").write_text(facts["abi.h"])
    flags = ["-std=c++17", "-Icsrc", f"-I{GENERATED}"]
    flags += [word for folder in facts["include"] for word in ("-isystem", folder)]
    flags += zig_flags(Path(facts["zig"])) if facts["zig"] else []
    if missing := missing_header(flags):
        print(f"clang-tidy is skipped: {missing}; it needs Python's headers, and ziglang or a system's C++ headers")
        return 0
    version = subprocess.run([TIDY, "--version"], capture_output=True, text=True, check=True).stdout
    tools = [version, *facts["versions"], *flags, Path(".clang-tidy").read_text()]
    files = sorted(Path("csrc").rglob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(filter(None, pool.map(lambda path: check(path, flags, tools), files)))
    print("\n".join([*found, f"clang-tidy: {len(files)} files, {len(found)} with findings"]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
