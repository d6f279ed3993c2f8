"""PyTorch's own cases of grouped_mm, of its test/test_matmul_cuda.py, with gg_runtime in torch's place.

That file is not in this repository: GG_TORCH_CASES says where a copy of it lies, of the torch that is installed.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GIVEN = os.environ.get("GG_TORCH_CASES", "")
pytestmark = pytest.mark.skipif(
    not GIVEN, reason="GG_TORCH_CASES does not name a copy of PyTorch's test/test_matmul_cuda.py"
)
FORMS = ["2d_2d", "2d_3d", "3d_3d", "3d_2d"]
CASES_OF_A_FORM = 2 * 2 * 2 * 2  # strided, a and b row-major or not, float16 or bfloat16

# What of the file's names with "grouped" in them is left out, by a part of the name.
LEFT_OUT = {
    "float32": "gg_runtime multiplies float16, bfloat16 and float8_e4m3fn",
    "rocm": "asks which of AMD's libraries was called",
    "scaled_grouped": "asks for scales by row, which gg_runtime does not have, or for the texts of torch's errors",
    "mx": "block-scaled formats, which need a GPU of sm_100",
    "mxfp8": "the same",
    "nvfp4": "the same",
    "error": "asks for the texts of torch's errors",
}

# In a process of its own: torch.nn.functional.grouped_mm and torch._grouped_mm are gg_runtime's there.
RUNNER = """
import importlib.util, json, sys, types, unittest
import torch
import gg_runtime

if importlib.util.find_spec("expecttest") is None:
    # torch.testing's TestCase derives from this package's, for a kind of assertion that no case of grouped_mm makes.
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

calls = []

def grouped_mm(mat_a, mat_b, *, offs=None, bias=None, out_dtype=None):
    calls.append(mat_a.dim() * 10 + mat_b.dim())
    return gg_runtime.grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)

torch._grouped_mm = torch.nn.functional.grouped_mm = grouped_mm
path, parts = sys.argv[1], json.loads(sys.argv[2])
sys.argv = sys.argv[:1]
specification = importlib.util.spec_from_file_location("torch_cases", path)
module = sys.modules["torch_cases"] = importlib.util.module_from_spec(specification)
specification.loader.exec_module(module)
found = {}
for kind in vars(module).values():
    if isinstance(kind, type) and issubclass(kind, unittest.TestCase):
        for name in unittest.TestLoader().getTestCaseNames(kind):
            if "grouped" not in name:
                continue
            left_out = [part for part in parts if part in name]
            if left_out:
                found[name] = ["left out", left_out[0], 0]
                continue
            result, before = unittest.TestResult(), len(calls)
            unittest.TestSuite([kind(name)]).run(result)  # with its class's setUpClass
            told = [text for _, text in result.failures + result.errors] + [text for _, text in result.skipped]
            word = "skipped" if result.skipped else "passed" if result.wasSuccessful() else "failed"
            found[name] = [word, told[0] if told else "", len(calls) - before]
print("FOUND", json.dumps(found))
"""


@functools.cache
def found() -> dict[str, list]:
    """Name -> what became of it, why, and how often it called grouped_mm."""
    assert Path(GIVEN).is_file(), f"GG_TORCH_CASES: there is no file {GIVEN}"
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(Path(GIVEN).resolve()), json.dumps(list(LEFT_OUT))],
        cwd=Path(__file__).parent,  # not the checkout, whose sources would hide the installed package
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout
    return json.loads(lines[-1].removeprefix("FOUND "))


@pytest.mark.parametrize("form", FORMS)
def test_the_cases_of_a_form_pass(form):
    of_form = {name: told for name, told in found().items() if form in name and told[0] != "left out"}
    failed = {name: told for name, told in of_form.items() if told[0] != "passed" or told[2] == 0}
    assert not failed, "\n".join(f"{name}: {word}, {calls} calls: {why}" for name, (word, why, calls) in failed.items())
    assert len(of_form) >= CASES_OF_A_FORM, sorted(of_form)


def test_every_other_case_is_left_out_with_a_reason():
    others = {name for name in found() if not any(form in name for form in FORMS)}
    assert all(found()[name][0] in ("left out", "passed") for name in others), others
    for name, (word, why, _) in found().items():
        if word == "left out":
            print(f"left out: {name}: {LEFT_OUT[why]}")
