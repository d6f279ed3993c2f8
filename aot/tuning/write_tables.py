"""From measurements and costs to the tables of a GPU: its own rows are renewed, and nobody else's."""

from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path

from ..spec.gpus import FACTS, Gpu, folder_name, measured_gpus, read_gpu
from ..spec.kernels import SIXTEEN_BIT
from ..spec.tables import (
    cost_path,
    layer_of,
    layers_path,
    read_table,
    shape_key,
    shape_rows,
    shapes_path,
    write_table,
)
from ..spec.tables import (
    layer_rows as rows_of_layers,
)
from ..spec.variants import TABLES, table_path, table_rows
from . import layer_rows, list_rows
from .fits import Fits, Measured, compiled_dtypes, compiled_keys, families_of, keys_of_config
from .measurement import CostKey, by_product

ROWS_OF_LAYERS = ("layers", "fused")  # families that may give layers rows


def folder_of(gpu: Gpu, tables: Path) -> Path:
    """The folder of a GPU's tables: the one that it has, else a new one, with its size where the name is taken."""
    for folder, known in measured_gpus(tables).items():
        if (known.gpu, known.sm, known.multiprocessors) == (gpu.gpu, gpu.sm, gpu.multiprocessors):
            return folder
    name = folder_name(gpu.gpu)
    return tables / (f"{name}_{gpu.multiprocessors}" if (tables / name).exists() else name)


def write_tables(
    gpu: Gpu,
    found: Measured,
    fits: Fits,
    about: dict[str, dict],
    tables: Path,
    dropped: Set[CostKey] = frozenset(),
    configs: Mapping[Path, dict] | None = None,
) -> Path:
    """All tables, or none: what can fail comes before the first is written. Returns the folder.

    `about`: of each family that was measured, on which GPU, by which driver and when. `dropped`: configs that are not
    to be compiled any more. `configs`: the tables of what is compiled that have changed, without them.
    """
    folder = folder_of(gpu, tables)
    written = dict(configs or {}) | _cost_tables(folder, gpu, fits, about)
    if found.lists:
        rows = _shapes(folder, gpu, found, fits, dropped)
        written[shapes_path(folder)] = _table(shapes_path(folder), "shapes", rows, {"lists": about["lists"]})
    if found.layers or found.fused:
        rows = _layers(folder, gpu, found, fits, dropped)
        origin = {name: about[name] for name in ROWS_OF_LAYERS if name in about}
        written[layers_path(folder)] = _table(layers_path(folder), "layers", rows, origin)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / FACTS).exists():
        (folder / FACTS).write_text(gpu.text())
    for path, table in written.items():
        write_table(path, table)
    return folder


def _table(path: Path, key: str, rows: list[dict], about: dict[str, dict]) -> dict:
    """Where the rows come from: of those that stay from an earlier table too."""
    earlier = (read_table(path)["measured"] or {}) if path.exists() else {}
    stay = {name: told for name, told in earlier.items() if name not in about}
    stay |= {f"{name}, earlier": told for name, told in earlier.items() if name in about and told != about[name]}
    return {"measured": stay | about, key: rows}


def _cost_tables(folder: Path, gpu: Gpu, fits: Fits, about: dict[str, dict]) -> dict[Path, dict]:
    """None where nothing was measured that a model could be fitted to."""
    dtypes = compiled_dtypes(gpu.kernels_sm)
    kernels: dict[str, list[dict]] = defaultdict(list)
    for key in fits.figures if fits.fitted else ():
        kernels[key.kernel].append(_cost_row(key, dtypes[key], fits))
    tables = {}
    for kernel, rows in kernels.items():
        path = cost_path(folder, kernel)
        origin = {name: about[name] for name in families_of(kernel) if name in about}
        tables[path] = _table(path, "costs", rows, origin)
    return tables


def _cost_row(key: CostKey, dtypes: tuple[str, ...], fits: Fits) -> dict:
    of_inputs = {} if dtypes == SIXTEEN_BIT else {"dtypes": list(dtypes)}
    outs = {"": (), "fp32": ("fp32",), "bf16": SIXTEEN_BIT if dtypes == SIXTEEN_BIT else ("bf16",)}[key.out]
    of_outputs = {"outs": list(outs)} if outs else {}
    row = {"alignment": key.alignment, **of_inputs, **of_outputs, "config": str(key.config)} | fits.figures[key]
    if estimate := fits.estimated.get(key):
        row |= {"like": estimate.like.name, "factor": float(f"{estimate.factor:.4g}")}
    return row


def _shapes(folder: Path, gpu: Gpu, found: Measured, fits: Fits, dropped: Set[CostKey]) -> list[dict]:
    """New rows for what was measured, and the old ones of other lists."""
    new = {
        (product.layout, shape_key((m, n, k, count) for m, n, k, count in product.groups))
        for product in by_product(found.lists)
    }
    old = [row for row in shape_rows(folder, gpu.gpu) if (row["layout"], shape_key(row["groups"])) not in new]
    return _compiled(old, gpu, dropped) + list_rows.exact_rows(list(found.lists), fits.lists)


def _layers(folder: Path, gpu: Gpu, found: Measured, fits: Fits, dropped: Set[CostKey]) -> list[dict]:
    measured = (*found.layers, *found.fused)
    new = {layer_of(layer_rows.facts_of(product)) for product in by_product(measured)}
    old = [row for row in rows_of_layers(folder, gpu.gpu) if layer_of(row) not in new]
    return _compiled(old, gpu, dropped) + layer_rows.exact_rows(measured, fits.grouped)


def _compiled(rows: list[dict], gpu: Gpu, dropped: Set[CostKey]) -> list[dict]:
    """Those whose config is still there."""
    left = {(key.kernel, key.fp8, str(key.config)) for key in compiled_keys(gpu.kernels_sm) if key not in dropped}
    return [row for row in rows if (row["kernel"], row["dtype"] == "e4m3", row["config"]) in left]


def without_configs(dropped: Set[CostKey], gpu: Gpu, tables: Path) -> tuple[set[CostKey], dict[Path, dict]]:
    """What may be left out of what is compiled, and the tables without it. Configs that another GPU has a row for
    stay."""
    wanted = {
        (row["kernel"], row["config"])
        for folder, other in measured_gpus(tables).items()
        if (other.gpu, other.multiprocessors) != (gpu.gpu, gpu.multiprocessors)
        for row in (*shape_rows(folder, other.gpu), *rows_of_layers(folder, other.gpu))
    }
    dropped = {key for key in dropped if (key.kernel, str(key.config)) not in wanted}
    left_out: set[CostKey] = set()
    written = {}
    for kernel in sorted({key.kernel for key in dropped}):
        path = table_path(kernel, gpu.kernels_sm)
        rows, left = table_rows(kernel, gpu.kernels_sm), []
        for row in rows:
            keys = set(keys_of_config(kernel, row))
            if keys <= dropped:  # else one of its dtypes or outputs is still wanted
                left_out |= keys
            else:
                left.append(row)
        written[tables / path.relative_to(TABLES)] = {"configs": left}
    return left_out, written


def known_gpu(gpu: Gpu, tables: Path) -> Gpu:
    """As its folder has it, where it has one: that may say that it is a reference."""
    folder = folder_of(gpu, tables)
    return read_gpu(folder) if (folder / FACTS).exists() else gpu
