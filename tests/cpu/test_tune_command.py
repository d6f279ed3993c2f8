"""`python -m aot tune` without a GPU: from kept measurements to tables, one family a call, and what it says."""

import ast
import dataclasses
import itertools
import json
import shutil
import subprocess
import sys

import pytest
from builder_sandbox import ROOT
from click.testing import CliRunner

from test_tune import SHAPES

pytest.importorskip("scipy")
pytest.importorskip("torch")

import gg_runtime
from aot.cli import cli
from aot.spec.gpus import Gpu, read_gpu
from aot.spec.kernels import KERNELS
from aot.spec.tables import read_table
from aot.spec.variants import TABLES, config_of, dtypes_of, table_rows, variants
from aot.tuning.cost_model import Cost, longest_path
from aot.tuning.family import Left
from aot.tuning.fits import families_of, keys_of_config
from aot.tuning.layers import rows_at
from aot.tuning.measurement import GradientProduct, GroupedProduct, ListProduct
from aot.tuning.store import Run, Store
from aot.tuning.tune import tune
from aot.tuning.write_tables import without_configs

H200 = read_gpu(TABLES / "H200")
MINE = Gpu("NVIDIA X9000", 90, 90, 100, 1700, 3000)
CUBINS = {name: entry["cubin"]["sha256"] for name, entry in gg_runtime.manifest()["artifacts"].items()}
NAMES = {variant.name: variant for variant in variants([90])}
TRUTHS = [Cost(2.0, 0.4, 0.1), Cost(2.5, 0.9, 0.25)]


@pytest.fixture
def tables(tmp_path):
    return shutil.copytree(TABLES, tmp_path / "tables")


def named(kernel, config, layout="nn", dtype="fp16"):
    return f"{kernel}_sm90_{dtype}_{layout}_a16_{config}"


def basics():
    """Two configs of `basic`, and what they cost in truth."""
    rows = [row for row in table_rows("basic", 90) if row["alignment"] == 16][:2]
    return dict(zip((config_of(row) for row in rows), TRUTHS))


def keep_lists(path, gpu, shapes=SHAPES, cubins=CUBINS):
    store = Store(path)
    store.start(Run(gpu, "580.1", "2026-11-22", "build"))
    for one in shapes:
        times = {
            (name := named("basic", config), cubins[name], 132): truth.us(*longest_path(one, config, 132))
            for config, truth in basics().items()
        }
        store.add("lists", ListProduct("nn", one).to_json(), times)
    return store


def keep_layer(path, gpu, load=9, experts=24, best=0, configs=("64x128x64_s8w4", "32x64x128_s9w4")):
    """A layer that no table has, on two kernels, of which `best` is twice as fast."""
    store = Store(path)
    store.start(Run(gpu, "580.1", "2026-11-22", "build"))
    for split in ("multinomial", "zipf"):
        product = GroupedProduct("bf16", split, experts, rows_at(load, experts), 4096, 512)
        names = [named("hopper_ragged", config, "nt", "bf16") for config in configs]
        times = {(name, CUBINS[name], 132): 10.0 if at == best else 20.0 for at, name in enumerate(names)}
        store.add("layers", product.to_json(), times)
    return store


def refitted(path, tables, *options):
    result = CliRunner().invoke(tune, ["--refit", *options, "--measurements", str(path), "--out", str(tables)])
    assert result.exit_code == 0, result.output
    return result.output


def costs_of(path):
    return {(row["alignment"], row["config"]): row for row in read_table(path)["costs"] if "dtypes" not in row}


def test_refit_renews_the_costs_of_what_was_measured_and_keeps_the_others(tmp_path, tables):
    keep_lists(tmp_path / "kept.jsonl", H200)
    refitted(tmp_path / "kept.jsonl", tables)
    before, after = (costs_of(folder / "H200/basic.json") for folder in (TABLES, tables))
    for config, truth in basics().items():
        row = after.pop((16, str(config)))
        assert {name: row[name] for name in vars(truth)} == pytest.approx(vars(truth), rel=1e-3)
        before.pop((16, str(config)))
    assert {key: row for key, row in after.items() if "like" not in row} == before
    measured = read_table(tables / "H200/basic.json")["measured"]
    assert measured["lists"]["date"] == "2026-11-22" and measured["lists, earlier"]["date"] == "2026-11-21"
    ours, theirs = (read_table(folder / "H200/shapes.json")["shapes"] for folder in (TABLES, tables))
    assert ours != theirs and all(row in ours for row in theirs), "rows of lists that were measured now are renewed"
    for kernel in ("hopper", "hopper_ragged", "tma"):
        one, other = (read_table(folder / f"H200/{kernel}.json")["costs"] for folder in (TABLES, tables))
        assert one == other


