"""fake_cuda.c, built and put in the way of processes that use gg_runtime; tells what they asked of the driver."""

import json
import textwrap
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import gg_runtime
from processes import PACKAGE, run_python

SM_80 = {"FAKE_CUDA_SM": 80}  # a GPU whose list kernels are all `basic`, which needs no scratch memory


@dataclass
class Ran:
    """What came of a process: the values that it reported, its driver calls in order, its images by number."""

    reported: list
    calls: list[dict]
    images: dict[int, bytes]

    def of(self, call: str) -> list[dict]:
        return [entry for entry in self.calls if entry["call"] == call]

    @property
    def launches(self) -> list[dict]:
        return self.of("cuLaunchKernelEx")

    def hash_of(self, entry: dict) -> str:
        """The sha256 of the image that a recorded call belongs to."""
        return sha256(self.images[entry["image"]]).hexdigest()


def build_driver(folder: Path, *flags: str) -> Path:
    """Compiles fake_cuda.c into `folder`/libcuda.so.1."""
    from aot.build import native  # where tests run without the checkout on their path, nobody builds a driver

    folder.mkdir(parents=True, exist_ok=True)
    native.shared_library(
        folder / "libcuda.so.1",
        [Path(__file__).with_name("fake_cuda.c")],
        flags=flags,
        link_flags=["-Wl,-soname,libcuda.so.1"],
    )
    return folder


def assert_says(error: dict, kind: str, *words: str) -> None:
    """That faults.child_prelude.failure reported an exception of this type, with each of the words in its message."""
    assert error["type"] == kind, error
    for word in words:
        assert word in error["text"], f"{word!r} is missing in: {error['text']}"


class FakeDriver:
    """fake_cuda.c, built once; each run gets a log of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs = 0
        self.current = build_driver(folder / "current")
        self.before_12_4 = build_driver(folder / "before_12_4", "-DWITHOUT_PARAM_INFO")
        self.parameters = folder / "parameters"
        self.parameters.write_text(parameter_table(gg_runtime.manifest()))

    def run(self, script: str, *, package: Path = PACKAGE, driver: Path | None = None, **settings) -> Ran:
        """Runs `script` after faults/child_prelude.py. `settings` are environment variables of fake_cuda.c."""
        self.runs += 1
        log = self.folder / f"log.{self.runs}"
        log.touch()
        settings = {"FAKE_CUDA_LOG": log, "FAKE_CUDA_PARAMETERS": self.parameters} | settings
        settings["LD_LIBRARY_PATH"] = driver or self.current
        script = "from faults.child_prelude import *\n" + textwrap.dedent(script)
        printed = run_python(script, self.folder, package=package, **settings)
        images = {int(path.suffix[1:]): path.read_bytes() for path in self.folder.glob(f"{log.name}.image.*")}
        calls = [json.loads(line) for line in log.read_text().splitlines()]
        return Ran([json.loads(line) for line in printed.splitlines()], calls, images)


def parameter_table(manifest: dict) -> str:
    """Lines "symbol offset size" of each entry point's parameters. Where kernels of one entry point have different ones
    the driver looks into the cubin, and only those that the PTX of all have are listed."""
    kernels: dict[str, list] = {}
    of_ptx: dict[str, list] = {}
    for entry in manifest["artifacts"].values():
        for found in (kernels, of_ptx) if "ptx" in entry else (kernels,):
            different = found.setdefault(entry["symbol"], [])
            different += [entry["parameters"]] * (entry["parameters"] not in different)
    listed = {symbol: different for symbol, different in kernels.items() if len(different) == 1}
    listed |= {f"ptx:{symbol}": d for symbol, d in of_ptx.items() if symbol not in listed and len(d) == 1}
    return "".join(
        f"{symbol} {offset + index * size} {size}\n"
        for symbol, (parameters,) in listed.items()
        for offset, size, count in parameters
        for index in range(count)
    )
