"""The builder as a machine: what it recompiles, how it fails, what an interruption and a rival leave behind."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from builder_sandbox import ROOT, ROW, TABLE, Tree

from aot.build.workers import reason
from aot.spec.kernels import KERNELS

pytestmark = pytest.mark.compiler
KEPT = {"hopper_gated_kept", "hopper_gather_gated_kept"}
GRADIENT = {"hopper_gather_dgated"}
SCALED_RAGGED = {
    "hopper_ragged_tensor_scales", "hopper_ragged_row_scales", "hopper_ragged_block_scales",
    "hopper_gather_block_scales",
}  # fmt: skip
QUANTIZED = {"hopper_gather_quantized"}
SCALED_STACKS = {"hopper_stack_tensor_scales", "hopper_stack_row_scales", "hopper_stack_block_scales"}
SCALED_LISTS = {"hopper_tensor_scales", "hopper_row_scales", "hopper_block_scales"}
SCALED_K = {"hopper_ragged_k_block_scales"}
SCALED = SCALED_RAGGED | SCALED_STACKS | SCALED_LISTS | SCALED_K
SCALED_RAGGED_POINTERS = {"basic_ragged_row_scales", "basic_ragged_block_scales", "basic_ragged_k_block_scales"}
SCALED_POINTERS = {
    "basic_row_scales", "basic_block_scales", "basic_stack_row_scales", "basic_stack_block_scales",
    *SCALED_RAGGED_POINTERS,
}  # fmt: skip
ALONG_K = {"hopper_ragged_k", "hopper_gather_k", "hopper_gather_k_b"}
FITTED = {"hopper_ragged_fitted"}
PIPELINE = {"hopper", "hopper_ragged", "hopper_gather", "hopper_stack", *FITTED, *ALONG_K, *SCALED}
HALVES = {"hopper_gated", "hopper_gather_gated", "hopper_stack_gated"}
PAIRS = {"hopper_gated_pairs", "hopper_gather_gated_pairs", "hopper_stack_gated_pairs"}
STACKS = {"hopper_stack", "hopper_stack_gated", "hopper_stack_gated_pairs"}
GATED = HALVES | PAIRS
VICTIM = "basic_sm80_fp16_nt_a16_64x64x32_s4w4"


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path)
    tree.stand_in()
    # Of sm_90, which these tests do not build, so that basic_gated has keys.
    gated = TABLE.format(rows=ROW.replace('"block_n": 64', '"block_n": 128'))
    (tree.folder / "aot/tables/sm90/basic_gated.json").write_text(gated)
    return tree


def changed(tree, before):
    """The kernels whose variants have other keys now."""
    return {name.partition("_sm")[0] for name, key in tree.keys().items() if key != before[name]}


def edited(tree, kernel, by="EDITED = 1"):
    path = tree.folder / f"aot/kernels/{kernel}.py"
    before = tree.keys()
    path.write_text(path.read_text() + f"\n{by}\n")
    return changed(tree, before)


def test_editing_a_kernel_changes_the_keys_of_its_own_variants(tree):
    assert edited(tree, "pointer/basic") == {"basic"}
    assert edited(tree, "memory/pack") == {"pack"}
    assert edited(tree, "tma/tma") == {"tma"}


def test_editing_what_kernels_import_changes_the_keys_of_those_that_import_it(tree):
    assert edited(tree, "schedule") == {
        "basic", "basic_gated", "basic_ragged", "basic_ragged_k", "basic_stack", "pack", "tma", *SCALED_POINTERS,
    }  # fmt: skip
    assert edited(tree, "pointer/tile") == {
        "basic", "basic_gated", "basic_ragged", "basic_ragged_k", "basic_stack", "tma", *SCALED_POINTERS,
    }  # fmt: skip
    assert edited(tree, "pointer/ragged_m") == {
        "basic_gated", "basic_ragged", "basic_ragged_k", *SCALED_RAGGED_POINTERS,
    }  # fmt: skip
    assert edited(tree, "pointer/gated_tile") == {"basic_gated"}
    # And `activate`, of which the tree has no config.
    assert edited(tree, "activation") == {"basic_gated", "activate_quantize", *GATED, *KEPT, *GRADIENT, *QUANTIZED}


def test_comments_docstrings_and_line_breaks_compile_nothing_anew(tree):
    assert edited(tree, "schedule", by="# edited") == set()
    before = tree.keys()
    for path in (
        tree.folder / "aot/kernels/hopper/hopper.py",
        tree.folder / "aot/build/clusters.py",
        tree.folder / "aot/build/compile.py",
        tree.folder / "aot/build/elf.py",
        tree.folder / "aot/build/partitions.py",
        tree.folder / "aot/build/yields.py",
    ):
        text = path.read_text()
        path.write_text('"""Another docstring."""\n\n' + text[text.index('"""', 3) + 3 :])
    assert tree.keys() == before


