"""What the cost model chooses for the measured lists, and which of them get rows of their own in the tables."""

from collections import defaultdict
from collections.abc import Iterable

from ..spec.variants import KERNELS, Config
from .cost_model import Cost, fit, longest_path
from .sweep import Measurement

WORTH_A_ROW = 0.01  # loss of the model's choice from which what was measured gets a row of its own

Key = tuple[str, int, Config]  # kernel, alignment, config
List = tuple[str, tuple]  # layout, shapes


def key_of(measurement) -> Key:
    return measurement.kernel, measurement.alignment, measurement.config


def fit_all(measurements: Iterable[Measurement]) -> dict[Key, Cost]:
    observations = defaultdict(list)
    for m in measurements:
        observations[key_of(m)].append((*longest_path(m.shapes, m.config, m.slots), m.us))
    return {key: fit(rows) for key, rows in observations.items() if len(rows) >= 3}


def by_list(measurements: Iterable[Measurement]) -> dict[List, list[Measurement]]:
    grouped = defaultdict(list)
    for m in measurements:
        grouped[m.layout, m.shapes].append(m)
    return dict(grouped)


def outcomes(
    measurements: Iterable[Measurement], costs: dict[Key, Cost]
) -> list[tuple[List, list[Measurement], Measurement]]:
    """Each list, its kernels, and what the model takes of those that it has costs of: the least predicted time."""
    found = []
    for key, candidates in by_list(measurements).items():
        if known := [m for m in candidates if key_of(m) in costs]:
            choice = min(known, key=lambda m: costs[key_of(m)].us(*longest_path(m.shapes, m.config, m.slots)))
            found.append((key, candidates, choice))
    return found


def exact_rows(measurements: list[Measurement], costs: dict[Key, Cost]) -> list[dict]:
    """Rows for the lists on which the model's choice loses more than WORTH_A_ROW to the best."""
    rows = []
    for (layout, _), candidates, choice in outcomes(measurements, costs):
        aligned = [m for m in candidates if m.alignment == 16]  # rows are of aligned kernels
        best = min(aligned, key=lambda m: m.us, default=choice)
        if choice.us > (1 + WORTH_A_ROW) * best.us:
            rows += [
                {
                    "dtype": dtype, "layout": layout, "groups": best.groups,
                    "kernel": best.kernel, "config": str(best.config), "us": round(best.us, 3),
                }
                for dtype in KERNELS[best.kernel].dtypes  # measured in fp16: bf16 has as many bits
            ]  # fmt: skip
    return rows


def summary(measurements: list[Measurement], costs: dict[Key, Cost]) -> str:
    """A line for each list: the best, the model's choice, its loss; then how often each config was the best."""
    lines, wins = [], defaultdict(int)
    for (layout, shapes), candidates, choice in outcomes(measurements, costs):
        best = min(candidates, key=lambda m: m.us)
        wins[f"{best.kernel} {best.config}"] += 1
        name = f"{len(shapes)} x {max(shapes)}" if len(set(shapes)) == 1 else f"{len(shapes)} up to {max(shapes)}"
        lines.append(
            f"{name:28} {layout} best {best.us:9.2f} us {best.kernel} {best.config!s:22} "
            f"model {choice.kernel} {choice.config!s:22} loss {100 * (choice.us / best.us - 1):5.1f} %"
        )
    lines += [f"best on {count:3} lists: {config}" for config, count in sorted(wins.items(), key=lambda win: -win[1])]
    return "\n".join(lines)
