"""What is timed: problem lists, name -> [(M, N, K), ...], and ragged products of MoE layers, name -> RaggedShape."""

import random
from dataclasses import dataclass

from aot import splits

Shape = tuple[int, int, int]


def squares(size: int, groups: int = 4) -> list[Shape]:
    return [(size, size, size)] * groups


def ragged(groups: int, largest: int, seed: int) -> list[Shape]:
    """Sizes drawn from the multiples of 64 up to `largest`."""
    numbers = random.Random(seed)

    def size() -> int:
        return 64 * numbers.randint(1, largest // 64)

    return [(size(), size(), size()) for _ in range(groups)]


LISTS: dict[str, list[Shape]] = {
    **{f"4 x {n}^3": squares(n) for n in (128, 256, 512, 1024)},
    "1024^3 .. 128^3": [(n, n, n) for n in (1024, 512, 256, 128)],
    **{f"4 x ({m}, 8192, 8192)": [(m, 8192, 8192)] * 4 for m in (128, 256, 512, 1024, 2048)},
    "64 ragged to 2048": ragged(64, 2048, seed=0),
    "256 ragged to 512": ragged(256, 512, seed=1),
}


@dataclass(frozen=True)
class RaggedShape:
    """A [rows, depth] @ B [experts, depth, columns], `group_rows` of the rows for each expert. The output is bf16."""

    kind: str
    group_rows: tuple[int, ...]
    columns: int
    depth: int
    dtype: str = "bf16"  # of A and B; or e4m3

    @property
    def experts(self) -> int:
        return len(self.group_rows)

    @property
    def rows(self) -> int:
        return sum(self.group_rows)

    @property
    def flop(self) -> int:
        return 2 * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> int:
        """What has to move at the least: activations, outputs, and the weights of experts that have rows."""
        used = sum(map(bool, self.group_rows))
        element = {"bf16": 2, "e4m3": 1}[self.dtype]
        return element * self.depth * (self.rows + used * self.columns) + 2 * self.rows * self.columns


SPLITS = {
    **splits.SPLITS,
    "within 30 %": lambda groups, rows, numbers: splits.by_shares(
        rows, [numbers.uniform(0.7, 1.3) for _ in range(groups)]
    ),
}


def split(how: str, groups: int, rows: int, seed: int = 0) -> tuple[int, ...]:
    """Rows of each group, the same for the same arguments."""
    return tuple(SPLITS[how](groups, rows, random.Random(seed)))


def both(model: str, kind: str, group_rows: tuple[int, ...], hidden: int, width: int) -> dict[str, RaggedShape]:
    """A layer's two products: gate and up side by side, then down from their product, `width` deep."""
    return {
        f"{model} gate-up": RaggedShape(kind, group_rows, 2 * width, hidden),
        f"{model} down": RaggedShape(kind, group_rows, hidden, width),
    }


FEW = tuple(random.Random(0).choices(range(1, 9), k=16))
ROUTED_8, ROUTED_128 = split("within 30 %", 8, 32768), split("multinomial", 128, 32768)

MOE: dict[str, RaggedShape] = {
    **both("DeepSeek-V3", "large", ROUTED_8, 7168, 2048),
    **both("Mixtral", "large", split("within 30 %", 8, 16384), 4096, 14336),
    "Llama-4": RaggedShape("large", split("uniform", 16, 131072), 8192, 5120),
    **both("Qwen3-30B", "ragged", ROUTED_128, 2048, 768),
    **both("Qwen3-235B", "ragged", ROUTED_128, 4096, 1536),
    **both("DeepSeek-V2-Lite", "ragged", split("multinomial", 64, 32768), 2048, 1408),
    **both("gpt-oss-120b", "ragged", split("zipf", 128, 16384), 2880, 2880),
    "Qwen3-30B decode": RaggedShape("decode", split("multinomial", 128, 512), 1536, 2048),
    "DeepSeek-V3 decode": RaggedShape("decode", split("within 30 %", 32, 640), 4096, 7168),
    "Mixtral decode": RaggedShape("decode", split("multinomial", 8, 32), 28672, 4096),
    "Qwen3.5-397B decode": RaggedShape("decode", FEW, 2048, 4096),
    "one row an expert": RaggedShape("decode", (1,) * 128, 1536, 2048),
    "DeepSeek-V3 gate-up e4m3": RaggedShape("fp8", ROUTED_8, 4096, 7168, "e4m3"),
    "Qwen3-30B gate-up e4m3": RaggedShape("fp8", ROUTED_128, 1536, 2048, "e4m3"),
}
