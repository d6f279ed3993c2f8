"""`python -m aot tune`: measures the embedded kernels on a GPU and writes what selection needs to aot/tables."""

import datetime
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from . import sweep_ragged
from .cost_model import Cost, fit, longest_path
from .ragged_model import RaggedCost, expected_work, fit_ragged
from .sweep import Measurement, lists, sweep
from .sweep_ragged import RaggedMeasurement
from .tables import shapes_path, write_table
from .variants import KERNELS, TABLES, config_of, dtypes_of, table_rows

WORTH_A_CONFIG = 0.01  # loss somewhere from which a config is kept
WORTH_A_ROW = 0.01  # loss of the model's choice from which a measured list gets a row of its own
MEASUREMENTS = Path("build/tune")
PATH = click.Path(path_type=Path)

Key = tuple[str, int, object]  # kernel, alignment, config
RaggedKey = tuple[bool, str, object]  # whether fp8, kernel, config
List = tuple[str, tuple]  # layout, shapes


def key_of(measurement: Measurement) -> Key:
    return measurement.kernel, measurement.alignment, measurement.config


def fit_all(measurements: list[Measurement]) -> dict[Key, Cost]:
    observations = defaultdict(list)
    for m in measurements:
        observations[key_of(m)].append((*longest_path(m.shapes, m.config, m.slots), m.us))
    return {key: fit(rows) for key, rows in observations.items() if len(rows) >= 3}


def ragged_key(measurement: RaggedMeasurement) -> RaggedKey:
    return measurement.dtype == "e4m3", measurement.kernel, measurement.config


def fit_all_ragged(measurements: list[RaggedMeasurement]) -> dict[RaggedKey, RaggedCost]:
    observations, best = defaultdict(list), {}
    for m in measurements:
        observations[ragged_key(m)].append(m)
        best[m.shape] = min(m.us, best.get(m.shape, m.us))
    return {
        key: fit_ragged(rows, [best[m.shape] for m in rows]) for key, rows in observations.items() if len(rows) >= 5
    }


def by_list(measurements: list[Measurement]) -> dict[List, list[Measurement]]:
    grouped = defaultdict(list)
    for m in measurements:
        grouped[m.layout, m.shapes].append(m)
    return dict(grouped)


def chosen(candidates: list[Measurement], costs: dict[Key, Cost]) -> Measurement:
    """What the model takes: the least predicted time."""
    return min(
        (m for m in candidates if key_of(m) in costs),
        key=lambda m: costs[key_of(m)].us(*longest_path(m.shapes, m.config, m.slots)),
    )


def dispensable(times: list[list], keys: Callable) -> set:
    """Configs without which the best of the rest loses at most WORTH_A_CONFIG anywhere, the rarest winners first.

    `times`: the measurements of each product. A kernel keeps one config at the least.
    """
    left, wins = {keys(m) for product in times for m in product}, defaultdict(int)
    for product in times:
        wins[keys(min(product, key=lambda m: m.us))] += 1
    for key in sorted(left, key=lambda key: (wins[key], str(key))):
        rest = left - {key}
        losses = (
            min((m.us for m in product if keys(m) in rest), default=float("inf")) / min(m.us for m in product)
            for product in times
        )
        if max(losses) <= 1 + WORTH_A_CONFIG and any(other[:2] == key[:2] for other in rest):
            left = rest
    return {keys(m) for product in times for m in product} - left


def dispensable_lists(measurements: list[Measurement]) -> set[Key]:
    aligned = [[m for m in candidates if m.alignment == 16] for candidates in by_list(measurements).values()]
    return dispensable([candidates for candidates in aligned if candidates], key_of)


def dispensable_ragged(measurements: list[RaggedMeasurement]) -> set[Key]:
    products = defaultdict(list)
    for m in measurements:
        products[m.shape].append(m)
    return dispensable(list(products.values()), lambda m: (m.kernel, m.alignment, m.config))