def keep_scaled(path, gpu):
    """Products with scales of blocks on one kernel, at about 1200 TFLOP/s."""
    store = Store(path)
    store.start(Run(gpu, "580.1", "2026-11-22", "build"))
    name = named("hopper_ragged_block_scales", "128x192x128_s4w4c2p2e3", "nt", "e4m3_bf16")
    for (experts, each), (n, k) in itertools.product(((8, 4096), (128, 64), (16, 625)), ((1536, 2048), (4096, 7168))):
        product = GroupedProduct("e4m3", "multinomial", experts, experts * each, n, k, scales="block")
        us = 5 + 2 * product.rows * n * k / 1.2e9
        store.add("scaled", product.to_json(), {(name, CUBINS[name], 132): us})


def keep_gradients(path, gpu):
    """Weight gradients on one kernel, at about 600 TFLOP/s."""
    store = Store(path)
    store.start(Run(gpu, "580.1", "2026-11-22", "build"))
    name = named("hopper_ragged_k", "128x256x64_s4w4c2p2e4r16", "tn", "bf16_fp32")
    for groups, (m, n) in itertools.product((8, 16, 128), ((1536, 2048), (4096, 7168))):
        product = GradientProduct("bf16", "fp32", groups, 32768, m, n)
        store.add("gradients", product.to_json(), {(name, CUBINS[name], 132): 5 + product.flop / 6e8})


@pytest.mark.parametrize(("family", "keep"), [("scaled", keep_scaled), ("gradients", keep_gradients)])
def test_a_pass_leaves_the_tables_of_other_families_as_they_are(tmp_path, tables, family, keep):
    keep(tmp_path / "kept.jsonl", H200)
    refitted(tmp_path / "kept.jsonl", tables)
    ours, theirs = (
        {path.name: path.read_bytes() for path in (folder / "H200").iterdir()} for folder in (TABLES, tables)
    )
    changed = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    assert changed == {f"{kernel}.json" for kernel in KERNELS if families_of(kernel) == (family,)} & {*theirs}


def test_large_tiles_with_one_scale_are_of_the_family_of_small_ones():
    """A pass over plain products measures both, though until then the large ones have a relative's figures."""
    assert families_of("hopper_ragged_tensor_scales") == families_of("hopper_ragged") == ("ragged", "layers")


@pytest.mark.parametrize(
    "kernel", ["hopper_stack", "hopper_stack_block_scales", "hopper_gather_quantized", "basic_stack"]
)
def test_what_no_family_times_gets_no_figures_of_a_relative(kernel):
    """Another kernel with the same tile lends it some, or they were set by hand."""
    assert families_of(kernel) == ()


def test_a_refitted_cost_is_for_the_inputs_that_its_config_is_compiled_for(tmp_path, tables):
    keep_lists(tmp_path / "kept.jsonl", H200)
    refitted(tmp_path / "kept.jsonl", tables)
    seen = set()
    for path in (tables / "H200").glob("*.json"):
        if path.stem in KERNELS:
            costs = {(row["alignment"], dtypes_of(row), row["config"]) for row in read_table(path)["costs"]}
            assert costs <= {
                (row["alignment"], dtypes_of(row), str(config_of(row))) for row in table_rows(path.stem, 90)
            }, path.stem
            seen |= {dtypes for _, dtypes, _ in costs}
    assert seen == {("fp16", "bf16"), ("e4m3",), ("e4m3", "e5m2")}


def test_the_users_layers_stand_beside_ours_on_the_same_gpu(tmp_path, tables):
    keep_layer(tmp_path / "kept.jsonl", H200, best=0)
    refitted(tmp_path / "kept.jsonl", tables)
    ours, theirs = (read_table(folder / "H200/layers.json") for folder in (TABLES, tables))
    (new,) = [row for row in theirs["layers"] if row not in ours["layers"]]
    assert [row for row in theirs["layers"] if row != new] == ours["layers"]
    assert (new["experts"], new["columns"], new["depth"], new["load"], new["us"]) == (24, 4096, 512, 9, 10.0)
    assert new["config"] == "64x128x64_s8w4"
    # Measured again, now as the model would choose: the row goes, and ours stay.
    keep_layer(tmp_path / "kept.jsonl", H200, best=1)
    refitted(tmp_path / "kept.jsonl", tables)
    assert read_table(tables / "H200/layers.json")["layers"] == ours["layers"]
    names = [sorted(path.name for path in (folder / "H200").iterdir()) for folder in (TABLES, tables)]
    assert names[0] == names[1]