def test_a_module_in_a_new_subfolder_is_part_of_the_key(tree):
    folder = tree.folder / "aot/kernels/store/parts"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("from ...schedule import word\n")
    (folder / "two.py").write_text("TWO = 2\n")
    (folder / "three.py").write_text("THREE = 3\n")
    assert edited(tree, "hopper/hopper", by="from ..store.parts.one import word") == {"hopper"}
    assert edited(tree, "store/parts/one") == {"hopper"}
    assert edited(tree, "store/parts/two") == set(), "imported by nobody"
    (folder.parent / "__init__.py").write_text("from .parts import two\n")
    assert edited(tree, "store/parts/two") == {"hopper"}, "the package that holds `one` imports it"
    assert edited(tree, "tma/tma", by="from ..store import parts") == {"tma"}
    assert edited(tree, "store/parts/two", by="TWO = 3") == {"hopper", "tma"}
    assert edited(tree, "store/parts/three") == set()


def test_each_epilogue_is_the_class_of_the_file_of_its_name():
    """A key has that file alone, not the function that chooses: what it chooses must be of no other file."""
    text = (ROOT / "aot/kernels/epilogues/__init__.py").read_text()
    file_of = {name: file for file, name in re.findall(r"from \.(\w+) import (\w+)", text)}
    chosen = re.findall(r'EPILOGUE == "(\w+)".*?return (\w+)\(\)', text, re.DOTALL)
    assert len(chosen) == text.count("return ") == len(file_of)
    assert all(name == file_of[policy] for name, policy in chosen)


def test_a_new_epilogue_changes_no_key_and_an_edited_one_those_of_its_kernels(tree):
    before = tree.keys()
    folder = tree.folder / "aot/kernels/epilogues"
    (folder / "another.py").write_text("class Another: ...\n")
    dispatcher = folder / "__init__.py"
    dispatcher.write_text(dispatcher.read_text() + "\nfrom .another import Another\n")
    assert tree.keys() == before
    assert edited(tree, "epilogues/another") == set()
    assert edited(tree, "epilogues/linear") == PIPELINE
    assert edited(tree, "epilogues/gated") == HALVES | KEPT | QUANTIZED
    assert edited(tree, "epilogues/gated_pairs") == PAIRS
    assert edited(tree, "epilogues/gating") == GATED | KEPT | QUANTIZED
    assert edited(tree, "epilogues/activations") == GATED | KEPT | GRADIENT | QUANTIZED


