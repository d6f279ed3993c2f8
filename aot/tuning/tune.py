"""`python -m aot tune`: measures the embedded kernels on a GPU and writes what selection needs to aot/tables.

One call measures one family of kernels for some minutes. Each measurement is kept at once, and the next call goes on
where this one stopped.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from ..spec.gpus import Gpu, folder_name
from ..spec.tables import UnknownGpuError
from ..spec.variants import TABLES, variants
from . import layer_rows, list_rows, ragged_model
from .family import Family, Pass
from .fits import Fits, Measured
from .fused import Fused
from .gradients import Gradients
from .grouped import of_layers, ragged
from .layers import LayerFileError, layers, read_layers
from .lists import Lists
from .measurement import CostKey, GradientProduct, GroupedProduct, ListProduct, Measurement, ProductT, key_of
from .prune import dispensable_kernels
from .scaled import Scaled
from .store import Run, Store, Time
from .this_gpu import cubins, this_run
from .write_tables import folder_of, known_gpu, without_configs, write_tables

MEASUREMENTS = Path("build/tune")
PATH = click.Path(path_type=Path)
FAMILIES = ("lists", "ragged", "layers", "fused", "scaled", "gradients")


def families(only: str | None, layer_file: Path | None) -> list[Family[Any]]:
    """In the order in which they are measured."""
    if only and layer_file:
        raise click.UsageError("--layers measures these layers alone: --only says nothing beside it")
    if layer_file:
        return [of_layers(read_layers(layer_file))]
    found = [Lists(), ragged(), of_layers(layers()), Fused(), Scaled(), Gradients()]
    return [family for family in found if only in (family.name, None)]


def measure(run: Run, store: Store, minutes: float, wanted: list[Family[Any]]) -> None:
    """The first family of which something is left; says what is left then."""
    store.start(run)
    passes = [Pass(family, run, store, cubins()) for family in wanted]
    open_pass = next((one for one in passes if one.left().left), None)
    if open_pass:
        click.echo(f"measuring {open_pass.family.name} on {run.gpu.gpu}: {open_pass.left()}")
        open_pass.measure(60 * minutes, click.echo)
    for one in passes:
        click.echo(f"{one.family.name}: {one.left()}")
    if any(one.left().left for one in passes):
        click.echo("run the same command again: it goes on from here")


def measurements_of(gpu: Gpu, times: list[Time], known: dict[str, str]) -> tuple[Measured, dict[str, dict]]:
    """The newest of each product and kernel, on this GPU and of the installed wheel's machine code; and of each family
    where it comes from."""
    compiled = {variant.name: key_of(variant) for variant in variants([gpu.kernels_sm])}
    found: dict[str, dict] = {name: {} for name in FAMILIES}
    about = {}
    for one in times:
        if not one.run.is_on(gpu) or known.get(one.variant) != one.cubin or one.variant not in compiled:
            continue
        about[one.family] = one.run.about
        found[one.family][one.product, one.variant] = one
    return Measured(
        lists=tuple(_measurements(found["lists"].values(), compiled, ListProduct.from_json)),
        ragged=tuple(_measurements(found["ragged"].values(), compiled, GroupedProduct.from_json)),
        layers=tuple(_measurements(found["layers"].values(), compiled, GroupedProduct.from_json)),
        fused=tuple(_measurements(found["fused"].values(), compiled, GroupedProduct.from_json)),
        scaled=tuple(_measurements(found["scaled"].values(), compiled, GroupedProduct.from_json)),
        gradients=tuple(_measurements(found["gradients"].values(), compiled, GradientProduct.from_json)),
    ), about


def _measurements(
    times: Iterable[Time], compiled: dict[str, CostKey], from_json: Callable[[list], ProductT]
) -> Iterator[Measurement[ProductT]]:
    product = functools.cache(lambda text: from_json(json.loads(text)))
    for one in times:
        if one.us is not None:
            yield Measurement(product(one.product), compiled[one.variant], one.slots, one.us)


def gpu_of(store: Store) -> Gpu:
    """That of all measurements of a file."""
    found = {(one.run.gpu.gpu, one.run.gpu.multiprocessors): one.run.gpu for one in store.times()}
    if len(found) != 1:
        raise click.ClickException(f"{store.path} has measurements of {len(found)} GPUs: run tune on the one to fit")
    return next(iter(found.values()))


def kept_file() -> Path:
    """The only file of measurements."""
    found = sorted(MEASUREMENTS.glob("*.jsonl"))
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        raise click.ClickException(f"say which measurements to fit: --measurements FILE; in {MEASUREMENTS}: {names}")
    return found[0]


def fit_and_write(gpu: Gpu, store: Store, prune: bool, out: Path) -> None:
    found, about = measurements_of(gpu, list(store.times()), cubins())
    gpu = known_gpu(gpu, out)
    dispensable = dispensable_kernels(list(found.all)) if prune else set()
    dropped, configs = without_configs(dispensable, gpu, out)
    found = found.without(dropped)
    fits = Fits.of(found, gpu, folder_of(gpu, out), dropped)
    if not fits.fitted and not found.layers:
        click.echo(
            f"{len(found.all)} measurements of the installed wheel's kernels are too few to fit a model, and no table "
            "is written yet: run tune again; those of other machine code do not count"
        )
        return
    folder = write_tables(gpu, found, fits, about, out, dropped, configs)
    click.echo(list_rows.summary(list(found.lists), fits.lists))
    click.echo(ragged_model.summary(found.ragged, fits.grouped))
    click.echo(layer_rows.summary(found.layers, fits.grouped))
    if found.fused:
        click.echo(f"fused: {layer_rows.summary(found.fused, fits.grouped)}")
    if found.scaled:
        click.echo(f"scaled: {ragged_model.summary(found.scaled, fits.grouped)}")
    if found.gradients:
        click.echo(f"gradients: {ragged_model.summary(found.gradients, fits.grouped)}")
    click.echo(f"{len(found.all)} measurements kept in {store.path}, tables written to {folder}")
    click.echo("next: make build, whose wheel has them")


@click.command("tune")
@click.option("--minutes", type=click.FloatRange(0.1), default=8.0, show_default=True, help="At most so long.")
@click.option("--only", type=click.Choice(FAMILIES), help="Measure this family; else the first with something left.")
@click.option(
    "--layers",
    "layer_file",
    type=PATH,
    help='Measure these MoE layers instead: a list of {"experts", "n", "k"} with "rows" if wanted, or config.json of a '
    "model on Hugging Face.",
)
@click.option("--out", type=PATH, default=TABLES, help="Where the tables go.  [default: aot/tables]")
@click.option("--measurements", type=PATH, help="Where they are kept.  [default: build/tune/GPU.jsonl]")
@click.option("--prune", is_flag=True, help="Leave out configs that nothing measured misses by more than 1 %.")
@click.option("--refit", is_flag=True, help="Measure nothing: write the tables from the kept measurements.")
def tune(
    minutes: float,
    only: str | None,
    layer_file: Path | None,
    out: Path,
    measurements: Path | None,
    prune: bool,
    refit: bool,
) -> None:
    """Measures the installed wheel's kernels, fits the cost model and writes this GPU's tables. Rebuild to embed them.

    Stops after some minutes; the next call goes on.
    """
    try:
        if refit:
            if only or layer_file:
                raise click.UsageError("--refit measures nothing: leave --only and --layers out")
            store = Store(measurements or kept_file())
            if not store.path.exists():
                raise click.ClickException(f"{store.path} does not exist: run tune on a GPU first")
            gpu = gpu_of(store)
        else:
            wanted = families(only, layer_file)  # what is wrong in the file shows before the GPU is asked
            run = this_run()
            gpu, store = run.gpu, Store(measurements or MEASUREMENTS / f"{folder_name(run.gpu.gpu)}.jsonl")
            measure(run, store, minutes, wanted)
        fit_and_write(gpu, store, prune, out)
    except (UnknownGpuError, LayerFileError) as error:
        raise click.ClickException(str(error)) from error