def exact_rows(measurements: list[Measurement], costs: dict[Key, Cost]) -> list[dict]:
    """Rows for the lists on which the model's choice loses more than WORTH_A_ROW to the best."""
    rows = []
    for (layout, _), candidates in by_list(measurements).items():
        best = min((m for m in candidates if m.alignment == 16), key=lambda m: m.us)  # rows are of aligned kernels
        if chosen(candidates, costs).us > (1 + WORTH_A_ROW) * best.us:
            rows += [
                {
                    "dtype": dtype, "layout": layout, "groups": best.groups,
                    "kernel": best.kernel, "config": str(best.config), "us": round(best.us, 3),
                }
                for dtype in KERNELS[best.kernel].dtypes  # measured in fp16: bf16 has as many bits
            ]  # fmt: skip
    return rows


def config_rows(
    kernel: str, sm: int, costs: dict[Key, Cost], ragged: dict[RaggedKey, RaggedCost], dropped: set[Key]
) -> list[dict]:
    """The kernel's table with the fitted figures; a config that was not measured keeps what it has.

    fp8 is measured on ragged products with bf16 outputs: lists go through the same pipeline, and a tile that is written
    out in more slices takes about as long.
    """
    rows = []
    for row in table_rows(kernel, sm):
        config, fp8 = config_of(row), "e4m3" in dtypes_of(row)
        ragged_kernel = kernel if kernel.endswith("_ragged") else f"{kernel}_ragged"
        if fp8 or kernel == ragged_kernel:
            alike = (config, replace(config, slices=1))
            cost = next((ragged[fp8, ragged_kernel, c] for c in alike if (fp8, ragged_kernel, c) in ragged), None)
        else:
            cost = costs.get((kernel, row["alignment"], config))
        if (kernel, row["alignment"], config) not in dropped:
            rows.append(row | vars(cost) if cost else row)
    return rows


def write_tables(
    sm: int,
    about: dict,
    measurements: list[Measurement],
    ragged: list[RaggedMeasurement],
    folder: Path,
    prune: bool = False,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dropped = dispensable_lists(measurements) | dispensable_ragged(ragged) if prune else set()
    measurements = [m for m in measurements if key_of(m) not in dropped]
    costs, ragged_costs = fit_all(measurements), fit_all_ragged(ragged)
    measured = {key[0] for key in costs} | {key[1] for key in ragged_costs} | ({"hopper"} if ragged_costs else set())
    for kernel in KERNELS:
        if kernel in measured:
            table = {"measured": about, "configs": config_rows(kernel, sm, costs, ragged_costs, dropped)}
            write_table(folder / f"{kernel}_sm{sm}.json", table)
    if measurements:
        write_table(shapes_path(sm, folder), {"measured": about, "shapes": exact_rows(measurements, costs)})


def summary(measurements: list[Measurement]) -> str:
    """A line for each list: the best, the model's choice, its loss; then how often each config was the best."""
    costs, lines, wins = fit_all(measurements), [], defaultdict(int)
    for (layout, shapes), candidates in by_list(measurements).items():
        best, choice = min(candidates, key=lambda m: m.us), chosen(candidates, costs)
        wins[f"{best.kernel} {best.config}"] += 1
        name = f"{len(shapes)} x {max(shapes)}" if len(set(shapes)) == 1 else f"{len(shapes)} up to {max(shapes)}"
        lines.append(
            f"{name:28} {layout} best {best.us:9.2f} us {best.kernel} {best.config!s:22} "
            f"model {choice.kernel} {choice.config!s:22} loss {100 * (choice.us / best.us - 1):5.1f} %"
        )
    lines += [f"best on {count:3} lists: {config}" for config, count in sorted(wins.items(), key=lambda win: -win[1])]
    return "\n".join(lines)


def ragged_summary(measurements: list[RaggedMeasurement]) -> str:
    """What the model's choice by expectation loses, then how often each config was the best."""
    costs, shapes, wins, losses = fit_all_ragged(measurements), defaultdict(list), defaultdict(int), []
    for m in measurements:
        if ragged_key(m) in costs:
            shapes[m.shape].append(m)
    for candidates in shapes.values():
        best = min(candidates, key=lambda m: m.us)
        choice = min(candidates, key=lambda m: expected_work(m).us(costs[ragged_key(m)]))
        wins[f"{best.dtype} {best.kernel} {best.config}"] += 1
        losses.append((100 * (choice.us / best.us - 1), choice, best))
    lines = [f"{len(losses)} ragged products, mean loss {sum(loss for loss, *_ in losses) / max(1, len(losses)):.2f} %"]
    for loss, choice, best in sorted(losses, key=lambda entry: -entry[0])[:10]:
        lines.append(
            f"{best.dtype} {len(best.group_rows)} groups, {sum(best.group_rows)} rows ({best.split}), "
            f"N {best.columns}, K {best.depth}: model {choice.config!s}, best {best.config!s} {best.us:.1f} us, "
            f"loss {loss:.1f} %"
        )
    lines += [f"best on {count:3} products: {config}" for config, count in sorted(wins.items(), key=lambda w: -w[1])]
    return "\n".join(lines)


def described_gpu(sm: int) -> dict:
    """Where the figures come from; refuses a GPU that they would not be true of."""
    from benchmarks.report import driver  # before gg_runtime: it puts the installed package before the checkout

    import gg_runtime
    import torch

    if not torch.cuda.is_available():
        raise click.ClickException("tune needs a CUDA device, and torch sees none")
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor != sm:
        raise click.ClickException(f"this GPU is sm_{10 * major + minor}; tables for sm_{sm} are measured on sm_{sm}")
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "date": datetime.date.today().isoformat(),
        "gg_build_id": gg_runtime._C.build_id,
    }


