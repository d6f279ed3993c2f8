"""aot/artifacts.lock: what was built has the machine code that was reviewed, and the lock says so when it has not."""

import json

import pytest
from builder_sandbox import Tree

from aot.emit import artifact_lock
from aot.emit.artifact_lock import Lock, LockError, differences, lock_text, read_lock, updated

ADVICE = "if the change is meant, run `make lock-artifacts` and say in the commit what changed the machine code"

FIRST, SECOND, OTHER = "hopper_sm90_bf16_nn_a16_1", "hopper_sm90_bf16_nn_a16_2", "pack_sm80"
NAMES = {FIRST, SECOND, OTHER}


def lock(triton="3.9.0", **changes) -> Lock:
    images = {FIRST: {"cubin": "11"}, SECOND: {"cubin": "22"}, OTHER: {"cubin": "33", "ptx": "44"}}
    return Lock(triton, "12.9.86", {name: found for name, found in (images | changes).items() if found})


def kept() -> Lock:
    return read_lock(artifact_lock.PATH.read_text())


def test_the_lock_names_what_the_tables_ask_for():
    """Needs no build: a new config, or one that is gone, changes the lock as well."""
    assert kept().images.keys() == artifact_lock.expected(), ADVICE


def test_what_was_built_is_the_locked_machine_code(generated):
    built = artifact_lock.of_manifest(json.loads((generated / "manifest.json").read_text()))
    problems = differences(kept(), built, artifact_lock.expected())
    assert not problems, "\n".join([*problems, ADVICE])


def test_the_file_is_sorted_and_as_the_command_writes_it():
    text = artifact_lock.PATH.read_text()
    assert lock_text(read_lock(text)) == text
    names = [line.split()[0] for line in text.splitlines()[3:]]
    assert names == sorted(names)


def test_text_and_back():
    assert read_lock(lock_text(lock())) == lock()


def test_changed_code_is_told_with_the_names():
    (problem,) = differences(lock(), lock(**{FIRST: {"cubin": "99"}}), NAMES)
    assert problem == f"hopper_sm90: 1 of 2 have other machine code: {FIRST}"
    (problem,) = differences(lock(), lock(**{OTHER: {"cubin": "33", "ptx": "99"}}), NAMES)
    assert problem == f"pack_sm80: 1 of 1 have other machine code: {OTHER}"


def test_many_changed_artifacts_of_a_kernel_are_one_line():
    many = {f"tma_sm90_{number}": {"cubin": "1"} for number in range(9)}
    (problem,) = differences(lock(**many), lock(**{name: {"cubin": "2"} for name in many}), NAMES | many.keys())
    assert problem.startswith("tma_sm90: 9 of 9 have") and problem.endswith("tma_sm90_2 and 6 more")


def test_a_new_artifact_and_one_that_is_gone_are_told():
    assert differences(lock(**{FIRST: None}), lock(), NAMES) == [f"hopper_sm90: 1 of 2 are not in the lock: {FIRST}"]
    (problem,) = differences(lock(), lock(**{FIRST: None}), NAMES - {FIRST})
    assert problem == f"hopper_sm90: 1 of 2 are in the lock and no longer built: {FIRST}"


def test_another_compiler_is_told():
    (problem,) = differences(lock(), lock("3.10.0"), NAMES)
    assert problem == "the lock is of Triton 3.9.0, ptxas 12.9.86, the build of Triton 3.10.0, ptxas 12.9.86"


def test_a_build_of_some_kernels_is_compared_alone_and_keeps_the_others():
    part = Lock("3.9.0", "12.9.86", {OTHER: {"cubin": "33", "ptx": "44"}})
    assert differences(lock(), part, NAMES) == []
    part.images[OTHER]["cubin"] = "99"
    assert len(differences(lock(), part, NAMES)) == 1
    assert updated(lock(), part, NAMES) == lock(**{OTHER: {"cubin": "99", "ptx": "44"}})
    assert updated(lock(), part, NAMES - {FIRST}).images.keys() == {SECOND, OTHER}


@pytest.mark.parametrize("before, reason", [(lock("3.10.0"), "build every kernel first"), (None, "was never built")])
def test_a_build_of_some_kernels_cannot_make_a_lock_of_two_compilers_or_with_gaps(before, reason):
    with pytest.raises(LockError, match=reason):
        updated(before, Lock("3.9.0", "12.9.86", {OTHER: {"cubin": "33"}}), NAMES)


def test_other_architectures_than_those_of_the_wheel_are_left_out():
    entry = {"cubin": {"sha256": "11", "bytes": 2}}
    artifacts = {"a_sm90": entry | {"sm": 90}, "a_sm120": entry | {"sm": 120}}
    manifest = {"triton": "3.9.0", "ptxas": "12.9.86", "artifacts": artifacts}
    assert artifact_lock.of_manifest(manifest).images == {"a_sm90": {"cubin": "11"}}


@pytest.mark.compiler
def test_the_command_tells_a_change_and_accepts_it(tmp_path):
    tree = Tree(tmp_path)
    tree.stand_in()
    assert tree.run("build", "-q")[0] == 0
    code, output = tree.run("lock")
    assert code == 1 and "pack_sm80: 1 of 1 have other machine code: pack_sm80" in output and "lock --update" in output
    assert tree.run("lock", "--update") == (0, "")
    assert tree.run("lock") == (0, "")
