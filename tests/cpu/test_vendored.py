"""What others wrote and is kept here: unchanged, of the version that is said, with the meaning that abi.py gives it."""

import ctypes
import hashlib
import importlib.metadata
import re

import pytest
from builder_sandbox import ROOT

from aot.build import native
from aot.spec import abi

DLPACK = ROOT / "csrc/abi/dlpack"
PUBLISHED = {
    "dlpack.h": "62052bef24bd69bb7b52e95428f9e99bd7951783850c36c5f2a41e71fd63c2fc",
    "LICENSE": "3e8f6bc39276a586d60c8c5aaece2ff989262181cf2b3d2a128db58f97a9300c",
}
CODES = {
    "e4m3": "kDLFloat8_e4m3fn", "bf16": "kDLBfloat", "fp16": "kDLFloat", "fp32": "kDLFloat", "e5m2": "kDLFloat8_e5m2",
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_dlpack_is_as_published(name):
    assert hashlib.sha256((DLPACK / name).read_bytes()).hexdigest() == PUBLISHED[name]


def test_its_version_is_the_one_that_is_said():
    macros = dict(re.findall(r"#define DLPACK_(MAJOR|MINOR)_VERSION (\d+)", (DLPACK / "dlpack.h").read_text()))
    assert f"version {macros['MAJOR']}.{macros['MINOR']}," in (DLPACK / "README.md").read_text()


def test_dtypes_have_the_codes_of_dlpack(tmp_path):
    """aot/spec/abi.py writes the numbers, for abi.h is C and read by launchers, which know no DLPack."""
    assert CODES.keys() == abi.DTYPES.keys()
    source = tmp_path / "codes.cpp"
    functions = (f'extern "C" int code_{dtype}() {{ return {name}; }}\n' for dtype, name in CODES.items())
    source.write_text('#include "abi/dlpack/dlpack.h"\n' + "".join(functions))
    codes = ctypes.CDLL(str(native.shared_library(tmp_path / "codes.so", [source], include=[ROOT / "csrc"])))
    found = {dtype: getattr(codes, f"code_{dtype}")() for dtype in abi.DTYPES}
    assert found == {name: dtype.dlpack_code for name, dtype in abi.DTYPES.items()}


def test_the_license_of_pybind11_is_that_of_the_version_compiled_in():
    files = importlib.metadata.files("pybind11") or ()
    (license_file,) = (path for path in files if path.match("*.dist-info/licenses/LICENSE"))
    assert (ROOT / "LICENSES/pybind11.txt").read_text() == license_file.read_text()
