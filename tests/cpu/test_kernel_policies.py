"""The policies of the `hopper` kernels: each answers all that the pipeline asks, so one can take another's place."""

import ast
import importlib

import pytest
from builder_sandbox import ROOT

from aot.spec.abi import EPILOGUES, SCALINGS
from aot.spec.kernels import KERNELS as ROWS
from aot.tuning import ragged_model

pytestmark = pytest.mark.compiler
KERNELS = ROOT / "aot/kernels"
PIPELINE = [*(KERNELS / "hopper").glob("*.py"), *(KERNELS / "epilogues").glob("*.py")]
# Pipelines with scale modes of their own.
SCALE_RINGS = ("promotion.py", "staged.py", "wide.py", "k_scales.py", "gather_scaled.py", "scale_ring.py")
BIAS = {"has_bias", "bias_row", "bias_stride"}
GATHER = {"base"}  # hopper/gather.py reads the record itself
GATHER_M = {"policy_of_b", "gate_of_b"}  # and loads B; of a ragged K hopper/gather_k.py loads without them
GRADIENT = {"N", "total_M"}  # of hopper/gradient.py
HALVES = {"load_half_of_b"}
FITTED = {"ends", "total_M", "K"}  # hopper/tile_list.py
ADDENDS = {"ADDEND_SLOTS", "loads_c", "descriptor_of_c"}
# Asked of an epilogue, by pipeline.py, keep.py and gradient.py of hopper/.
OF_PIPELINE, OF_KEEP = {"apply", "zeros"}, {"store"}
OF_GRADIENT = {"store", "row_weights", "row_places"}
GATHER_B = {"GATHERS_B"}  # hopper/gather_k.py, of a schedule whose rows of B may come by an index
SCALES = {"scale_a", "scale_b"}  # by the scale modes of hopper/scaling.py
CLUSTERS = {"load_a_for", "load_b_for"}  # hopper/cluster.py
SCALES_OF_ROWS = {"scale_offset"}  # by those of rows and of blocks
STAGED = {"words_of", "coord_of"}  # by staged.py, of tiles of 256 columns whose sums are promoted in parts


def policies(module: str) -> list:
    """The aggregates that a module of aot/kernels defines."""
    found = vars(importlib.import_module(f"aot.kernels.{module}")).values()
    return [each for each in found if getattr(each, "__triton_aggregate__", False) and each.__module__.endswith(module)]


def schedules() -> list:
    files = (KERNELS / "hopper/schedules").glob("[!_]*.py")
    found = [policy for file in files for policy in policies(f"hopper.schedules.{file.stem}")]
    return [policy for policy in found if policy.__name__.endswith("Schedule")]


def kernels_of(schedule) -> list:
    """The rows of `hopper` kernels whose entry point imports the schedule."""
    module = schedule.__module__.rpartition(".")[2]
    rows = [row for row in ROWS.values() if row.folder == "hopper"]
    imported = f"from .schedules.{module} import"
    found = [row for row in rows if imported in (KERNELS / f"hopper/{row.entry}.py").read_text()]
    assert found, f"no kernel has the schedule {module}"
    return found


def has_scales(row) -> bool:
    return bool(row.fp8_layouts) and row.extents != "k_ends"  # hopper/k_scales.py reads the record itself


def has_halves(row) -> bool:
    (epilogue,) = policies(f"epilogues.{row.epilogue}")
    return bool(epilogue.__aggregate_defaults__["HALVES"])


def asked_of(policy: str, files=PIPELINE) -> set[str]:
    """The names after `work.<policy>.` in the pipeline, and after `<policy>.` where it is an argument."""
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    attributes = [(node.attr, node.value) for node in nodes if isinstance(node, ast.Attribute)]
    return {name for name, of in attributes if policy in (getattr(of, "attr", ""), getattr(of, "id", ""))}


def answers(policy) -> set[str]:
    return {*policy.__aggregate_fields__, *vars(policy)}


def test_the_host_is_told_the_step_and_the_list_of_fitted_tiles():
    tile_list = importlib.import_module("aot.kernels.hopper.tile_list")
    told = {(row.row_step, row.listed_tiles) for row in ROWS.values()}
    assert told == {(0, 0), (tile_list.ROW_STEP.value, tile_list.LISTED_TILES.value)}


def test_the_tuner_plans_fitted_tiles_as_the_kernel_does():
    tile_list = importlib.import_module("aot.kernels.hopper.tile_list")
    ragged_m = importlib.import_module("aot.kernels.hopper.schedules.ragged_m")
    assert tile_list._LIMITS.value == ragged_model.FITTED_LIMITS
    assert tile_list._COLUMNS_AS_ROWS.value == ragged_model.COLUMNS_AS_ROWS
    assert tile_list._BEGIN_AS_ROWS.value == ragged_model.BEGIN_AS_ROWS
    assert tile_list._HALF_WAVE.value == ragged_model.HALF_WAVE
    assert tile_list.LEAST_ROWS.value == ragged_model.LEAST_ROWS
    assert ragged_m.SCAN_WINDOW.value == ragged_model.SEEN_GROUPS


