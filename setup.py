"""Links build/aot and csrc into gg_runtime._C. Compiles no kernel: `python -m aot build` has done that.

GG_PYTHON and GG_MACHINE name the interpreter and the machine that the wheel is for; by default, those that run this.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
sys.path.append(str(ROOT))
from aot.build import native  # noqa: E402
from aot.emit import sbom  # noqa: E402

AOT = Path("build/aot")
GENERATED = [AOT / name for name in ("launchers.c", "table.c", "images.S")]

FACTS = "import json, sysconfig as s; print(json.dumps([s.get_path('include'), s.get_config_var('EXT_SUFFIX')]))"
PYTHON = os.environ.get("GG_PYTHON", sys.executable)
MACHINE = os.environ.get("GG_MACHINE", platform.machine())
# Headers of this machine serve the other too. Of Debian's pyconfig.h of 3.11 for x86_64 and for aarch64, four lines
# differ: what assembly CPython's own sources may use, the support tier, and whether wchar_t has no sign. No size does.
INCLUDE, SUFFIX = json.loads(subprocess.check_output([PYTHON, "-c", FACTS]))
ABI = SUFFIX.split("-")[1]  # "311", "314t" of ".cpython-314t-x86_64-linux-gnu.so"

# Headers lie where this machine keeps them; what __FILE__ and assertions embed must not.
PREFIXES = {ROOT: ".", pybind11.get_include(): "pybind11", INCLUDE: "python", native.compiler().parent: "zig"}
FLAGS = ["-fvisibility=hidden", "-fvisibility-inlines-hidden"]
FLAGS += [f"-ffile-prefix-map={prefix}={name}" for prefix, name in PREFIXES.items()]
LINK_FLAGS = ["-s", "-Wl,--version-script=csrc/exports.map", "-Wl,--build-id=sha1"]
LINK_FLAGS += ["-Wl,-z,now,-z,relro,-z,noexecstack"]


class BuildExtension(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + SUFFIX.replace(f"-{platform.machine()}-", f"-{MACHINE}-")

    def build_extension(self, ext: Extension) -> None:
        """All by aot/build/native.py: the compiler and flags that Python was built with have no say."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        native.shared_library(
            library,
            [*map(Path, ext.sources), *GENERATED],
            machine=MACHINE,
            include=[Path("csrc"), AOT],
            system_include=[Path(pybind11.get_include()), Path(INCLUDE), debian_headers(Path(self.build_temp))],
            flags=FLAGS,
            link_flags=LINK_FLAGS,
        )


def debian_headers(folder: Path) -> Path:
    """For what Debian's pyconfig.h includes: <MACHINE-linux-gnu/pythonX.Y/pyconfig.h>, of /usr/include there."""
    include = Path(INCLUDE)
    real = include.parent / f"{platform.machine()}-linux-gnu" / include.name / "pyconfig.h"
    target = folder / "include" / f"{MACHINE}-linux-gnu" / include.name
    target.mkdir(parents=True, exist_ok=True)
    if real.exists():
        shutil.copy(real, target)
    return folder / "include"


class BuildPackage(build_py):
    def run(self) -> None:
        super().run()
        shutil.copyfile(AOT / "manifest.json", Path(self.build_lib, "gg_runtime", "manifest.json"))


class BuildWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return f"cp{ABI.rstrip('t')}", f"cp{ABI}", f"linux_{MACHINE}"

    def write_wheelfile(self, wheelfile_base: str, *arguments: str, **options: str) -> None:
        """The last that is written before the archive is made; the bill of materials goes beside it."""
        super().write_wheelfile(wheelfile_base, *arguments, **options)
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir()
        (folder / sbom.NAME).write_text(sbom.sbom_text(self.distribution.get_version()))


if not (ROOT / AOT / "manifest.json").exists():
    raise SystemExit(f"{AOT}/manifest.json is missing: the kernels are not compiled yet. Run `make build`.")
if not Path(INCLUDE, "Python.h").exists():
    raise SystemExit(f"{PYTHON} has no headers: {INCLUDE}/Python.h is missing. Debian has them in python3-dev.")

setup(
    ext_modules=[
        Extension("gg_runtime._C", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.cpp")))
    ],
    cmdclass={"build_ext": BuildExtension, "build_py": BuildPackage, "bdist_wheel": BuildWheel},
)