def test_the_users_own_gpu_gets_a_folder_of_its_own_and_ours_stay(tmp_path, tables):
    keep_layer(tmp_path / "kept.jsonl", MINE)
    assert "tables/X9000" in refitted(tmp_path / "kept.jsonl", tables)
    assert sorted(path.name for path in (tables / "X9000").iterdir()) == ["gpu.json", "layers.json"]
    assert read_gpu(tables / "X9000") == MINE
    table = read_table(tables / "X9000/layers.json")
    assert [row["load"] for row in table["layers"]] == [9]
    assert table["measured"] == {
        "layers": {"gpu": "NVIDIA X9000", "driver": "580.1", "date": "2026-11-22", "gg_build_id": "build"}
    }
    for path in TABLES.rglob("*.json"):
        assert (tables / path.relative_to(TABLES)).read_text() == path.read_text()


def test_layers_alone_give_no_kernel_costs_beside_another_family(tmp_path, tables):
    """Else plain kernels would have the figures of some unlike kernel that was fitted, and no rows of their own."""
    keep_gradients(tmp_path / "kept.jsonl", MINE)
    keep_layer(tmp_path / "kept.jsonl", MINE)
    refitted(tmp_path / "kept.jsonl", tables)
    assert not (tables / "X9000/hopper_ragged.json").exists() and (tables / "X9000/hopper_ragged_k.json").exists()
    assert [row["load"] for row in read_table(tables / "X9000/layers.json")["layers"]] == [9]


def test_a_part_of_a_gpu_has_a_folder_beside_the_whole_one(tmp_path, tables):
    keep_layer(tmp_path / "kept.jsonl", dataclasses.replace(H200, multiprocessors=66, reference=False))
    refitted(tmp_path / "kept.jsonl", tables)
    assert read_gpu(tables / "H200_66").multiprocessors == 66 and read_gpu(tables / "H200") == H200


def test_measurements_of_other_machine_code_do_not_count(tmp_path, tables):
    keep_lists(tmp_path / "kept.jsonl", H200, cubins=dict.fromkeys(CUBINS, "another"))
    result = CliRunner().invoke(tune, ["--refit", "--measurements", str(tmp_path / "kept.jsonl"), "--out", str(tables)])
    assert result.exit_code == 0 and "too few to fit a model, and no table is written yet" in result.output
    for path in TABLES.rglob("*.json"):
        assert (tables / path.relative_to(TABLES)).read_text() == path.read_text()


def test_measurements_of_two_gpus_are_not_fitted_together(tmp_path, tables):
    for gpu in (H200, MINE):
        keep_lists(tmp_path / "kept.jsonl", gpu)
    result = CliRunner().invoke(tune, ["--refit", "--measurements", str(tmp_path / "kept.jsonl"), "--out", str(tables)])
    assert result.exit_code == 1 and "has measurements of 2 GPUs" in result.output


def test_pruning_takes_a_config_from_what_is_compiled_but_not_one_that_another_gpu_needs(tmp_path, tables):
    small, large = basics()
    path = tmp_path / "kept.jsonl"
    store = Store(path)
    store.start(Run(MINE, "580.1", "2026-11-22", "build"))
    for shapes in SHAPES:
        us = TRUTHS[0].us(*longest_path(shapes, small, 132))
        times = {
            (name := named("basic", config), CUBINS[name], 132): us * slower
            for config, slower in ((small, 1), (large, 2))
        }
        store.add("lists", ListProduct("nn", shapes).to_json(), times)
    ours = {row["config"] for row in read_table(TABLES / "H200/shapes.json")["shapes"] if row["kernel"] == "basic"}
    refitted(path, tables, "--prune")
    left = {str(config_of(row)) for row in read_table(tables / "sm90/basic.json")["configs"] if row["alignment"] == 16}
    assert str(small) in left and (str(large) in left) == (str(large) in ours)


def test_a_config_stays_while_one_of_its_outputs_is_wanted(tables):
    kernel = "hopper_ragged_k_block_scales"
    row = next(row for row in table_rows(kernel, 90) if "outs" not in row)
    keys = keys_of_config(kernel, row)
    assert len(keys) == 2  # of 16 bits, and of float32
    path = tables / f"sm90/{kernel}.json"
    assert without_configs({keys[0]}, MINE, tables) == (set(), {path: {"configs": table_rows(kernel, 90)}})
    left_out, written = without_configs(set(keys), MINE, tables)
    assert left_out == set(keys) and row not in written[path]["configs"]
    assert read_table(path)["configs"] == table_rows(kernel, 90), "nothing is written yet"


