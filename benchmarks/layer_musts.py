"""What is asked of the layer, against a run's figures; and the table of them."""

from dataclasses import dataclass

from .layer_calls import ACTIVATED, COMBINE, DOWN, GATHERED, KEPT, LAYER, ROUTE, UP, VLLM
from .layer_shapes import LayerShape, layer_named
from .layer_torch import best_torch

ROUTE_US = {64 * 8: 6.0, 32768 * 8: 25.0}  # by slots
COMBINE_US = 4.0
HOST_US = 3.0  # beside the launches


@dataclass(frozen=True)
class Must:
    """`figure` at most `bound`, or at least where it is a speed-up."""

    name: str
    figure: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def __str__(self) -> str:
        digits = 1 if self.bound > 10 else 3 if self.bound < 2 else 2
        sign = "≥" if self.at_least else "≤"
        told = f"{self.name} {self.figure:.{digits}f} {sign} {self.bound:.{digits}f}"
        return told if self.met else f"{told} NO"


def copied_us(bytes_moved: float, ceilings: dict) -> float:
    return bytes_moved / ceilings["copy_gb_per_s"] / 1e3


def products(us: dict, shape: LayerShape, ceilings: dict) -> list[Must]:
    found = []
    if ACTIVATED in us:
        found.append(Must("up + act / up", us[ACTIVATED] / us[UP], 1.03))
    if GATHERED in us:
        bound = min(1.08, shape.quack or 1.08)
        found.append(Must("with gather / up", us[GATHERED] / us[UP], bound))
    if KEPT in us and GATHERED in us:
        allowed = 2 * copied_us(shape.preactivation_bytes, ceilings)
        found.append(Must("pre-act. kept, + µs", us[KEPT] - us[GATHERED], allowed))
    return found


def around(us: dict, shape: LayerShape, ceilings: dict) -> list[Must]:
    found = []
    if ROUTE in us and shape.rows in ROUTE_US:
        found.append(Must("route µs", us[ROUTE], ROUTE_US[shape.rows]))
    if COMBINE in us:
        allowed = max(COMBINE_US, 1.15 * copied_us(shape.combine_bytes, ceilings))
        found.append(Must("combine µs", us[COMBINE], allowed))
    return found


def whole(row: dict, shape: LayerShape, ceilings: dict) -> list[Must]:
    us, found = row["us"], []
    if LAYER not in us:
        return found
    if {UP, DOWN, ROUTE} <= us.keys():
        parts = us[UP] + us[DOWN] + copied_us(shape.combine_bytes, ceilings)
        found.append(Must("(layer − routing) / parts", (us[LAYER] - us[ROUTE]) / parts, 1.08))
    theirs = best_torch(us)
    if theirs:
        found.append(Must("× torch", us[theirs] / us[LAYER], shape.asked, at_least=True))
    if "host" in row:
        host = row["host"]
        found.append(Must("host µs", host["host_us"], HOST_US + host["empty_launches_us"]))
    return found


def musts(row: dict, ceilings: dict) -> list[Must]:
    """Those whose figures are there."""
    us = row.get("us", {})
    if not us:
        return []
    shape = layer_named(row["layer"])
    fused = products(us, shape, ceilings) if UP in us else []
    return [*fused, *around(us, shape, ceilings), *whole(row, shape, ceilings)]


TIMES = {
    "up": UP, "down": DOWN, "up+act": ACTIVATED, "+gather": GATHERED, "+kept": KEPT, "route": ROUTE, "combine": COMBINE,
    "layer": LAYER,
}  # fmt: skip


def table(rows: list[dict], ceilings: dict) -> str:
    """Microseconds, rested, under a graph; then each must with its figure and bound."""
    head = "".join(f" {name:>8}" for name in (*TIMES, "torch", "idx_add", "vLLM", "hot", "hot torch", "hot vLLM"))
    lines, asked = [f"{'layer':17}{head}"], []
    for row in rows:
        us, hot = row.get("us", {}), row.get("hot_us", {})
        theirs = best_torch(us)
        figures = [us.get(name) for name in TIMES.values()] + [us.get(theirs), us.get("torch index_add_"), us.get(VLLM)]
        figures += [hot.get(LAYER), hot.get(best_torch(hot) or ""), hot.get(VLLM)]
        lines.append(f"{row['layer']:17}" + "".join(f" {us:8.1f}" if us else f" {'-':>8}" for us in figures))
        asked.append(f"{row['layer']:17} " + " · ".join(map(str, musts(row, ceilings))))
        asked += [f"{'':17} {what} FAILED: {why}" for what, why in row["failed"].items()]
    all_musts = [must for row in rows for must in musts(row, ceilings)]
    met = sum(must.met for must in all_musts)
    return "\n".join([*lines, *asked, f"{met} of {len(all_musts)} musts met (NO: not), {ceilings_told(ceilings)}"])


def ceilings_told(ceilings: dict) -> str:
    return (
        f"copy {ceilings['copy_gb_per_s'] / 1e3:.2f} TB/s, dense bf16 {ceilings['dense_bf16_8192_tflops']:.0f} TFLOP/s"
    )
