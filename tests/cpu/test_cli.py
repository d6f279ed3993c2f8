"""`python -m aot`: its verbs, their exit codes and what they print for programs."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from builder_sandbox import ROOT

from aot.emit.verify import verify
from aot.spec.variants import variants


def aot(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "aot", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_list_shows_every_variant_of_its_architectures(built):
    code, output, _ = aot("list", "--json")
    listed = json.loads(output)
    assert code == 0 and [entry["name"] for entry in listed] == sorted(built)
    assert set(built) == {variant.name for variant in variants({entry["sm"] for entry in built.values()})}
    code, output, _ = aot("list")
    assert code == 0 and len(re.findall(r"^(?:\w+) +sm_\d+ ", output, re.MULTILINE)) == len(built)


@pytest.mark.compiler
def test_inspect_shows_metadata_ptx_and_machine_code(built):
    name = next(name for name in built if name.startswith("pack_sm90"))
    code, output, _ = aot("inspect", name, "--json")
    assert code == 0 and json.loads(output) == {"name": name} | built[name]
    assert re.search(r"^registers +\d+$", aot("inspect", name)[1], re.MULTILINE)
    assert ".visible .entry pack(" in aot("inspect", name, "--ptx")[1]
    assert "EXIT" in aot("inspect", name, "--sass")[1]


def test_inspect_of_an_unknown_name_says_which_are_near():
    code, output, errors = aot("inspect", "pack_sm91")
    assert code == 1 and not output and "pack_sm90" in errors
    assert "nearest: hopper_ragged_sm90_" in aot("inspect", "hopper_ragged")[2]
    assert "list --json" in aot("inspect", "?")[2]


def test_verify_passes_what_was_built(built):
    code, output, _ = aot("verify", "--json")
    assert code == 0 and json.loads(output) == {"artifacts": len(built), "problems": []}


@pytest.mark.parametrize("arguments", [("build", "--arch", "75"), ("build", "-j", "0"), ("inspect",), ("mend",)])
def test_a_wrong_command_line_is_refused_with_code_2(arguments):
    assert aot(*arguments)[0] == 2


def test_nothing_but_the_compiler_imports_triton():
    script = "import aot.cli, aot.builder, aot.build.workers, sys; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.fixture
def copy(generated, tmp_path):
    return shutil.copytree(generated, tmp_path / "aot")


def edit_manifest(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(next(iter(manifest["artifacts"].values())))
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_verify_sees_a_flipped_bit(copy):
    image = copy / "images/pack_sm90.cubin"
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.write_bytes(data)
    assert verify(copy) == ["pack_sm90: pack_sm90.cubin is missing or does not match its hash"]


def test_verify_sees_a_missing_image(copy):
    (copy / "images/pack_sm80.ptx").unlink()
    assert verify(copy) == ["pack_sm80: pack_sm80.ptx is missing or does not match its hash"]


@pytest.mark.parametrize("name", ["launchers.c", "launchers.h", "images.S", "table.c"])
def test_verify_sees_a_changed_text_and_a_missing_one(copy, name):
    (copy / name).write_text((copy / name).read_text() + " ")
    problem = f"{name} is missing or does not match its hash in SHA256SUMS"
    assert verify(copy) == [problem]
    (copy / name).unlink()
    assert problem in verify(copy)


def test_verify_sees_a_file_that_is_not_of_the_build(copy):
    (copy / "images/other.cubin").write_bytes(b"other")
    assert verify(copy) == ["images/other.cubin is no file of this build"]


CHANGES = {
    "registers": lambda entry: entry.update(registers=1),
    "threads": lambda entry: entry["launch"].update(threads=32),
    "parameters": lambda entry: entry["parameters"][0].__setitem__(0, 8),
    "minimum driver": lambda entry: entry.update(minimum_driver=13000),
}


@pytest.mark.parametrize("what", CHANGES)
def test_verify_sees_a_manifest_that_is_not_of_these_cubins(copy, what):
    edit_manifest(copy, CHANGES[what])
    first, text, last = verify(copy)
    assert f": {what}: the cubin has" in first
    assert text == "manifest.json is missing or does not match its hash in SHA256SUMS"
    assert last == "table.c does not carry the hash of manifest.json: the two are of different builds"


def test_golden_check_fails_when_the_emitter_writes_other_text(tmp_path):
    from builder_sandbox import Tree

    tree = Tree(tmp_path)
    shutil.copytree(ROOT / "tests/cpu/golden", tmp_path / "tests/cpu/golden")
    assert tree.run("golden", "--check") == (0, "")
    template = tmp_path / "aot/emit/templates/launcher.c"
    template.write_text(template.read_text().replace(".gridDimY = 1", ".gridDimY = 2"))
    code, output = tree.run("golden", "--check")
    assert code == 1 and "+" in output and ".gridDimY = 2" in output
    assert tree.run("golden", "--update")[0] == 0
    assert tree.run("golden")[0] == 0
