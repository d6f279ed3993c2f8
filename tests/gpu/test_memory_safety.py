"""No kernel touches memory that is not its arrays': unmapped neighbours say so, as does test_compute_sanitizer.py."""

import re

import pytest

import fresh_process
import guard_pages
from cases import ARTIFACTS


def test_every_kernel_is_walked():
    names = [artifact["name"] for chosen, _ in guard_pages.CHECKS.values() for artifact in chosen]
    assert sorted(names) == sorted(artifact["name"] for artifact in ARTIFACTS)


@pytest.mark.parametrize("form", guard_pages.CHECKS)
def test_no_kernel_leaves_the_mapped_pages(form):
    if not guard_pages.CHECKS[form][0]:
        pytest.skip(f"no {form} kernels for this GPU")
    output = fresh_process.run(f"import guard_pages; guard_pages.main({form!r})", timeout=300)
    assert re.search(rf"[1-9]\d* {form} kernels stayed inside", output), output


def test_routing_and_combining_stay_inside_whatever_ids_and_places_hold():
    output = fresh_process.run("import guard_pages; guard_pages.around_products()", timeout=300)
    assert "routing, combining and layers stayed inside" in output, output


def test_guard_pages_catch_a_stray_read():
    status, output = fresh_process.finish(fresh_process.start("import guard_pages; guard_pages.overrun()"))
    assert status != 0 and "illegal" in output.lower(), output