def test_kernels_of_one_entry_point_have_keys_of_their_own(tree):
    """Constants of the kernel's row tell them apart: what the entry point imports is the same."""
    assert edited(tree, "hopper/hopper_ragged") == {"hopper_ragged", "hopper_gather"} | GATED - STACKS
    assert edited(tree, "hopper/hopper_ragged_k") == edited(tree, "hopper/gather_k") == ALONG_K
    assert edited(tree, "hopper/k_scales") == edited(tree, "hopper/schedules/ragged_k_blocks") == SCALED_K
    assert edited(tree, "hopper/hopper_stack") == STACKS
    assert edited(tree, "hopper/schedules/stack") == STACKS | SCALED_STACKS
    assert edited(tree, "hopper/hopper_scaled") == SCALED_RAGGED | QUANTIZED
    assert edited(tree, "hopper/hopper_scaled_stack") == SCALED_STACKS
    assert edited(tree, "hopper/schedules/list") == {"hopper"} | SCALED_LISTS
    assert edited(tree, "hopper/hopper_scaled_list") == SCALED_LISTS
    assert edited(tree, "hopper/promotion") == edited(tree, "hopper/scale_ring") == SCALED | QUANTIZED
    assert edited(tree, "pointer/basic_scaled") == {"basic_row_scales", "basic_block_scales"}
    for path in ("hopper/hopper_ragged_fitted", "hopper/fitted", "hopper/tile_list"):
        assert edited(tree, path) == FITTED
    for path in ("hopper/hopper_kept", "hopper/keep"):
        assert edited(tree, path) == KEPT
    assert edited(tree, "epilogues/gated_kept") == KEPT | QUANTIZED, "quantized outputs take its activations"
    assert edited(tree, "epilogues/gated_quantized") == QUANTIZED
    for path in ("hopper/hopper_dgated", "hopper/gradient", "epilogues/gated_gradient"):
        assert edited(tree, path) == GRADIENT
    assert edited(tree, "hopper/gather") == PIPELINE | GATED | KEPT | GRADIENT | QUANTIZED, "the pipeline imports it"
    keys = tree.keys()
    shared = [key for name, key in keys.items() if name.endswith("sm90_bf16_nt_a16_16x128x128_s6w4")]
    assert len(shared) > 3 and len(set(shared)) == len(shared)


def test_a_record_changes_the_keys_of_the_kernels_that_read_it(tree):
    path = tree.folder / "aot/spec/records.py"
    text, before = path.read_text(), tree.keys()
    new = text.replace("RECORDS = {", 'ANOTHER = Record("another", "", LIST_POINTERS.fields)\nRECORDS = {')
    path.write_text(new.replace("GROUPED_DESCRIPTORS)", "GROUPED_DESCRIPTORS, ANOTHER)"))
    assert tree.keys() == before
    first = '(*_fields("descriptor", "a b c"), *_GROUPED_REST'
    assert first in text
    path.write_text(text.replace(first, first.replace("a b", "b a")))
    # gather.py, which the pipeline imports, reads the record of gated products; that one begins as the others do.
    assert changed(tree, before) == PIPELINE | GATED | KEPT | GRADIENT | QUANTIZED
    path.write_text(text)
    last = '*_fields("address", "a_address"), *_fields("stride", "a_row")'
    assert last in text
    path.write_text(text.replace(last, '*_fields("stride", "a_row"), *_fields("address", "a_address")'))
    assert changed(tree, before) == PIPELINE | GATED | KEPT | GRADIENT | QUANTIZED
    path.write_text(text.replace('*_fields("address", "b_up")', '*_fields("address", "more b_up")'))
    assert changed(tree, before) == {"basic_gated"}


def test_another_triton_or_another_compiler_module_changes_every_key(tree):
    before = tree.keys()
    assert not set(tree.keys(triton="another").items()) & set(before.items())
    for name in ("clusters.py", "compile.py", "elf.py", "partitions.py", "yields.py"):
        before, path = tree.keys(), tree.folder / "aot/build" / name
        path.write_text(path.read_text() + "\nEDITED = 1\n")
        assert not set(tree.keys().items()) & set(before.items()), name


@pytest.mark.parametrize("option", ["in_parts", "may_overlap"])
def test_an_option_of_a_kernel_changes_its_keys(tree, option):
    path, before = tree.folder / "aot/spec/kernels.py", tree.keys()
    text = path.read_text()
    assert f"{option}: bool = False" in text
    path.write_text(text.replace(f"{option}: bool = False", f"{option}: bool = True"))
    found = changed(tree, before)
    assert {"basic", "pack", "tma", "hopper", "hopper_ragged"} <= found
    assert not any(getattr(KERNELS[name], option) for name in found), "those that have it have it as before"


