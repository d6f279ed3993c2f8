"""Links build/aot and csrc into gg_runtime._C. Compiles no kernel: `python -m aot build` has done that."""

import shutil
import sysconfig
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
AOT = Path("build/aot")
GENERATED = ("launchers.c", "table.c", "images.S")

# Headers lie where this machine keeps them; what __FILE__ and assertions embed must not.
PREFIXES = {ROOT: ".", pybind11.get_include(): "pybind11", sysconfig.get_path("include"): "python"}
SHARED_FLAGS = ["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
SHARED_FLAGS += [f"-ffile-prefix-map={prefix}={name}" for prefix, name in PREFIXES.items()]
CXX_FLAGS = [*SHARED_FLAGS, "-std=c++17", "-fvisibility-inlines-hidden"]
C_FLAGS = [*SHARED_FLAGS, "-std=c11"]
LINK_FLAGS = ["-s", "-Wl,--version-script=csrc/exports.map", "-Wl,--build-id=sha1", "-Wl,--as-needed"]
LINK_FLAGS += ["-Wl,-z,now,-z,relro,-z,noexecstack"]


class BuildExtension(build_ext):
    def build_extension(self, ext: Extension) -> None:
        """The generated sources are C and assembly, which take other flags than the C++ around them."""
        self.compiler.src_extensions.append(".S")
        ext.extra_objects = self.compiler.compile(
            [str(AOT / name) for name in GENERATED],
            output_dir=self.build_temp,
            include_dirs=ext.include_dirs,
            extra_postargs=C_FLAGS,
        )
        super().build_extension(ext)


class BuildPackage(build_py):
    def run(self) -> None:
        super().run()
        shutil.copyfile(AOT / "manifest.json", Path(self.build_lib, "gg_runtime", "manifest.json"))


if not (ROOT / AOT / "manifest.json").exists():
    raise SystemExit(f"{AOT}/manifest.json is missing: the kernels are not compiled yet. Run `make build`.")

ParallelCompile(default=0).install()  # one compiler a core
setup(
    ext_modules=[
        Extension(
            "gg_runtime._C",
            sources=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.cpp")),
            depends=[*map(str, sorted(AOT.glob("*"))), *map(str, sorted(Path("csrc").glob("**/*.h*")))],
            include_dirs=["csrc", str(AOT), pybind11.get_include()],
            extra_compile_args=CXX_FLAGS,
            extra_link_args=LINK_FLAGS,
            libraries=["dl"],
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildExtension, "build_py": BuildPackage},
)