@click.command("tune")
@click.option("--arch", "sm", type=int, default=90, show_default=True, help="Compute capability of this GPU.")
@click.option("--out", type=PATH, default=TABLES, help="Where the tables go.  [default: aot/tables]")
@click.option("--minutes", type=click.FloatRange(0.1), default=8.0, show_default=True, help="Half of them for lists.")
@click.option("--measurements", type=PATH, help="Where they are kept.  [default: build/tune]")
@click.option("--prune", is_flag=True, help="Leave out configs that nothing measured misses by more than 1 %.")
@click.option("--refit", is_flag=True, help="Measure nothing: write the tables from the kept measurements.")
def tune(sm: int, out: Path, minutes: float, measurements: Path | None, prune: bool, refit: bool) -> None:
    """Measures the installed wheel's kernels, fits the cost model and writes the tables. Rebuild to embed them."""
    kept = measurements or MEASUREMENTS / f"sm{sm}.json"
    if refit:
        if not kept.exists():
            raise click.ClickException(f"{kept} does not exist: run tune on a GPU first")
        data = json.loads(kept.read_text())
        about, found = data["measured"], [Measurement.from_json(row) for row in data["measurements"]]
        ragged = [RaggedMeasurement.from_json(row) for row in data.get("ragged", ())]
    else:
        about = described_gpu(sm)
        found = sweep(sm, 30 * minutes, lists(), click.echo)
        ragged = sweep_ragged.sweep(sm, 30 * minutes, sweep_ragged.products(), click.echo)
        kept.parent.mkdir(parents=True, exist_ok=True)
        rows = {"measurements": [m.to_json() for m in found], "ragged": [m.to_json() for m in ragged]}
        kept.write_text(json.dumps({"measured": about} | rows))
    if not (fit_all(found) or fit_all_ragged(ragged)):
        raise click.ClickException(
            f"{len(found) + len(ragged)} measurements are too few to fit a model: give it more --minutes, and a "
            "wheel that was built from these tables"
        )
    write_tables(sm, about, found, ragged, out, prune)
    click.echo(summary(found))
    click.echo(ragged_summary(ragged))
    click.echo(f"{len(found) + len(ragged)} measurements kept in {kept}, tables written to {out}")