def test_what_does_not_reach_the_compiler_changes_no_key(tree):
    before = tree.keys()
    for name in ("report.py", "cli.py", "emit/generate.py", "spec/kernels.py", "spec/variants.py"):
        path = tree.folder / "aot" / name
        path.write_text(path.read_text() + "\nEDITED = 1\n")
    assert tree.keys() == before


def test_some_kernels_are_built_alone(tree):
    code, output = tree.run("build", KERNELS="hopper tma", ARCHS="90")
    assert code == 0 and "only hopper, tma" in output, output
    found = json.loads(tree.contents()["manifest.json"])["artifacts"]
    assert {entry["kernel"] for entry in found.values()} == {"hopper", "tma", "pack"}
    assert b"basic" not in tree.contents()["table.c"]


def test_a_second_build_compiles_nothing_and_touches_nothing(tree):
    code, output = tree.run("build")
    assert code == 0 and ": 9 compiled now" in output, output
    dates = {path: path.stat().st_mtime_ns for path in tree.generated.rglob("*")}
    started = time.monotonic()
    code, output = tree.run("build")
    assert code == 0 and ": 0 compiled now" in output, output
    assert time.monotonic() - started < 5
    assert {path: path.stat().st_mtime_ns for path in tree.generated.rglob("*")} == dates


@pytest.mark.parametrize("damage", [lambda image: image.write_bytes(image.read_bytes()[:-1]), Path.unlink],
                         ids=["a short file", "no file"])  # fmt: skip
def test_a_damaged_cache_entry_is_compiled_again_once(tree, damage):
    tree.run("build")
    before = tree.contents()
    damage(next((tree.folder / "build/cache").glob("*/image.cubin")))
    for compiled in (1, 0):
        code, output = tree.run("build")
        assert code == 0 and f": {compiled} compiled now" in output, output
        assert tree.contents() == before


HALF_AN_ANSWER = (
    "import gc, multiprocessing.connection as m; "
    "(one,) = (c for c in gc.get_objects() if isinstance(c, m.Connection)); "
    "os.write(one.fileno(), bytes([0, 0, 1, 0]) + b'half'); os._exit(7)"
)
FAILURES = {
    "an exception": ("raise RuntimeError('no nt today')", "RuntimeError: no nt today"),
    "a crash": ("os._exit(7)", "exit code 7"),
    "a signal": ("os.kill(os.getpid(), 11)", "exit code -11"),
    "a crash within its answer": (HALF_AN_ANSWER, "exit code 7"),
    "no end": ("subprocess.run(['sleep', '600'])", "timed out: not compiled within 2 s"),
}


@pytest.mark.parametrize("body, reason", FAILURES.values(), ids=FAILURES)
def test_a_variant_that_fails_fails_the_build_with_its_reason_after_the_others(tree, body, reason):
    tree.run("build")
    before = tree.contents()
    tree.stand_in(f"if variant.name == {VICTIM!r}:\n    {body}\n")
    code, output = tree.run("build", "--timeout", "2")
    assert code == 1
    assert "1 variants could not be built" in output and VICTIM in output and reason in output, output
    assert tree.contents() == before
    assert len(list((tree.folder / "build/cache").glob("*/artifact.json"))) == 9 + 8, "the others were not kept"


def test_the_reason_is_what_was_raised_first_and_where():
    """As Triton raises: anew for each caller."""
    first = TypeError("no + for these")
    inner, outer = RuntimeError("at 9:4:\n    sums += part\n    ^"), RuntimeError("at 30:0:\n    multiply(work)\n    ^")
    inner.__cause__, outer.__cause__ = first, inner
    told = reason(outer, "")
    assert told.endswith("TypeError: no + for these") and "sums += part" in told and "multiply" not in told
    assert reason(first, "") == "TypeError: no + for these"


def test_what_the_compiler_prints_reaches_nobody_but_its_errors_reach_the_reason(tree):
    noise = "os.system('echo ld.global.b32; echo ptxas fatal: no such register')"
    noise += "; print('mov.u32'); raise ValueError('x')"
    tree.stand_in(f"if variant.name == {VICTIM!r}:\n    {noise}\n")
    code, output = tree.run("build")
    assert code == 1
    assert "no such register" in output and "ValueError: x" in output
    assert "ld.global" not in output and "mov.u32" not in output


