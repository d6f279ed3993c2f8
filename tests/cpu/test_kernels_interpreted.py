"""The logic of the list kernels and of `pack`, in Triton's interpreter: every layout on odd sizes, exactly."""

from random import Random

import pytest
from interpreted import run_interpreted

pytestmark = pytest.mark.compiler


def interpret(kernel: str, **case) -> None:
    run_interpreted("kernel", kernel, case)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "strided"])
def test_basic_on_odd_sizes(layout):
    sizes = [(37, 29, 19), (1, 1, 1), (16, 33, 0), (5, 40, 64)]
    interpret("basic", layout=layout, aligned=False, sizes=sizes, blocks=[16, 16, 16], ctas=3)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_basic_with_its_aligned_guarantees(layout):
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


def test_pack_expands_lists_whatever_their_groups_share():
    """Records of both lengths; nothing, the ends alone, single words, all words differ; groups end inside a program."""
    random = Random(10)
    cases = [
        {"groups": groups, "record_words": words, "block": block, "differs": differs}
        for groups, words, block, differs in [
            (1, 14, 128, []),
            (9, 14, 128, [0]),
            (100, 56, 128, [0, 1, 17, 33]),
            (64, 56, 64, [56]),
            (8, 56, 128, list(range(57))),
            (33, 14, 16, list(range(15))),
        ]
    ]
    for _ in range(40):
        words = random.choice([14, 56, 1, 62])
        differs = random.sample(range(words + 1), random.randint(0, words + 1))
        block = random.choice([8, 32, 128])
        cases.append({"groups": random.randint(1, 20), "record_words": words, "block": block, "differs": differs})
    run_interpreted("pack", cases)
