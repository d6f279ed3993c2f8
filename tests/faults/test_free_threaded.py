"""Eight threads without a GIL, in an interpreter that has none: each launch brings what its own thread was given."""

import platform
import re
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from faults.fake_driver import SM_80
from faults.parameters import expected_record, list_arguments, ragged_arguments, read_list, read_ragged

ROOT = Path(__file__).resolve().parents[2]
THREADS, ROUNDS = 8, 40


@pytest.fixture(scope="module")
def interpreter():
    """The newest free-threaded one that is found here."""
    found = subprocess.run([ROOT / ".ci/pythons"], capture_output=True, text=True, check=True).stdout.split()
    without_gil = [python for python in found if python.endswith("t")]
    if not without_gil:
        pytest.skip("no free-threaded Python is found here")
    return without_gil[-1]


@pytest.fixture(scope="module")
def package(interpreter, tmp_path_factory):
    """gg_runtime as its wheel has it."""
    abi = "cp" + re.search(r"python([\d.]+t)$", interpreter)[1].replace(".", "")
    wheels = list((ROOT / "dist").glob(f"gg_runtime-*-{abi}-*_{platform.machine()}.whl"))
    if not wheels:
        pytest.skip(f"dist has no wheel for {interpreter}: make wheels")
    folder = tmp_path_factory.mktemp(abi)
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return folder / "gg_runtime"


def test_eight_threads_launch_what_each_was_given(fake_cuda, interpreter, package):
    ran = fake_cuda.run(f"""
        from threads import in_threads
        given = [None] * {THREADS}
        def work(number):
            A, B, out = operands([(16 + number, 64, 32), (8, 24 + number, 64)])
            mat_a, mat_b, offs = ragged(64 + number, 64, 64, 3)
            rows = matrix(64 + number, 64)
            plan = Plan(A, B, out=out)
            for _ in range({ROUNDS}):
                plan.run()
                assert group_gemm(A, B, out=out) == out
                assert grouped_mm(mat_a, mat_b, offs=offs, out=rows) is rows
                assert failure(group_gemm, [A[0]], [B[1]])["type"] == "ValueError"
            lists = [[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)]
            given[number] = lists, [array.address for array in (mat_a, mat_b, rows, offs)]
        in_threads(work, {THREADS})
        report(sys._is_gil_enabled())
        report(given)
    """, package=package, interpreter=interpreter, **SM_80)  # fmt: skip
    with_gil, given = ran.reported
    assert not with_gil, "a module that was imported has brought the GIL back"
    expected, found = Counter(), Counter()
    for lists, addresses in given:
        records = sorted((expected_record(*group) for group in lists), key=lambda record: -record["k"])
        expected[str(records)] = 2 * ROUNDS  # by the Plan and by group_gemm
        expected[str(addresses)] = ROUNDS
    for launch in ran.launches:
        if launch["symbol"] == "basic_ragged":
            record = read_ragged(ragged_arguments(launch).words, "basic_ragged")
            found[str([record[name] for name in ("a", "b", "c", "offs")])] += 1
        else:
            arguments = list_arguments(launch)
            found[str(read_list(arguments.words, arguments.groups)[1])] += 1
    assert found == expected
    assert len(set(ran.images.values())) == len(ran.images), "each image is loaded once"
