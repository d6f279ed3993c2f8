"""`python -m aot tune`: measures the embedded kernels on a GPU and writes what selection needs to aot/tables."""

import datetime
import json
from collections import defaultdict
from pathlib import Path

import click

from .cost_model import Cost, fit, longest_path
from .sweep import Measurement, lists, sweep
from .tables import shapes_path, write_table
from .variants import KERNELS, TABLES, config_of, table_rows

WORTH_A_ROW = 0.01  # loss of the model's choice from which a measured list gets a row of its own
MEASUREMENTS = Path("build/tune")
PATH = click.Path(path_type=Path)

Key = tuple[str, int, object]  # kernel, alignment, config
List = tuple[str, tuple]  # layout, shapes


def key_of(measurement: Measurement) -> Key:
    return measurement.kernel, measurement.alignment, measurement.config


def fit_all(measurements: list[Measurement]) -> dict[Key, Cost]:
    observations = defaultdict(list)
    for m in measurements:
        observations[key_of(m)].append((*longest_path(m.shapes, m.config, m.slots), m.us))
    return {key: fit(rows) for key, rows in observations.items() if len(rows) >= 3}


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
                for dtype in KERNELS[best.kernel].dtypes  # measured in fp16: bf16 has the same bits to move and multiply
            ]  # fmt: skip
    return rows


def config_rows(kernel: str, sm: int, costs: dict[Key, Cost]) -> list[dict]:
    """The kernel's table with the fitted figures; a config that was not measured keeps what it has."""
    rows = []
    for row in table_rows(kernel, sm):
        cost = costs.get((kernel, row["alignment"], config_of(row)))
        rows.append(row | vars(cost) if cost else row)
    return rows


def write_tables(sm: int, about: dict, measurements: list[Measurement], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    costs = fit_all(measurements)
    for kernel in KERNELS:
        if any(key[0] == kernel for key in costs):
            table = {"measured": about, "configs": config_rows(kernel, sm, costs)}
            write_table(folder / f"{kernel}_sm{sm}.json", table)
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
@click.option("--minutes", type=click.FloatRange(0.1), default=8.0, show_default=True, help="For measuring.")
@click.option("--measurements", type=PATH, help="Where they are kept.  [default: build/tune]")
@click.option("--refit", is_flag=True, help="Measure nothing: write the tables from the kept measurements.")
def tune(sm: int, out: Path, minutes: float, measurements: Path | None, refit: bool) -> None:
    """Measures the installed wheel's kernels, fits the cost model and writes the tables. Rebuild to embed them."""
    kept = measurements or MEASUREMENTS / f"sm{sm}.json"
    if refit:
        if not kept.exists():
            raise click.ClickException(f"{kept} does not exist: run tune on a GPU first")
        data = json.loads(kept.read_text())
        about, found = data["measured"], [Measurement.from_json(row) for row in data["measurements"]]
    else:
        about = described_gpu(sm)
        found = sweep(sm, 60 * minutes, lists(), click.echo)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"measured": about, "measurements": [m.to_json() for m in found]}))
    if not fit_all(found):
        raise click.ClickException(f"{len(found)} measurements are too few to fit a model: give it more "
            f"--minutes, and a wheel that was built from these tables")
    write_tables(sm, about, found, out)
    click.echo(summary(found))
    click.echo(f"{len(found)} measurements kept in {kept}, tables written to {out}")