def test_pruning_by_too_few_measurements_writes_no_table(tmp_path, tables):
    """One list: a model cannot be fitted, and its losers may be winners elsewhere."""
    small, large = basics()
    path = tmp_path / "kept.jsonl"
    store = Store(path)
    store.start(Run(MINE, "580.1", "2026-11-22", "build"))
    times = {(name := named("basic", config), CUBINS[name], 132): us for config, us in ((small, 1.0), (large, 2.0))}
    store.add("lists", ListProduct("nn", SHAPES[0]).to_json(), times)
    before = {table: table.read_text() for table in tables.rglob("*.json")}
    assert "too few to fit a model" in refitted(path, tables, "--prune")
    assert {table: table.read_text() for table in tables.rglob("*.json")} == before


class MadeUp:
    """In place of a family: so many units."""

    def __init__(self, name, left):
        self.name, self.units_left = name, left


class MadeUpPass:
    def __init__(self, family, run, store, cubins):
        self.family = family

    def left(self):
        return Left(10, self.family.units_left)

    def measure(self, seconds, say):
        self.family.units_left -= 1
        say(f"{seconds:.0f} s of {self.family.name}")


def test_a_call_measures_one_family_and_says_what_is_left(tmp_path, tables, monkeypatch):
    found = [MadeUp("lists", 0), MadeUp("ragged", 2), MadeUp("layers", 10)]
    monkeypatch.setattr("aot.tuning.tune.families", lambda only, file: found)
    monkeypatch.setattr("aot.tuning.tune.Pass", MadeUpPass)
    monkeypatch.setattr("aot.tuning.tune.this_run", lambda: Run(MINE, "580.1", "2026-11-22", "build"))
    keep_lists(tmp_path / "kept.jsonl", MINE)
    options = ["--minutes", "8", "--measurements", str(tmp_path / "kept.jsonl"), "--out", str(tables)]
    said = CliRunner().invoke(tune, options).output
    assert "measuring ragged on NVIDIA X9000: 2 of 10 left\n480 s of ragged\n" in said
    assert "lists: all 10 measured\nragged: 1 of 10 left\nlayers: 10 of 10 left\nrun the same command again" in said
    CliRunner().invoke(tune, options)
    assert "480 s of layers" in CliRunner().invoke(tune, options).output
    assert (tables / "X9000/basic.json").exists(), "tables are written after each call"


def test_what_is_wrong_with_the_layers_shows_before_a_gpu_is_asked(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    result = CliRunner().invoke(tune, ["--layers", str(tmp_path / "config.json")])
    assert result.exit_code == 1 and "it is not of a mixture of experts" in result.output


def test_a_family_beside_a_file_of_layers_is_refused(tmp_path):
    result = CliRunner().invoke(tune, ["--only", "lists", "--layers", str(tmp_path / "config.json")])
    assert result.exit_code == 2 and "--only says nothing beside it" in result.output


def test_without_a_gpu_it_says_so():
    result = CliRunner().invoke(tune, [])
    assert result.exit_code == 1 and "tune needs a CUDA device" in result.output


def imports(path) -> set[str]:
    """Modules and names that a file imports anywhere, with the depth of relative ones."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {"." * node.level + (node.module or ""), *(name.name for name in node.names)}
    return found


def test_the_tuner_is_a_guest():
    """It uses the wheel's public API, and nothing of aot but the CLI's verb imports it."""
    for path in sorted((ROOT / "aot/tuning").glob("*.py")):
        text = path.read_text()
        assert not {"triton", "benchmarks", "_C"} & imports(path) and "._C" not in text, path
        nodes = ast.parse(text)
        inner = [n for n in ast.walk(nodes) if isinstance(n, (ast.Import, ast.ImportFrom)) and n not in nodes.body]
        assert not inner, f"{path} imports inside of a function"
    for path in sorted((ROOT / "aot").rglob("*.py")):
        if "tuning" not in path.parts and path.name != "cli.py":
            assert not any("tuning" in name for name in imports(path)), path


def test_the_tuner_runs_without_triton_and_the_builder_without_the_tuner():
    blocked = "import sys\nfor name in {names}: sys.modules[name] = None\nfrom aot.cli import cli\ncli({arguments})"
    for names, arguments, says in (
        (["triton"], ["tune", "--help"], "--layers"),
        (["torch", "scipy", "gg_runtime"], ["tune", "--minutes", "8"], "tune needs requirements/tune.txt"),
        (["torch", "scipy", "gg_runtime"], ["--help"], "inspect"),
    ):
        script = blocked.format(names=names, arguments=arguments)
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
        assert says in ran.stdout + ran.stderr, ran.stderr
    assert "tune" in CliRunner().invoke(cli, ["--help"]).output
