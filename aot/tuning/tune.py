"""`python -m aot tune`: measures the embedded kernels on a GPU and writes what selection needs to aot/tables."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ..spec.gpus import UnknownGpuError, facts_of
from ..spec.tables import layers_path, shapes_path, write_table
from ..spec.variants import KERNELS, TABLES, config_of, dtypes_of, grouped_sibling, table_rows
from . import layer_rows, list_rows, ragged_model, sweep, sweep_layers, sweep_ragged
from .cost_model import Cost
from .layers import layers
from .list_rows import Key, fit_all, key_of
from .measurements import PARTS, Measurements
from .prune import dispensable_kernels
from .ragged_model import RaggedCost, RaggedKey, costs_in_tables, fit_all_ragged

MEASUREMENTS = Path("build/tune")
PATH = click.Path(path_type=Path)


@dataclass(frozen=True)
class Fits:
    """Costs that were fitted to measurements; `model` has, besides, those of ragged kernels that were not measured."""

    lists: dict[Key, Cost]
    ragged: dict[RaggedKey, RaggedCost]
    model: dict[RaggedKey, RaggedCost]

    @classmethod
    def of(cls, found: Measurements, sm: int) -> "Fits":
        # Layers alone are too much alike for a model.
        ragged = fit_all_ragged(found.ragged, found.layers) if found.ragged else {}
        return cls(fit_all(found.lists), ragged, costs_in_tables(sm) | ragged)


def config_rows(kernel: str, sm: int, fits: Fits, dropped: set[Key]) -> list[dict]:
    """The kernel's table with the fitted figures; a config that was not measured keeps what it has.

    fp8 is measured on ragged products with bf16 outputs: lists go through the same pipeline, and a tile that is written
    out in more slices takes about as long.
    """
    rows = []
    for row in table_rows(kernel, sm):
        config, fp8 = config_of(row), "e4m3" in dtypes_of(row)
        ragged_kernel = grouped_sibling(kernel)
        if fp8 or kernel == ragged_kernel:
            alike = ((fp8, ragged_kernel, same) for same in (config, replace(config, slices=1)))
            cost = next((fits.ragged[key] for key in alike if key in fits.ragged), None)
        else:
            cost = fits.lists.get((kernel, row["alignment"], config))
        if (kernel, row["alignment"], config) not in dropped:
            rows.append(row | vars(cost) if cost else row)
    return rows


def write_tables(sm: int, found: Measurements, fits: Fits, dropped: set[Key], folder: Path) -> None:
    """All of them, or none: what can fail comes before the first is written."""
    tables = {}

    def add(path: Path, parts: Iterable[str], **rows: list[dict]) -> None:
        tables[path] = {"measured": {part: found.measured[part] for part in parts}} | rows

    kernels = {  # by the part that their figures are fitted to
        "lists": {kernel for kernel, *_ in fits.lists},
        "ragged": {kernel for _, kernel, _ in fits.ragged}
        | {kernel for kernel in KERNELS for fp8, ragged, _ in fits.ragged if fp8 and ragged == grouped_sibling(kernel)},
        "layers": {m.kernel for m in found.layers} if fits.ragged else set(),
    }
    for kernel in KERNELS:
        if parts := [part for part, fitted in kernels.items() if kernel in fitted]:
            add(folder / f"{kernel}_sm{sm}.json", parts, configs=config_rows(kernel, sm, fits, dropped))
    if found.lists:
        add(shapes_path(sm, folder), ["lists"], shapes=list_rows.exact_rows(found.lists, fits.lists))
    if found.layers:
        add(layers_path(sm, folder), ["layers"], layers=layer_rows.exact_rows(found.layers, fits.model))
    folder.mkdir(parents=True, exist_ok=True)
    for path, table in tables.items():
        write_table(path, table)


def described_gpu(sm: int) -> dict:
    """Where the figures come from; refuses a GPU that they would not be true of."""
    import torch

    import gg_runtime
    from benchmarks.report import driver  # before gg_runtime: it puts the installed package before the checkout

    if not torch.cuda.is_available():
        raise click.ClickException("tune needs a CUDA device, and torch sees none")
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor != sm:
        raise click.ClickException(f"this GPU is sm_{10 * major + minor}; tables for sm_{sm} are measured on sm_{sm}")
    name, found = torch.cuda.get_device_name(), gg_runtime._C.device(torch.cuda.current_device())
    try:
        known = facts_of(name)
    except UnknownGpuError as error:
        raise click.ClickException(str(error)) from error
    if found["multiprocessors"] != known["multiprocessors"]:
        raise click.ClickException(
            f"this {name} has {found['multiprocessors']} multiprocessors, a whole one has {known['multiprocessors']}: "
            "tables are measured on a whole GPU"
        )
    return {
        "gpu": name,
        "driver": driver(),
        "date": datetime.date.today().isoformat(),
        "gg_build_id": gg_runtime._C.build_id,
    }


def measure(sm: int, seconds: float, parts: tuple[str, ...]) -> dict[str, list]:
    """The measurements of each part, all given the same time."""
    share = seconds / len(parts)
    sweeps = {
        "lists": lambda: sweep.sweep(sm, share, sweep.lists(), click.echo),
        "ragged": lambda: sweep_ragged.sweep(sm, share, sweep_ragged.products(), click.echo),
        "layers": lambda: sweep_layers.sweep(sm, share, layers(), click.echo),
    }
    return {part: sweeps[part]() for part in parts}


@click.command("tune")
@click.option("--arch", "sm", type=int, default=90, show_default=True, help="Compute capability of this GPU.")
@click.option("--out", type=PATH, default=TABLES, help="Where the tables go.  [default: aot/tables]")
@click.option(
    "--minutes",
    type=click.FloatRange(0.1),
    default=12.0,
    show_default=True,
    help="A third each for lists, for ragged products and for MoE layers; --only shares it among fewer.",
)
@click.option(
    "--only",
    "parts",
    type=click.Choice(PARTS),
    multiple=True,
    default=PARTS,
    help="Measures this anew and keeps what else was measured; repeatable.",
)
@click.option("--measurements", type=PATH, help="Where they are kept.  [default: build/tune]")
@click.option("--prune", is_flag=True, help="Leave out configs that nothing measured misses by more than 1 %.")
@click.option("--refit", is_flag=True, help="Measure nothing: write the tables from the kept measurements.")
def tune(
    sm: int, out: Path, minutes: float, parts: tuple[str, ...], measurements: Path | None, prune: bool, refit: bool
) -> None:
    """Measures the installed wheel's kernels, fits the cost model and writes the tables. Rebuild to embed them."""
    kept = measurements or MEASUREMENTS / f"sm{sm}.json"
    if refit and not kept.exists():
        raise click.ClickException(f"{kept} does not exist: run tune on a GPU first")
    everything = Measurements.read(kept) if kept.exists() else Measurements()
    if not refit:
        about = described_gpu(sm)
        everything = everything.renewed(about, measure(sm, 60 * minutes, parts))
        everything.write(kept)
    dropped = dispensable_kernels(everything) if prune else set()
    found = everything.only(lambda m: key_of(m) not in dropped)
    fits = Fits.of(found, sm)
    if not (fits.lists or fits.ragged or found.layers):
        raise click.ClickException(
            f"{everything.count()} measurements are too few to fit a model: give it more --minutes, and a wheel that "
            "was built from these tables"
        )
    write_tables(sm, found, fits, dropped, out)
    click.echo(list_rows.summary(found.lists, fits.lists))
    click.echo(ragged_model.summary(found.ragged, fits.ragged))
    click.echo(layer_rows.summary(found.layers, fits.model))
    click.echo(f"{everything.count()} measurements kept in {kept}, tables written to {out}")
