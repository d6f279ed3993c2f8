"""Walks over the state of a process, for a minute; and what they must find when it is planted."""

import json

import child
import pytest

torch = pytest.importorskip("torch")

RUN = """
import runpy, sys
sys.argv = ["fuzz", *{arguments!r}]
runpy.run_module("fuzz", run_name="__main__")
"""


def fuzz(*arguments, timeout: float) -> tuple[int, str]:
    return child.finish(child.start(RUN.format(arguments=list(map(str, arguments)))), timeout)


def test_a_minute_of_walks_finds_nothing(tmp_path):
    seconds = ("--seconds", 60, "--shrink-seconds", 60)
    status, output = fuzz("run", "--seed", 1000, *seconds, "--out", tmp_path, timeout=400)
    assert status == 0 and "nothing was found" in output, output
    print(output)


FOUND = {
    "result": "wrong products",
    "unwritten": "wrong products",
    "stray": "bytes around the outputs were written",
    "input": "inputs were changed",
    "fault": "device-side assert|CUDA error|the process died",
}


def a_list(groups: int) -> dict:
    return {
        "do": "make", "p": 1, "kind": "list", "dtype": "fp16", "out": "fp16", "layout": "nn", "view": "aligned",
        "out_order": "n", "device": 0, "stream": 0, "data": {"seed": 1, "normal": False},
        "classes": [[64, 64, 64, groups]], "order": 1,
    }  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
@pytest.mark.parametrize("where", ["call", "replay"])
def test_a_planted_fault_is_found(tmp_path, what, where):
    call = {"do": "call", "p": 1, "with_out": True, "family": None}
    capture = {"do": "capture", "g": 1, "device": 0, "stream": 1, "calls": [call]}
    plant = {"do": "plant", "what": what}
    ends = {"call": [plant, call | {"stream": 2}],
            "replay": [capture, plant, {"do": "replay", "g": 1, "stream": 2, "times": 1, "fills": []}]}  # fmt: skip
    right = [action for action in [a_list(20), *ends[where]] if action is not plant]
    path = tmp_path / "actions.json"
    path.write_text(json.dumps(right))
    status, output = fuzz("again", path, timeout=180)
    assert status == 0 and "nothing was found" in output, output
    path.write_text(json.dumps([a_list(20), *ends[where]]))
    status, output = fuzz("again", path, timeout=180)
    assert status == 1 and any(word in output for word in FOUND[what].split("|")), output


def test_a_walk_tells_what_it_did():
    status, output = fuzz("--only", "--seed", 3, "--steps", 50, timeout=180)
    assert status == 0 and "50 actions: nothing was found" in output, output
