"""Artifacts in, the generated folder out: launchers, kernel table, images and manifest, as a dict of file contents."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from string import Template

from ..build.artifact import Argument, Artifact, sha256
from ..spec.abi import ANY, DTYPES, FP8, LAYOUTS, SOURCES
from ..spec.gpus import Gpu, gpu_rows, measured_gpus, reference_gpu
from ..spec.kernels import KERNELS
from ..spec.tables import (
    COSTS,
    LAYER,
    PLAIN,
    cost_rows,
    layer_key,
    layer_rows,
    layers_path,
    shape_key,
    shape_rows,
    shapes_path,
    signed_key,
)
from ..spec.variants import TABLES, dtypes_of
from .abi_header import abi_header, enumerator

SUMS = "SHA256SUMS"  # of all other files, as `sha256sum --check` reads it
TEMPLATES = Path(__file__).with_name("templates")
C_TYPES = {"i64": "int64_t", "i32": "int32_t", "pointer": "CUdeviceptr"}
CONFIG = ("block_m", "block_n", "block_k", "stages", "raster", "consumers", "split", "slices", "cluster")


class EmitError(Exception):
    """Tables and artifacts do not agree."""


def generate(artifacts: list[Artifact], manifest: str, tables: Path = TABLES) -> dict[str, bytes]:
    """Relative path -> content. `artifacts` sorted by name; `manifest` is the text of manifest.json."""
    images = dict(_images(artifacts))
    declarations = "\n".join(_declaration(artifact) for artifact in artifacts)
    texts = {
        "abi.h": abi_header(),
        "launchers.h": _fill("launchers.h", declarations=declarations),
        "launchers.c": _fill("launchers.c", launchers="".join(_launcher(artifact) for artifact in artifacts)),
        "table.c": _table(artifacts, sha256(manifest.encode()), tables),
        "images.S": _fill("images.S", images="".join(_image(path, data) for path, data in images.items())),
        "manifest.json": manifest,
    }
    files = images | {name: text.encode() for name, text in texts.items()}
    return files | {SUMS: "".join(f"{sha256(data)}  {path}\n" for path, data in sorted(files.items())).encode()}


def _fill(template: str, **values: object) -> str:
    return Template((TEMPLATES / template).read_text()).substitute(values)


def _images(artifacts: list[Artifact]) -> Iterator[tuple[str, bytes]]:
    """(path, content), alike ones side by side: kernels of one config differ in few bytes, and what compresses a wheel
    looks 32 KB back. In the order of their names the wheel would be a tenth larger."""
    for kind in ("cubin", "ptx"):
        for artifact in sorted(artifacts, key=_likeness):
            if kind in artifact.images:
                yield _path(artifact, kind), artifact.images[kind]


def _likeness(artifact: Artifact) -> tuple:
    variant = artifact.variant
    return variant.kernel, variant.sm, str(variant.config), variant.alignment, variant.layout, variant.name


def _path(artifact: Artifact, kind: str) -> str:
    return f"images/{artifact.variant.name}.{kind}"


def _label(path: str) -> str:
    return "gg_image_" + path.removeprefix("images/").replace(".", "_")


def _image(path: str, data: bytes) -> str:
    alignment = 64 if path.endswith(".cubin") else 16
    return _fill("image.S", label=_label(path), path=path, bytes=len(data), alignment=alignment)


def _declaration(artifact: Artifact) -> str:
    return (
        f"CUresult gg_launch_{artifact.variant.name}(gg_cuLaunchKernelEx, CUfunction, unsigned, CUstream,\n"
        "    const gg_arguments *);"
    )


def _launcher(artifact: Artifact) -> str:
    attributes = _attributes(artifact)
    lines = [f"  CUlaunchAttribute attributes[{len(attributes)}] = {{"] + [f"      {{{one}}}," for one in attributes]
    return _fill(
        "launcher.c",
        name=artifact.variant.name,
        fields="\n".join(_field(argument) for argument in artifact.arguments),
        assertions="\n".join(_assertions(artifact)),
        assignments="\n".join(line for argument in artifact.arguments for line in _assignment(artifact, argument)),
        attributes="\n".join([*lines, "  };"]) if attributes else "",
        attrs="attributes" if attributes else "NULL",
        attribute_count=len(attributes),
        threads=artifact.threads,
        shared_bytes=artifact.shared_bytes,
    )


def _field(argument: Argument) -> str:
    if argument.name == "list_words":
        return f"  uint64_t list_words[{argument.count}];"
    return f"  {C_TYPES[argument.type]} {argument.name};"


def _assertions(artifact: Artifact) -> list[str]:
    """Where the cubin expects each argument; for a list of words, that they lie one behind the other."""
    name, lines, at = artifact.variant.name, [], 0
    for argument in artifact.arguments:
        own = artifact.parameters[at : at + argument.count]
        at += argument.count
        if any(later.offset - earlier.offset != argument.bytes for earlier, later in itertools.pairwise(own)):
            raise EmitError(f"{name}: the words of {argument.name} do not lie one behind the other: {own}")
        size = sum(parameter.size for parameter in own)
        lines.append(f'static_assert(offsetof({name}, {argument.name}) == {own[0].offset}, "{argument.name}");')
        lines.append(f'static_assert(sizeof((({name} *)0)->{argument.name}) == {size}, "{argument.name}");')
    return [*lines, f'static_assert(sizeof({name}) == {artifact.parameter_bytes}, "parameters");']


def _assignment(artifact: Artifact, argument: Argument) -> list[str]:
    if argument.name == "list_words":
        words = f"parameters.list_words + {artifact.word_skip}" if artifact.word_skip else "parameters.list_words"
        return [
            f"  if (arguments->list_word_count > {artifact.word_capacity}) return CUDA_ERROR_INVALID_VALUE;",
            "  if (arguments->list_words)",
            f"    memcpy({words}, arguments->list_words, 8 * (size_t)arguments->list_word_count);",
        ]
    if argument.name == "profile_scratch":
        return ["  parameters.profile_scratch = 0;"]
    lines = [f"  parameters.{argument.name} = ({C_TYPES[argument.type]})arguments->{argument.name};"]
    if argument.name == "global_scratch" and artifact.scratch_bytes:
        lines.insert(0, "  if (!arguments->global_scratch) return CUDA_ERROR_INVALID_VALUE;")
    return lines


def _attributes(artifact: Artifact) -> list[str]:
    found = []
    if artifact.programmatic_launch:
        found.append(
            ".id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, "
            ".value.programmaticStreamSerializationAllowed = arguments->overlaps"
        )
    return found


def _table(artifacts: list[Artifact], build_id: str, tables: Path) -> str:
    layouts = sorted({artifact.parameters for artifact in artifacts}, key=lambda layout: (len(layout), str(layout)))
    parameters = {layout: f"parameters_{index}" for index, layout in enumerate(layouts)}
    built = {artifact.variant.sm for artifact in artifacts}
    gpus = {folder: gpu for folder, gpu in measured_gpus(tables).items() if gpu.kernels_sm in built}
    references = {sm: reference_gpu(sm, tables) for sm in built}
    costs = _costs(gpus, references, artifacts)
    others = _other_costs(costs, references, artifacts)
    tuned = _tuned_rows(list(_measured_rows(artifacts, gpus)), artifacts, list(gpus.values()))
    labels = sorted(_label(_path(artifact, kind)) for artifact in artifacts for kind in artifact.images)
    order = {gpu: at for at, gpu in enumerate(gpus.values())}
    return _fill(
        "table.c",
        images="\n".join(f"extern const unsigned char {label}[];" for label in labels),
        parameters="\n".join(_parameters(name, layout) for layout, name in parameters.items()),
        artifacts="".join(
            _artifact(artifact, parameters[artifact.parameters], _figures(artifact, at, references, costs, order))
            for at, artifact in enumerate(artifacts)
        ).rstrip("\n"),
        artifact_count=len(artifacts),
        gpus="".join(f"{_gpu(gpu)}\n" for gpu in gpus.values()),
        gpu_count=len(gpus),
        costs="".join(f"{row}\n" for row in others),
        cost_count=len(others),
        tensor_rates="\n".join(_tensor_rate(row) for row in gpu_rows()),
        tensor_rate_count=len(gpu_rows()),
        rows="\n".join(tuned),
        row_count=len(tuned),
        build_id=build_id,
    )


def _parameters(name: str, layout: tuple) -> str:
    pairs = [f"{{{parameter.offset}, {parameter.size}}}," for parameter in layout]
    lines = ["    " + " ".join(pairs[start : start + 8]) for start in range(0, len(pairs), 8)]
    return "\n".join([f"static const gg_parameter {name}[] = {{", *lines, "};"])


def _gpu(gpu: Gpu) -> str:
    return (
        f"    {{.name = {json.dumps(gpu.gpu)}, .sm = {gpu.sm}, .multiprocessors = {gpu.multiprocessors},\n"
        f"     .clock_mhz = {float(gpu.clock_mhz)!r}, .memory_gb_s = {float(gpu.memory_gb_s)!r}, "
        f".tensor_tflop_s = {float(gpu.tensor_tflop_s)!r}}},"
    )


def _tensor_rate(row: dict) -> str:
    return f"    {{{json.dumps(row['name'])}, {row['multiprocessors']}, {float(row['tensor_tflop_s'])!r}}},"


def _artifact(artifact: Artifact, parameters: str, costs: dict[str, float]) -> str:
    variant = artifact.variant
    kernel, config = KERNELS[variant.kernel], variant.config
    facts = ("threads", "shared_bytes", "scratch_bytes", "scratch_alignment", "registers", "spill_bytes")
    return _fill(
        "artifact.c",
        name=variant.name,
        symbol=artifact.symbol,
        kernel=variant.kernel,
        form=enumerator(kernel.form),
        extents=enumerator(kernel.extents),
        addressing=enumerator(kernel.addressing),
        epilogue=enumerator(kernel.epilogue),
        source=enumerator(kernel.source, "SOURCE_"),
        scaling=enumerator(variant.scaling, "SCALING_"),
        dtype=_enumerator(variant.dtype, "DTYPE"),
        out_dtype=_enumerator(variant.out, "DTYPE"),
        layout=_enumerator(variant.layout, "LAYOUT"),
        sm=variant.sm,
        minimum_driver=artifact.minimum_driver,
        alignment=variant.alignment,
        cubin=_image_of(artifact, "cubin"),
        ptx=_image_of(artifact, "ptx"),
        parameters=parameters,
        parameter_count=len(artifact.parameters),
        word_capacity=artifact.word_capacity,
        row_step=kernel.row_step,
        listed_tiles=kernel.listed_tiles,
        **{name: getattr(config, name) for name in CONFIG},
        **{name: getattr(artifact, name) for name in facts},
        gpu=costs["gpu"],
        **{name: f"{costs[name]!r}f" for name in COSTS},
    )


def _enumerator(value: str, what: str) -> str:
    return f"GG_ANY_{what}" if value == ANY else enumerator(value)


def _image_of(artifact: Artifact, kind: str) -> str:
    if kind not in artifact.images:
        return "{NULL, 0, NULL}"
    data = artifact.images[kind]
    label = _label(f"images/{artifact.variant.name}.{kind}")
    return f'{{{label}, {len(data)},\n                "{sha256(data)}"}}'


Figures = dict[int, dict[str, float]]  # of the cost model, by the index of the artifact


def _costs(gpus: dict[Path, Gpu], references: dict[int, Gpu | None], artifacts: list[Artifact]) -> dict[Gpu, Figures]:
    """The figures on each GPU: its own, and those that a relative lends. What the reference measured of the artifact
    itself is scaled instead, as it says more than another kernel's figures."""
    found = {gpu: _own_and_lent(folder, gpu, artifacts) for folder, gpu in gpus.items()}
    costs = {}
    for gpu, (own, lent) in found.items():
        scaled = {at for other in references.values() if other and other != gpu for at in found[other][0]}
        costs[gpu] = {at: figures for at, figures in lent.items() if at not in scaled} | own
    return costs


