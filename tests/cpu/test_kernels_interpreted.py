"""The logic of the list kernels, in Triton's interpreter: every layout on odd sizes, exactly."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton, which only the build needs, is not installed"
)
SCRIPT = Path(__file__).with_name("interpreted_kernel.py")


def interpret(kernel: str, **case) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, kernel, json.dumps(case)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "equal\n", done.stderr[-4000:]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "strided"])
def test_basic_on_odd_sizes(layout):
    sizes = [(37, 29, 19), (1, 1, 1), (16, 33, 0), (5, 40, 64)]
    interpret("basic", layout=layout, aligned=False, sizes=sizes, blocks=[16, 16, 16], ctas=3)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_basic_with_its_aligned_promises(layout):
    sizes = [(40, 24, 72), (8, 8, 8), (24, 40, 16)]
    interpret("basic", layout=layout, aligned=True, sizes=sizes, blocks=[16, 32, 16], ctas=2)


@pytest.mark.parametrize("layout", ["nt", "strided"])
def test_basic_scales_products_of_e4m3(layout):
    sizes = [(37, 29, 19), (16, 33, 0), (5, 40, 64)]
    interpret("basic", layout=layout, aligned=False, sizes=sizes, blocks=[16, 16, 16], ctas=3, scales=[0.5, 4])


@pytest.mark.parametrize("ctas", [1, 2, 200])
def test_every_tile_is_computed_once_whatever_the_grid(ctas):
    sizes = [(70, 50, 20), (33, 17, 18)]
    interpret("basic", layout="nn", aligned=False, sizes=sizes, blocks=[16, 16, 16], ctas=ctas)


def test_a_tile_finds_its_group_beyond_the_first_search_block():
    sizes = [(3, 5, 4)] * 130 + [(20, 20, 3)]
    interpret("basic", layout="nn", aligned=False, sizes=sizes, blocks=[16, 16, 16], ctas=7)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_tma_reads_tails_as_zeros(layout):
    interpret("tma", layout=layout, sizes=[(37, 29, 19), (40, 24, 72)], blocks=[16, 32, 16], ctas=3)
