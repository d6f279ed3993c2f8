"""The family of kernels with scales of rows or of blocks: their costs alone, of products from decoding to prefill."""

import itertools
import random

from .grouped import SPLITS, Grouped
from .measurement import GroupedProduct

# Experts, and rows of each on average.
LOADS = ((8, 4096), (8, 512), (16, 625), (32, 20), (32, 1024), (64, 700), (128, 4), (128, 64), (128, 256))
# N and K
SIZES = ((1536, 2048), (2048, 768), (4096, 1536), (3072, 4096), (4096, 7168), (7168, 2048))


def units() -> list[list[GroupedProduct]]:
    """Mixed, so that a pass that is cut short has seen some of all."""
    products = [
        GroupedProduct("e4m3", SPLITS[index % len(SPLITS)], experts, experts * each, columns, depth, scales=scales)
        for index, (scales, (experts, each), (columns, depth)) in enumerate(
            itertools.product(("row", "block"), LOADS, SIZES)
        )
    ]
    return [[one] for one in random.Random(0).sample(products, len(products))]


class Scaled(Grouped):
    def __init__(self) -> None:
        super().__init__("scaled", units())