def _own_and_lent(folder: Path, gpu: Gpu, artifacts: list[Artifact]) -> tuple[Figures, Figures]:
    rows = {
        (kernel, row["alignment"], dtype, row["config"], out): {name: float(row.get(name, 0.0)) for name in COSTS}
        for kernel in KERNELS
        for row in cost_rows(folder, kernel, gpu.gpu)
        for dtype in dtypes_of(row)
        for out in row.get("outs", [ANY])
    }
    alike = {(*key[:3], _tile(key[3])): figures for key, figures in rows.items() if key[4] == ANY}
    own, lent = {}, {}
    for at, artifact in enumerate(artifacts):
        variant = artifact.variant
        if variant.sm == gpu.kernels_sm:
            kernel = KERNELS[variant.kernel]
            dtype = "e4m3" if variant.dtype in FP8 else variant.dtype  # fp8 was measured in e4m3
            named = (variant.kernel, variant.alignment, dtype, str(variant.config))
            if figures := rows.get((*named, variant.out)) or rows.get((*named, ANY)):
                own[at] = figures
            if figures := alike.get((kernel.like, variant.alignment, dtype, _tile(str(variant.config)))):
                lent[at] = figures
    return own, lent


def _tile(config: str) -> tuple[str, str]:
    """What two configs have in common where one's figures may stand in for the other's: the tile, and how many consumer
    groups there are."""
    return config.split("_")[0], "c2" if "c2" in config else ""


