"""MoE layers as grouped products: those of well-known models, and those of the user's own."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .measurement import GroupedProduct

MOST_WEIGHT_BYTES = 24e9  # in 16 bits
MOST_ROWS = 131072
LARGEST_FLOP = 2e12  # of a product, about three milliseconds
LOADS = range(-4, 25)  # half powers of two: 0.25 to 4096 rows an expert
SPLITS = ("multinomial", "zipf")

# What config.json of a model on Hugging Face calls them, the first that is there.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
WIDTH = ("moe_intermediate_size", "intermediate_size")

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
# Timed by the benchmark, besides: experts that expert parallelism leaves, of DeepSeek-V3 and others.
FIRST = [
    (8, 4096, 7168), (8, 7168, 2048), (8, 28672, 4096), (8, 4096, 14336), (16, 8192, 5120), (128, 1536, 2048),
    (128, 2048, 768), (128, 3072, 4096), (128, 4096, 1536), (64, 2816, 2048), (64, 2048, 1408), (128, 5760, 2880),
    (128, 2880, 2880), (32, 4096, 7168), (16, 2048, 4096),
]  # fmt: skip


class LayerFileError(Exception):
    """A file of layers that names none, and what it lacks."""


@dataclass(frozen=True)
class Layer:
    """`rows`: numbers of rows to measure; those of all LOADS where there are none."""

    experts: int
    columns: int  # N
    depth: int  # K
    rows: tuple[int, ...] = ()

    def products(self) -> Iterator[list[GroupedProduct]]:
        """Each number of rows in every split, up to the largest product."""
        for rows in dict.fromkeys(self.rows or (rows_at(load, self.experts) for load in LOADS)):
            splits = [GroupedProduct("bf16", how, self.experts, rows, self.columns, self.depth) for how in SPLITS]
            if 0 < rows <= MOST_ROWS and splits[0].flop <= LARGEST_FLOP:
                yield splits


def experts_on_a_gpu(experts: int) -> list[int]:
    """All of them; and those that expert parallelism over 8 GPUs leaves to one, over 32 where there are 512."""
    return [experts // gpus for gpus, least in ((1, 1), (8, 128), (32, 512)) if experts >= least]


def of_model(experts: int, hidden: int, width: int) -> list[Layer]:
    """Gate and up side by side, then down."""
    return [Layer(experts, 2 * width, hidden), Layer(experts, hidden, width)]


def layers() -> list[Layer]:
    """What is measured: the benchmark's layers first, each once."""
    found = [Layer(*sizes) for sizes in FIRST]
    for everyone, hidden, width in MODELS.values():
        for experts in experts_on_a_gpu(everyone):
            found += of_model(experts, hidden, width)
    return [one for one in dict.fromkeys(found) if 2 * one.experts * one.columns * one.depth <= MOST_WEIGHT_BYTES]


def load_of(rows: int, experts: int) -> int:
    """Rows an expert, in half powers of two; csrc/forms/table_key.cpp computes the same."""
    return round(2 * math.log2(rows / experts))


def rows_at(load: int, experts: int) -> int:
    return round(experts * 2 ** (load / 2))


def read_layers(path: Path) -> list[Layer]:
    """Of a list of {"experts", "n", "k", "rows" and "dtype" if wanted}, or of a model's config.json (Hugging Face)."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LayerFileError(f"{path} is no JSON file: {error}") from error
    if isinstance(data, list):
        found = [_listed(row, f"{path.name}, layer {number}") for number, row in enumerate(data, 1)]
    elif isinstance(data, dict):
        found = _of_config(data, path.name)
    else:
        raise LayerFileError(f"{path.name} is neither a list of layers nor a model's config.json")
    if not any(True for layer in found for _ in layer.products()):
        raise LayerFileError(
            f"{path.name} names no layer of at most {MOST_ROWS} rows and {LARGEST_FLOP:.0e} operations a product"
        )
    return found


def _listed(row: dict, where: str) -> Layer:
    if not isinstance(row, dict):
        raise LayerFileError(f'{where} is no object: {{"experts", "n", "k"}} is needed')
    experts, columns, depth = (_size(row, name, where) for name in ("experts", "n", "k"))
    if (dtype := row.get("dtype", "bf16")) not in ("bf16", "fp16", "bfloat16", "float16"):
        raise LayerFileError(f'{where} has the dtype {dtype!r}; "bf16" and "fp16" can have rows, which serve both')
    rows = row.get("rows", [])
    rows = rows if isinstance(rows, list) else [rows]
    if any(type(each) is not int or each < 1 for each in rows):
        raise LayerFileError(f"{where} has rows = {row['rows']!r}: positive numbers of rows are needed")
    return Layer(experts, columns, depth, tuple(rows))


def _of_config(config: dict, name: str) -> list[Layer]:
    """Models that read images too have the sizes of their text in a part of its own."""
    config = config.get("text_config") or config
    kind = f"{name} (model_type {config.get('model_type', 'not given')})"
    experts = next((known for known in EXPERTS if config.get(known)), None)
    if experts is None:
        raise LayerFileError(f"{kind} has none of {', '.join(EXPERTS)}: it is not of a mixture of experts")
    width = next((known for known in WIDTH if config.get(known)), None)
    missing = ["hidden_size"] * (not config.get("hidden_size")) + [" or ".join(WIDTH)] * (width is None)
    if missing or width is None:
        raise LayerFileError(f"{kind} has {experts}, but no {' and no '.join(missing)}")
    return of_model(*(_size(config, key, kind) for key in (experts, "hidden_size", width)))


def _size(row: dict, name: str, where: str) -> int:
    if type(row.get(name)) is not int or row[name] < 1:
        raise LayerFileError(f"{where} has {name} = {row.get(name)!r}: a positive whole number is needed")
    return row[name]