def test_every_schedule_answers_the_pipeline():
    asked = asked_of("schedule")
    always = {"first", "next", "load_a", "load_b", "store", "HAS_BIAS", "GATHERS", "ARRIVALS"}
    assert (
        always
        | ADDENDS
        | BIAS
        | CLUSTERS
        | FITTED
        | GATHER
        | GATHER_B
        | GATHER_M
        | HALVES
        | SCALES
        | SCALES_OF_ROWS
        | STAGED
        <= asked
        and len(schedules()) == 5
    )
    for schedule in schedules():
        rows = kernels_of(schedule)
        optional = set() if schedule.__aggregate_defaults__["HAS_BIAS"] else BIAS
        optional |= set() if any(map(has_halves, rows)) else HALVES
        optional |= set() if any(row.extents == "k_ends" for row in rows) else ADDENDS
        optional |= set() if any(row.row_step for row in rows) else FITTED
        optional |= set() if any(map(has_scales, rows)) else SCALES
        optional |= set() if any(row.scales for row in rows) else SCALES_OF_ROWS
        optional |= set() if any(row.in_parts and row.extents != "k_ends" for row in rows) else STAGED
        optional |= set() if any(row.in_parts and row.extents == "m_ends" for row in rows) else CLUSTERS
        optional |= set() if any(row.source != "rows" for row in rows) else GATHER
        optional |= set() if any(row.source == "indexed_b" for row in rows) else GATHER_B
        optional |= set() if any(row.source == "indexed" and row.extents == "m_ends" for row in rows) else GATHER_M
        optional |= set() if any(row.epilogue == "gated_gradient" for row in rows) else GRADIENT
        assert asked - optional <= answers(schedule), schedule.__name__


def test_a_kernel_with_a_gated_epilogue_and_one_that_gathers_have_a_schedule_that_can():
    fused = [row for schedule in schedules() for row in kernels_of(schedule)]
    assert {(row.epilogue, row.source) for row in fused} == {
        ("linear", "rows"), ("linear", "indexed"), ("linear", "indexed_b"), ("gated", "rows"), ("gated", "indexed"),
        ("gated_pairs", "rows"), ("gated_pairs", "indexed"), ("gated_kept", "rows"), ("gated_kept", "indexed"),
        ("gated_gradient", "indexed"), ("gated_quantized", "indexed"),
    }  # fmt: skip


def test_every_scale_mode_answers_the_pipeline():
    asked = asked_of("scaling", [path for path in PIPELINE if path.name not in SCALE_RINGS])
    assert asked == {"PROMOTES", "apply"}
    for scaling in (*policies("hopper.scaling"), *policies("hopper.factor")):
        assert asked <= answers(scaling), scaling.__name__


def test_every_scale_mode_in_shared_memory_answers_the_promotion():
    """Scales of rows and of columns are asked of those alone that have them with a k-tile or with a tile, and what
    copies ahead reads of those alone that are copied so. wide.py reads those by their addresses."""
    asked = asked_of("scaling", [KERNELS / "hopper" / name for name in ("promotion.py", "staged.py", "wide.py")])
    of_elements, of_ahead = {"a", "b", "of_rows", "of_columns"}, {"CHUNK", "PITCH"}
    of_all = {"AHEAD", "BLOCKS", "LAST", "SLOTS", "STAGED", "copy", "of_group", "sources"}
    assert asked == of_all | of_elements | of_ahead
    left_out = {
        "TensorScales": of_elements | of_ahead,
        "RowScales": {"CHUNK"},
        "BlockScales": of_ahead,
        "ChunkedBlockScales": {"of_rows", "of_columns"},
    }
    rings = {ring.__name__: ring for ring in policies("hopper.scale_ring") if "copy" in answers(ring)}
    assert rings.keys() == left_out.keys()
    assert len(rings) == len(SCALINGS)  # "none" has none, and "block" two
    for name, ring in rings.items():
        assert asked - answers(ring) == left_out[name], name
        assert ring.__aggregate_defaults__["STAGED"], name
    (along_k,) = (ring for ring in policies("hopper.k_scales") if "copy" in answers(ring))
    assert asked - answers(along_k) == {"of_group"}  # a factor, which its own consumers read
    assert not along_k.__aggregate_defaults__["STAGED"], "they store by themselves"


def test_every_epilogue_has_a_file_and_answers_the_pipeline():
    """hopper/pipeline.py, or hopper/keep.py where the pre-activation is stored too, or hopper/gradient.py, or
    hopper/promotion.py where what is stored is quantized."""
    asked = asked_of("epilogue")
    of = {"gated_kept": OF_KEEP, "gated_gradient": OF_GRADIENT, "gated_quantized": OF_KEEP}
    assert {"SUMS_PER_OUTPUT", "HALVES"} | OF_PIPELINE | OF_KEEP | OF_GRADIENT == asked
    for name in EPILOGUES:
        (epilogue,) = policies(f"epilogues.{name}")
        assert {"SUMS_PER_OUTPUT", "HALVES"} | of.get(name, OF_PIPELINE) <= answers(epilogue), name


def test_the_builder_counts_an_epilogues_sums_as_the_kernels_do():
    """`fits` works out boxes, registers and shared memory from that."""
    for row in ROWS.values():
        if row.folder == "hopper":
            (epilogue,) = policies(f"epilogues.{row.epilogue}")
            assert epilogue.__aggregate_defaults__["SUMS_PER_OUTPUT"] == row.sums_per_output, row.name