def _figures(artifact: Artifact, at: int, references: dict, costs: dict, order: dict) -> dict:
    """Figures of an artifact on its architecture's reference GPU, zeros where it was not measured; and which of gg_gpus
    that is, -1 where the architecture has none."""
    gpu = references[artifact.variant.sm]
    if gpu is None:
        return dict.fromkeys(COSTS, 0.0) | {"gpu": -1}
    return costs[gpu].get(at, dict.fromkeys(COSTS, 0.0)) | {"gpu": order[gpu]}


def _other_costs(costs: dict, references: dict, artifacts: list[Artifact]) -> list[str]:
    """Figures on GPUs that are no artifact's reference, sorted by GPU and artifact."""
    return [
        f"    {{{number}, {at}, " + ", ".join(f"{figures[name]!r}f" for name in COSTS) + "},"
        for number, (gpu, found) in enumerate(costs.items())
        for at, figures in sorted(found.items())
        if references[artifacts[at].variant.sm] != gpu
    ]


def _measured_rows(artifacts: list[Artifact], gpus: dict[Path, Gpu]) -> Iterator[tuple]:
    """GPU, dtype, layout, key, artifact, whether a relative lends it, and file: of each measured list and layer."""
    index = {artifact.variant.name: at for at, artifact in enumerate(artifacts)}
    left_out = KERNELS.keys() - {artifact.variant.kernel for artifact in artifacts}  # of a build of some kernels
    for folder, gpu in gpus.items():
        own, lent = [], []
        lend = _lending(index, artifacts, folder, gpu)
        for path, dtype, layout, key, row in (*_of_shapes(folder, gpu), *_of_layers(folder, gpu)):
            if row["kernel"] in left_out:
                continue
            name = f"{row['kernel']}_sm{gpu.kernels_sm}_{dtype}_{layout}_a16_{row['config']}"
            file = f"{folder.name}/{path.name}"
            if name not in index:
                raise EmitError(f"{file} names {name}, which is not built: {row}")
            own.append((gpu, dtype, layout, key, index[name], 0, file))
            for signature, at in lend.get((row["kernel"], dtype, layout, _tile(row["config"])), {}).items():
                plain = layer_key(*(row[name] for name in LAYER))  # lists lend no rows
                lent.append((gpu, dtype, layout, signed_key(plain, *signature), at, 1, file))
        yield from own
        measured = {row[:4] for row in own}
        yield from (row for row in lent if row[:4] not in measured)


