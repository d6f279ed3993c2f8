"""MoE layers of well-known models, as ragged products: what is worth measuring one by one."""

import math
from collections.abc import Iterator

MOST_WEIGHT_BYTES = 24e9  # in 16 bits
LOADS = range(-4, 25)  # half powers of two: 0.25 to 4096 rows an expert

Layer = tuple[int, int, int]  # experts, columns N, depth K

# Experts, hidden size, intermediate size of an expert; as the models' config.json have them, the most run first.
MODELS = {
    "DeepSeek-V3, R1": (256, 7168, 2048),
    "Qwen3-30B-A3B": (128, 2048, 768),
    "Qwen3-235B-A22B": (128, 4096, 1536),
    "gpt-oss-120b": (128, 2880, 2880),
    "gpt-oss-20b": (32, 2880, 2880),
    "Mixtral-8x7B": (8, 4096, 14336),
    "Kimi-K2": (384, 7168, 2048),
    "Qwen3-Next-80B-A3B": (512, 2048, 512),
    "GLM-4.5": (160, 5120, 1536),
    "GLM-4.5-Air": (128, 4096, 1408),
    "Qwen3-Coder-480B-A35B": (160, 6144, 2560),
    "Qwen3.5-397B-A17B": (512, 4096, 1024),
    "MiniMax-M2": (256, 3072, 1536),
    "Llama-4-Scout": (16, 5120, 8192),
    "Llama-4-Maverick": (128, 5120, 8192),
    "DeepSeek-V2-Lite": (64, 2048, 1408),
    "DeepSeek-V2": (160, 5120, 1536),
    "Mixtral-8x22B": (8, 6144, 16384),
    "Qwen2-57B-A14B": (64, 3584, 2560),
    "Phi-3.5-MoE": (16, 4096, 6400),
    "OLMoE-1B-7B": (64, 2048, 1024),
}


def experts_on_a_gpu(experts: int) -> list[int]:
    """All of them; and those that expert parallelism over 8 GPUs leaves to one, over 32 where there are 512."""
    return [experts // gpus for gpus, least in ((1, 1), (8, 128), (32, 512)) if experts >= least]


def of_models() -> Iterator[Layer]:
    """Gate and up side by side, then down."""
    for everyone, hidden, width in MODELS.values():
        for experts in experts_on_a_gpu(everyone):
            yield experts, 2 * width, hidden
            yield experts, hidden, width


def layers() -> list[Layer]:
    """What is measured, in this order until the time is up: the benchmark's layers first, each once."""
    from benchmarks.shapes import MOE

    first = ((shape.experts, shape.columns, shape.depth) for shape in MOE.values())
    return [layer for layer in dict.fromkeys([*first, *of_models()]) if 2 * math.prod(layer) <= MOST_WEIGHT_BYTES]


def load_of(rows: int, experts: int) -> int:
    """Rows an expert, in half powers of two; csrc/forms/table_key.cpp computes the same."""
    return round(2 * math.log2(rows / experts))


def rows_at(load: int, experts: int) -> int:
    return round(experts * 2 ** (load / 2))
