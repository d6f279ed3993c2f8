"""Walks over the state of a process, for a minute; and what they must find when it is planted."""

import json

import pytest

import fresh_process
from fuzz.scenarios import scenarios

torch = pytest.importorskip("torch")

RUN = """
import runpy, sys
sys.argv = ["fuzz", *{arguments!r}]
runpy.run_module("fuzz", run_name="__main__")
"""


def fuzz(*arguments, timeout: float) -> tuple[int, str]:
    return fresh_process.finish(fresh_process.start(RUN.format(arguments=list(map(str, arguments)))), timeout)


def test_a_minute_of_walks_finds_nothing(tmp_path):
    seconds = ("--seconds", 60, "--shrink-seconds", 60)
    status, output = fuzz("run", "--seed", 1000, *seconds, "--out", tmp_path, timeout=400)
    assert status == 0 and "nothing was found" in output, output
    print(output)


CALL = {"do": "call", "p": 1, "with_out": True, "family": None}
CAPTURE = {"do": "capture", "g": 1, "device": 0, "stream": 1, "calls": [CALL]}
REPLAY = {"do": "replay", "g": 1, "stream": 2, "times": 1, "fills": []}
ENDS = {"call": [CALL | {"stream": 2}], "replay": [CAPTURE, REPLAY]}


def a_list(groups: int) -> dict:
    return {
        "do": "make", "p": 1, "kind": "list", "dtype": "fp16", "out": "fp16", "layout": "nn", "view": "aligned",
        "out_order": "n", "device": 0, "stream": 0, "data": {"seed": 1, "normal": False},
        "classes": [[64, 64, 64, groups]], "order": 1,
    }  # fmt: skip


def again(folder, actions: list[dict]) -> tuple[int, str]:
    path = folder / "actions.json"
    path.write_text(json.dumps(actions))
    return fuzz("again", path, timeout=180)


@pytest.mark.parametrize("where", ENDS)
def test_what_is_right_is_let_pass(tmp_path, where):
    status, output = again(tmp_path, [a_list(20), *ENDS[where]])
    assert status == 0 and "nothing was found" in output, output


@pytest.mark.parametrize(
    "what, where, said",
    [
        ("result", "call", "wrong products"),
        ("unwritten", "replay", "wrong products"),
        ("stray", "replay", "bytes around the outputs were written"),
        ("input", "call", "inputs were changed"),
        ("fault", "replay", "CUDA error"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, what, where, said):
    status, output = again(tmp_path, [a_list(20), {"do": "plant", "what": what}, *ENDS[where]])
    assert status == 1 and said in output, output


SCENARIOS = """
import json
from fuzz import workers
from fuzz.cuda_backend import CudaBackend
from fuzz.scenarios import scenarios
workers.prepare()
for name, scenario in scenarios().items():
    CudaBackend.lanes.clear()
    try:
        workers.carry_out(scenario.actions, {})
        found = None
    except AssertionError as error:
        found = str(error)
    print(json.dumps([name, found]), flush=True)
"""


def test_faults_of_other_forms_and_of_backward_passes_are_found():
    """And where none is planted none is found."""
    status, output = fresh_process.finish(fresh_process.start(SCENARIOS), 400)
    found = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
    assert status == 0 and found.keys() == scenarios().keys(), output
    for name, scenario in scenarios().items():
        assert (found[name] is None) == (scenario.said is None), (name, found[name])
        assert scenario.said is None or scenario.said in found[name], (name, found[name])


def test_a_walk_tells_what_it_did():
    status, output = fuzz("--only", "--seed", 3, "--steps", 50, timeout=180)
    assert status == 0 and "50 actions: nothing was found" in output, output