def _lending(index: dict[str, int], artifacts: list[Artifact], folder: Path, gpu: Gpu) -> dict[tuple, dict]:
    """For which products a kernel's rows stand in, by the kernel, dtype, layout and tile: {(epilogue, source): the
    first artifact of that tile}.

    Not for rows of A by an index where that kernel was measured: what they cost a tile is in no row of a relative.
    """
    measured = {kernel for kernel in KERNELS for row in cost_rows(folder, kernel, gpu.gpu) if "like" not in row}
    found: dict[tuple, dict] = {}
    for _, at in sorted(index.items()):
        variant = artifacts[at].variant
        kernel = KERNELS[variant.kernel]
        if not kernel.like or KERNELS[kernel.like].extents != kernel.extents or kernel.scales:
            continue
        tile = (kernel.like, variant.dtype, variant.layout, _tile(str(variant.config)))
        for source in SOURCES[:2] if kernel.source == "either" else (kernel.source,):
            if source == SOURCES[0] or kernel.name not in measured:
                found.setdefault(tile, {}).setdefault((kernel.epilogue, source), at)
    return found


def _tuned_rows(rows: list[tuple], artifacts: list[Artifact], gpus: list[Gpu]) -> list[str]:
    order = {name: number for names in (DTYPES, LAYOUTS) for number, name in enumerate(names)}  # as the enums have it
    found = sorted(rows, key=lambda row: (gpus.index(row[0]), order[row[1]], order[row[2]], row[3]))
    for earlier, later in itertools.pairwise(found):
        if earlier[:4] == later[:4]:
            winners = " and ".join(artifacts[row[4]].variant.name for row in (earlier, later))
            raise EmitError(f"{later[6]} has two rows for one {later[1]} {later[2]} product: {winners}")
    return [
        f"    {{{gpus.index(gpu)}, {_enumerator(dtype, 'DTYPE')}, {_enumerator(layout, 'LAYOUT')}, {key}u, {at}, "
        f"{lent}}},"
        for gpu, dtype, layout, key, at, lent, _ in found
    ]


def _of_shapes(folder: Path, gpu: Gpu) -> Iterator[tuple[Path, str, str, int, dict]]:
    """File, dtype, layout and key of each measured list, and its row."""
    for row in shape_rows(folder, gpu.gpu):
        yield shapes_path(folder), row["dtype"], row["layout"], shape_key(row["groups"]), row


def _of_layers(folder: Path, gpu: Gpu) -> Iterator[tuple[Path, str, str, int, dict]]:
    """The same of each measured layer. What was measured once stands for each dtype that is as wide, and for each of
    the kernel's layouts: tiles of B are as many bytes however B lies."""
    for row in layer_rows(folder, gpu.gpu):
        kernel, signature = KERNELS[row["kernel"]], [(PLAIN | row)[name] for name in PLAIN]
        key = signed_key(layer_key(*(row[name] for name in LAYER)), *signature)
        dtypes = kernel.dtypes if row["dtype"] in kernel.dtypes else (row["dtype"],)
        for dtype, layout in itertools.product(dtypes, kernel.layouts[16]):
            yield layers_path(folder), dtype, layout, key, row
