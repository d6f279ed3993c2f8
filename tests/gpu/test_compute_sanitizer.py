"""compute-sanitizer finds nothing in kernels of every family and form, and each of its tools finds a planted bug.

Alone: `python -m pytest -q tests/gpu/test_compute_sanitizer.py`, with gg_runtime importable. All tools run at once.
"""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import fresh_process

COMMON = ("--error-exitcode", "9", "--print-limit", "5")
TOOLS = {
    "memcheck": ("--padding", "64", "--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "all"),
    "initcheck": (),
    "synccheck": (),
}
CLEAN = dict.fromkeys(TOOLS, "ERROR SUMMARY: 0 errors") | {
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
}
FOUND = {
    "memcheck": r"(?s)Invalid __global__ read.*planted_memcheck",
    "racecheck": r"(?s)(Race reported|hazard).*planted_racecheck",
    "initcheck": r"(?s)Uninitialized __global__ memory read.*planted_initcheck",
    "synccheck": r"(?s)Barrier error detected.*planted_(synccheck|divergent)",
}
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # or else an overrun ends in another tensor of the same block
SECONDS = 240  # each process; all run side by side


def under(tool: str) -> tuple[str, ...]:
    return ("compute-sanitizer", "--tool", tool, *COMMON, *TOOLS[tool])


def ran(scripts: dict[str, str]) -> dict[str, tuple[int, str]]:
    """Exit status and output of each script, by its name, which begins with its tool. They run side by side."""
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not on PATH")
    started = {
        name: fresh_process.start(script, under=under(name.split()[0]), **UNCACHED) for name, script in scripts.items()
    }
    with ThreadPoolExecutor(len(started)) as pool:
        ended = dict(zip(started, pool.map(lambda process: fresh_process.finish(process, SECONDS), started.values())))
    if any("Device not supported" in output for _, output in ended.values()):
        pytest.skip("compute-sanitizer does not support this machine's GPU access")
    return ended


OVERRUN = "memcheck of a stray read by our own kernel"


@pytest.fixture(scope="module")
def kernels():
    scripts = {tool: f"import sanitized; sanitized.main({tool!r})" for tool in TOOLS}
    return ran(scripts | {OVERRUN: "import foreign_memory; foreign_memory.overrun()"})


@pytest.fixture(scope="module")
def planted():
    pytest.importorskip("cupy", reason="it compiles the planted bugs")
    return ran({tool: f"import planted; planted.main({tool!r})" for tool in TOOLS})


def reports(output: str) -> str:
    """The case that each report followed and the lines that name a kernel, then all of the output."""
    named = re.findall(r"^case: .*|^=+ .*(?:error|hazard|Race|Invalid|Uninitialized|Barrier| at .*\)).*", output, re.M)
    return "\n".join([*named, "", output])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_planted_bug_is_found(planted, tool):
    status, output = planted[tool]
    assert f"planted: {tool}" in output, output
    assert status != 0 and re.search(FOUND[tool], output), output
    assert CLEAN[tool] not in output, output


def test_memcheck_looks_into_the_embedded_cubins(kernels):
    """A matrix that claims more rows than it has."""
    status, output = kernels[OVERRUN]
    assert status != 0 and re.search(r"(?s)Invalid __global__ read.*\bbasic\b", output), output


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_is_found_in_our_kernels(kernels, tool):
    status, output = kernels[tool]
    assert re.search(r"all right: [1-9]\d* cases", output), reports(output)
    assert status == 0 and CLEAN[tool] in output, reports(output)


def test_every_kernel_family_is_a_case(cuda):
    import sanitized
    from cases import ARTIFACTS, device_sm

    here = sanitized.cases_here()
    families = {artifact["kernel"] for artifact in ARTIFACTS if artifact["sm"] == device_sm()}
    assert families == {sanitized.CASES[case][0] for case in here}
    for tool, excluded in sanitized.EXCLUDED.items():
        judged = {sanitized.CASES[case][0] for case in here if case not in excluded}
        assert "basic" in judged and all(excluded.values()), f"{tool} is left with too little, or without reasons"