def test_a_source_that_changes_during_the_build_is_no_success(tree):
    path = tree.folder / "aot/kernels/memory/pack.py"
    tree.stand_in(f"if variant.kernel == 'pack':\n    open({str(path)!r}, 'a').write('EDITED = 1')\n")
    code, output = tree.run("build")
    assert code == 1 and "changed while it was compiled" in output, output
    assert not tree.generated.exists()


def children_of(marker):
    return [line for line in map(command_line, Path("/proc").glob("[0-9]*/cmdline")) if marker in line]


def command_line(path):
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=lambda ending: ending.name)
def test_an_interrupted_build_leaves_no_damage_and_no_process(tree, ending):
    tree.run("build")
    before = tree.contents()
    marker = f"600.{os.getpid()}{ending.value}"
    tree.stand_in(f"open('started', 'w').close(); subprocess.run(['sleep', '{marker}'])")
    process = tree.start("build")
    while not (tree.folder / "started").exists() or not children_of(f"sleep {marker}"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(ending)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert not children_of(f"sleep {marker}")
    assert tree.contents() == before
    tree.stand_in()
    assert tree.run("build")[0] == 0


def test_a_killed_build_leaves_nothing_that_the_next_one_trips_over(tree):
    tree.stand_in("open('started', 'w').close(); time.sleep(0.3)")
    process = tree.start("build", "-j", "1")
    while not (tree.folder / "started").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    process.communicate()
    (tree.folder / "build/new-left").mkdir()
    code, output = tree.run("build")
    assert code == 0, output
    assert not list((tree.folder / "build").glob("**/new-*"))
    assert "manifest.json" in tree.contents()


def test_two_builds_at_once_do_the_work_once(tree):
    tree.stand_in("time.sleep(0.2)")
    first, second = tree.start("build"), tree.start("build")
    outputs = [first.communicate(timeout=60)[0], second.communicate(timeout=60)[0]]
    assert first.returncode == second.returncode == 0, outputs
    assert sorted("waiting for it to finish" in output for output in outputs) == [False, True], outputs
    assert sorted(": 9 compiled now" in output for output in outputs) == [False, True], outputs


def test_the_compiler_sees_none_of_the_callers_knobs(tree):
    tree.stand_in("raise RuntimeError(' '.join(sorted(os.environ)))")
    _, output = tree.run("build", PTXAS_OPTIONS="-O0", TRITON_OVERRIDE_ARCH="sm75", DISABLE_LLVM_OPT="1")
    seen = set(output.split())
    assert "TRITON_DISABLE_LINE_INFO" in seen
    assert not seen & {"PTXAS_OPTIONS", "TRITON_OVERRIDE_ARCH", "DISABLE_LLVM_OPT"}


def test_another_folder_another_seed_and_knobs_in_the_environment_give_the_same_bytes(tmp_path, built):
    tree = Tree(tmp_path / "a folder of another name")
    script = """
        import hashlib, pathlib
        from aot.build.compile import compile_variant, isolate
        from aot.build.toolchain import tool
        from aot.spec.variants import variants
        isolate(tool("ptxas"), pathlib.Path("scratch").resolve())
        wanted = [v for v in variants([80, 90]) if v.kernel == "pack" or v.layout == "nt" and v.dtype == "bf16"]
        by_kernel = {(v.kernel, v.sm): v for v in wanted if v.sm == 90}
        for variant in by_kernel.values():
            print(variant.name, hashlib.sha256(compile_variant(variant).cubin).hexdigest())
    """
    printed = tree.python(script, PYTHONHASHSEED="11", PTXAS_OPTIONS="-O0", DISABLE_LLVM_OPT="1", TZ="Asia/Tokyo")
    hashes = dict(line.split() for line in printed.splitlines())
    assert len(hashes) >= 3
    assert hashes == {name: built[name]["cubin"]["sha256"] for name in hashes}
