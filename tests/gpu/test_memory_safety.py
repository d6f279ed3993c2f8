"""No kernel touches memory that is not its arrays': unmapped neighbours and compute-sanitizer say so."""

import re
import shutil

import child
import pytest

MEMCHECK = (
    *("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no"),
    *("--padding", "64", "--print-limit", "5"),
)
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@pytest.mark.parametrize("form", ["list", "ragged"])
def test_no_kernel_leaves_the_mapped_pages(form):
    output = child.run(f"import guard_pages; guard_pages.main({form!r})", timeout=300)
    assert re.search(rf"[1-9]\d* {form} kernels stayed inside", output), output


def test_guard_pages_catch_a_stray_read():
    status, output = child.finish(child.start("import guard_pages; guard_pages.overrun()"))
    assert status != 0 and "illegal" in output.lower(), output


def test_memcheck_finds_nothing():
    if shutil.which(MEMCHECK[0]) is None:
        pytest.skip("compute-sanitizer is not on PATH")
    checked = child.start("import sanitized; sanitized.main()", under=MEMCHECK, **UNCACHED)
    control = child.start("import raw; raw.overrun()", under=MEMCHECK, **UNCACHED)
    (status, output), (control_status, control_output) = (child.finish(process, 300) for process in (checked, control))
    if "Device not supported" in control_output:
        pytest.skip("compute-sanitizer does not support this machine's GPU access")
    assert control_status != 0 and "Invalid __global__ read" in control_output, control_output
    assert status == 0 and "all right" in output and "ERROR SUMMARY: 0 errors" in output, output
