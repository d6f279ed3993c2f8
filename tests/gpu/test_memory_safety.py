"""No kernel touches memory that is not its arrays': unmapped neighbours say so, as does test_compute_sanitizer.py."""

import re

import pytest

import fresh_process


@pytest.mark.parametrize("form", ["list", "ragged", "ragged_k", "scaled_k", "up", "stack"])
def test_no_kernel_leaves_the_mapped_pages(form):
    output = fresh_process.run(f"import guard_pages; guard_pages.main({form!r})", timeout=300)
    assert re.search(rf"[1-9]\d* {form} kernels stayed inside", output), output


def test_routing_and_combining_stay_inside_whatever_ids_and_places_hold():
    output = fresh_process.run("import guard_pages; guard_pages.around_products()", timeout=300)
    assert "routing, combining and layers stayed inside" in output, output


def test_guard_pages_catch_a_stray_read():
    status, output = fresh_process.finish(fresh_process.start("import guard_pages; guard_pages.overrun()"))
    assert status != 0 and "illegal" in output.lower(), output
