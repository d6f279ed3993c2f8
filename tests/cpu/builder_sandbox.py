"""Copies of the builder in folders of their own, in which a test may break it."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In place of the compiler: artifacts at once, and whatever a test wants to go wrong.
STAND_IN = """

def compile_variant(variant):
    import os, subprocess, time
    from ..emit.golden import sample
{body}
    return sample(variant)
"""

TABLE = '{{\n"configs": [\n{rows}\n]\n}}\n'
ROW = '{"alignment": 16, "block_m": 64, "block_n": 64, "block_k": 32, "stages": 4, "warps": 4, "raster": 8}'


class Tree:
    """A copy of aot/ with one config for `basic` on sm_80: 8 variants, and `pack`."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copytree(ROOT / "aot", folder / "aot", ignore=shutil.ignore_patterns("__pycache__"))
        for table in (folder / "aot/tables").glob("*/shapes.json"):
            table.unlink()
        (folder / "aot/tables/sm80/basic.json").write_text(TABLE.format(rows=ROW))
        for table in (folder / "aot/tables/sm80").glob("*.json"):
            if table.stem not in ("basic", "pack"):
                table.write_text(TABLE.format(rows=""))
        self.compiler = (folder / "aot/build/compile.py").read_text()

    @property
    def generated(self) -> Path:
        return self.folder / "build/aot"

    def stand_in(self, body: str = "") -> None:
        """Replaces the compiler by one that runs `body` for each `variant`."""
        body = textwrap.indent(textwrap.dedent(body), "    ")
        (self.folder / "aot/build/compile.py").write_text(self.compiler + STAND_IN.format(body=body))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "aot", *arguments],
            cwd=self.folder,
            env=os.environ | {"ARCHS": "80", "KERNELS": "", "PYTHONDONTWRITEBYTECODE": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def python(self, script: str, **environment: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=self.folder,
            env=os.environ | environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        ).stdout

    def keys(self, triton: str = "digest") -> dict[str, str]:
        """The cache key of each variant, as a fresh process computes it for a Triton of that digest."""
        return json.loads(
            self.python(
                f"""
                import json, pathlib
                from aot.build.cache import Cache
                from aot.build.toolchain import Toolchain
                from aot.spec.variants import variants
                cache = Cache(pathlib.Path("build/cache"), Toolchain("3.9.0", "12.9", {triton!r}))
                print(json.dumps({{variant.name: cache.key(variant) for variant in variants([80, 90])}}))
                """
            )
        )

    def contents(self) -> dict[str, bytes]:
        """Every generated file, by its path under build/aot."""
        files = sorted(path for path in self.generated.rglob("*") if path.is_file())
        return {str(path.relative_to(self.generated)): path.read_bytes() for path in files}
