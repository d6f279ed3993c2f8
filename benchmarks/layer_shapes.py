"""Whole layers of experts that are timed, name -> LayerShape, and what is asked of each."""

from dataclasses import dataclass, replace

ELEMENT = 2  # bytes of bfloat16


@dataclass(frozen=True)
class LayerShape:
    """`tokens` choose `top_k` of `experts` each. Weights lie as [E, 2 I, H] and [E, H, I], `transposed` the other way.

    `asked`: how many times faster than the best compiled torch layer. `quack`: the fused up product of quack 0.4.1,
    over our plain one, on an H200.
    """

    experts: int
    tokens: int
    top_k: int
    hidden: int
    intermediate: int
    asked: float
    quack: float | None = None
    activation: str = "swiglu"
    gate_up: str = "gate_first"
    biased: bool = False
    transposed: bool = False

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k

    @property
    def up_flop(self) -> int:
        return 4 * self.rows * self.hidden * self.intermediate

    @property
    def down_flop(self) -> int:
        return self.up_flop // 2

    @property
    def flop(self) -> int:
        return self.up_flop + self.down_flop

    @property
    def combine_bytes(self) -> int:
        return ELEMENT * self.hidden * (self.rows + self.tokens)

    @property
    def preactivation_bytes(self) -> int:
        return ELEMENT * 2 * self.intermediate * self.rows

    def up_bytes(self, used: int, gathered: bool) -> int:
        """x or the rows gathered from it, the weights of `used` experts, the activation's output."""
        weights = 2 * used * self.hidden * self.intermediate
        return ELEMENT * (
            self.hidden * (self.rows if gathered else self.tokens) + weights + self.rows * self.intermediate
        )

    def down_bytes(self, used: int) -> int:
        weights = used * self.hidden * self.intermediate
        return ELEMENT * (self.rows * (self.intermediate + self.hidden) + weights)

    def bytes(self, used: int) -> int:
        """What a layer without a gathered copy of x moves at the least."""
        return self.up_bytes(used, gathered=False) + self.down_bytes(used) + self.combine_bytes


LAYERS = {
    "Qwen3-30B": LayerShape(128, 4096, 8, 2048, 768, asked=1.5, quack=1.40),
    "7B": LayerShape(128, 24576, 8, 1536, 256, asked=2.0, quack=1.11),
    "30B": LayerShape(128, 32768, 8, 4096, 512, asked=1.45, quack=1.069),
    "120B": LayerShape(64, 32768, 4, 4096, 2048, asked=1.08, quack=1.092),
    "DeepSeek-V3": LayerShape(8, 16384, 2, 7168, 2048, asked=1.05, quack=1.043),
    "Qwen3-30B decode": LayerShape(128, 64, 8, 2048, 768, asked=1.3, quack=1.83),
    "Mixtral": LayerShape(8, 8192, 2, 4096, 14336, asked=1.04),
    "gpt-oss": LayerShape(
        128, 4096, 4, 2880, 2880, asked=1.3,
        activation="swiglu_oai", gate_up="interleaved", biased=True, transposed=True,
    ),
}  # fmt: skip


def layer_named(name: str) -> LayerShape:
    """A row, or ROW@TOKENS of another batch.

    Raises:
        ValueError: neither.
    """
    row, another, tokens = name.partition("@")
    if row not in LAYERS or (another and not tokens.isdecimal()):
        raise ValueError(f"{name} is no layer: there are {', '.join(LAYERS)}, and each as ROW@TOKENS")
    return replace(LAYERS[row], tokens=int(tokens), asked=1.0, quack=None) if tokens else LAYERS[row]
