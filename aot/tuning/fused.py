"""The family of what kernels do besides: gated epilogues, rows of A by an index, and both, in layers of any size.

Their figures and rows come from the same products, each with the splits of layers. Few of them: a kernel has few tiles,
and about a minute of an H200 is enough for all.
"""

import random

from .grouped import Grouped
from .layers import SPLITS, Layer
from .measurement import GroupedProduct

# (epilogue, source) of what a kernel does besides a plain product.
BESIDES = (
    ("gated", "rows"),
    ("gated", "indexed"),
    ("gated_pairs", "rows"),
    ("gated_pairs", "indexed"),
    ("linear", "indexed"),
    ("gated_kept", "rows"),
    ("gated_kept", "indexed"),
)
# Up projections, from decoding to the largest prefill: first those that benchmarks/layer_shapes.py has.
UP_PROJECTIONS = (
    Layer(128, 1536, 2048, (512, 32768, 64, 2048, 8192)),
    Layer(128, 512, 1536, (196608, 1024, 16384)),
    Layer(128, 1024, 4096, (262144, 4096, 32768)),
    Layer(64, 4096, 4096, (131072, 256, 4096, 12288)),
    Layer(8, 4096, 7168, (32768, 16, 256, 2048)),
    Layer(8, 28672, 4096, (16384, 32, 1024)),
    Layer(128, 5760, 2880, (16384, 128, 1024, 4096, 8192)),
    Layer(256, 4096, 7168, (256, 2048)),
    Layer(32, 1024, 512, (256, 4096)),
    Layer(16, 512, 8192, (64, 4096)),
)


def units() -> list[list[GroupedProduct]]:
    """Mixed, so that a pass that is cut short has seen some of all."""
    sizes = [(up, rows) for up in UP_PROJECTIONS for rows in up.rows]
    numbers = random.Random(0)
    mixed = [numbers.sample(sizes, len(sizes)) for _ in BESIDES]
    return [
        [GroupedProduct("bf16", split, up.experts, rows, up.columns, up.depth, *besides) for split in SPLITS]
        for turn in zip(*mixed)
        for besides, (up, rows) in zip(BESIDES, turn)
    ]


class Fused(Grouped):
    def __init__(self) -> None:
        super().__init__("fused", units())
