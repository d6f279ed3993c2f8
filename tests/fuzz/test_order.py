"""Walks on the CPU: whatever the library asks of the driver must be in an order that no GPU can make wrong."""

import json

import pytest

from faults.fake_driver import Ran
from fuzz.actions import walk
from fuzz.order import Order, OutOfOrder
from fuzz.order_runs import SCRIPT, judged, least_failure, order_again
from fuzz.scenarios import BACKWARD, CALL, CAPTURE, FORWARD, PROBLEMS, REPLAY

STEPS = 150


@pytest.mark.parametrize("sm", [90, 80])
@pytest.mark.parametrize("seed", range(8))
def test_a_walk_reads_lists_that_are_written_and_kept(fake_cuda, tmp_path, seed, sm):
    actions = walk(seed, STEPS, devices=2, fp8=sm >= 90)
    failed, _ = judged(fake_cuda, tmp_path, actions, FAKE_CUDA_SM=sm)
    if failed:
        pytest.fail(f"{failed}\n{least_failure(fake_cuda, tmp_path, actions, sm)}\n{order_again(seed, STEPS, sm)}")


LISTS = {"hopper": 20, "basic": 40, "tma": 40}


def made(groups: int) -> dict:
    return {
        "do": "make", "p": 1, "kind": "list", "dtype": "fp16", "out": "fp16", "layout": "nn", "view": "aligned",
        "out_order": "n", "device": 0, "stream": 0, "data": {"seed": 1, "normal": False},
        "classes": [[64, 64, 64, groups]], "order": 1,
    }  # fmt: skip


def planned(family: str, stream: int, **others) -> dict:
    return {"do": "plan", "q": 1, "p": 1, "with_out": True, "family": family, "pick": 0, "stream": stream, **others}


def on_one_stream(fake_cuda, tmp_path, family: str) -> Ran:
    """A list in device memory, made and run twice on one stream: right, as nothing else is there."""
    path = tmp_path / "actions.json"
    run = {"do": "run", "q": 1, "stream": 0}
    path.write_text(json.dumps([made(LISTS[family]), planned(family, 0), run, run, {"do": "drop", "q": 1}]))
    ran = fake_cuda.run(f"from fuzz import order_backend\nreport(order_backend.run_file({str(path)!r}))")
    assert Order().check(ran.calls).checked == 2
    return ran


def place(calls: list[dict], wanted: str, last: bool = False) -> int:
    places = [i for i, call in enumerate(calls) if call.get("symbol", call["call"]) == wanted]
    return places[-1 if last else 0]


def two_layers(fake_cuda, tmp_path) -> Ran:
    """Two calls on one stream in its workspace: right, as nothing else is there."""
    path = tmp_path / "actions.json"
    make = {
        "do": "make", "p": 1, "kind": "layer", "dtype": "bf16", "out": "bf16", "layout": "nt", "view": "aligned",
        "out_order": "n", "device": 0, "stream": 0, "data": {"seed": 1, "normal": False}, "rows": 40, "k": 2,
        "experts": 4, "hidden": 64, "inner": 64, "activation": "swiglu", "gate_up": "gate_first", "bias": True,
        "on_input": False, "invariant": False,
    }  # fmt: skip
    call = {"do": "call", "p": 1, "with_out": True, "family": None, "pick": 1, "stream": 0}
    path.write_text(json.dumps([make, call, call]))
    ran = fake_cuda.run(f"from fuzz import order_backend\nreport(order_backend.run_file({str(path)!r}))")
    assert ran.reported == [{"problems": 1, "fused_experts": 2}]
    return ran


def test_calls_on_one_stream_may_share_a_workspace(fake_cuda, tmp_path):
    assert Order().check(two_layers(fake_cuda, tmp_path).calls).in_workspaces >= 4


@pytest.mark.parametrize("symbol", ["route_place", "combine"])
def test_the_judge_sees_a_workspace_on_two_streams(fake_cuda, tmp_path, symbol):
    calls = two_layers(fake_cuda, tmp_path).calls
    calls[place(calls, symbol, last=True)]["stream"] = 0x1003
    with pytest.raises(OutOfOrder, match=f"the workspace of {symbol} is"):
        Order().check(calls)


@pytest.mark.parametrize("family", LISTS)
def test_the_judge_sees_a_launch_on_another_stream(fake_cuda, tmp_path, family):
    calls = on_one_stream(fake_cuda, tmp_path, family).calls
    calls[place(calls, family, last=True)]["stream"] = 0x1003
    with pytest.raises(OutOfOrder, match="reads a list that stream 0x1000 uploads; nothing orders it before"):
        Order().check(calls)


@pytest.mark.parametrize("family", LISTS)
def test_the_judge_sees_a_list_that_is_not_complete(fake_cuda, tmp_path, family):
    calls = on_one_stream(fake_cuda, tmp_path, family).calls
    del calls[place(calls, "pack", last=True)]
    with pytest.raises(OutOfOrder, match="reads a list that was not uploaded"):
        Order().check(calls)


def test_the_judge_sees_a_list_of_other_matrices(fake_cuda, tmp_path):
    calls = on_one_stream(fake_cuda, tmp_path, "hopper").calls
    expected = calls[place(calls, "fake_expect", last=True)]
    expected["pairs"][3][0] += 64
    with pytest.raises(OutOfOrder, match="other matrices than those of problem 1"):
        Order().check(calls)


def test_the_judge_sees_memory_that_goes_while_it_is_read(fake_cuda, tmp_path):
    calls = on_one_stream(fake_cuda, tmp_path, "basic").calls
    launch = place(calls, "basic", last=True)
    record = {"call": "cuEventRecord", "event": 901, "stream": 0x1000, "flags": 0}
    wait = {"call": "cuStreamWaitEvent", "event": 901, "stream": 0x1003, "flags": 0, "answer": 0}
    calls[launch]["stream"] = 0x1003
    calls[launch:launch] = [record, wait]  # now the list is there, but its memory goes back to the other stream
    with pytest.raises(OutOfOrder, match="given back to stream 0x1000 while basic on stream 0x1003 may still use it"):
        Order().check(calls)


def test_the_judge_sees_a_list_that_is_written_again_too_early(fake_cuda, tmp_path):
    calls = on_one_stream(fake_cuda, tmp_path, "basic").calls
    launch, upload = place(calls, "basic"), place(calls, "pack")
    record = {"call": "cuEventRecord", "event": 901, "stream": 0x1000, "flags": 0}
    wait = {"call": "cuStreamWaitEvent", "event": 901, "stream": 0x1003, "flags": 0, "answer": 0}
    calls[launch]["stream"] = 0x1003
    calls[launch : launch + 1] = [record, wait, calls[launch], dict(calls[upload])]
    with pytest.raises(OutOfOrder, match="written again while basic on stream 0x1003 may still read it"):
        Order().check(calls)


def test_the_judge_sees_scratch_memory_that_earlier_work_may_use(fake_cuda, tmp_path):
    calls = on_one_stream(fake_cuda, tmp_path, "tma").calls
    busy = dict(calls[place(calls, "pack")], stream=0x1001)
    allocations = [i for i, call in enumerate(calls) if call["call"] == "fake_allocate"]
    calls[allocations[-1]]["stream"] = 0x1001  # of the descriptors, behind work on a stream of their own
    calls.insert(allocations[-1], {"call": "cuEventRecord", "event": 901, "stream": busy["stream"], "flags": 0})
    with pytest.raises(OutOfOrder, match="scratch memory of tma is in memory that was allocated on stream 0x1001"):
        Order().check(calls)


def test_a_replay_reads_what_was_uploaded_in_the_graph(fake_cuda, tmp_path):
    """And where the upload is taken out of the graph, the judge sees that."""
    call = {"do": "call", "p": 1, "with_out": True, "family": "hopper", "pick": 0}
    capture = {"do": "capture", "g": 1, "device": 0, "stream": 1, "calls": [call, call]}
    actions = [made(20), capture, {"do": "replay", "g": 1, "stream": 2, "times": 2, "fills": []}]
    failed, counts = judged(fake_cuda, tmp_path, actions)
    assert failed is None and counts["lists read from memory"] == 4
    path = str(tmp_path / "actions.json")
    ran = fake_cuda.run(f"from fuzz import order_backend\nreport(order_backend.run_file({path!r}))")
    del ran.calls[place(ran.calls, "pack", last=True)]
    with pytest.raises(OutOfOrder, match="not uploaded"):
        Order().check(ran.calls)


# Rows of both are gathered, one by a launch; multiplied in parts, added up to what was there.
RAGGED_K = PROBLEMS["ragged_k"] | {"rows": 60_000, "index": "ab"}
PARTS = ["gather", "hopper_ragged_k", "add_parts"]


def calls_of(fake_cuda, tmp_path, actions: list[dict]) -> list[dict]:
    path = tmp_path / "actions.json"
    path.write_text(json.dumps(actions))
    return fake_cuda.run(SCRIPT.format(path=str(path))).calls


def twice_in_parts(fake_cuda, tmp_path) -> list[dict]:
    """Two calls of three launches, on two streams: right, as the caller orders them."""
    actions = [RAGGED_K, CALL | {"stream": 1}, CALL | {"stream": 2}]
    calls = calls_of(fake_cuda, tmp_path, actions)
    assert [call["symbol"] for call in calls if call.get("symbol") in PARTS] == 2 * PARTS
    assert Order().check(calls).products == 6
    return calls


@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        ("gather", "hopper_ragged_k reads what gather on stream 0x1003 writes"),
        ("hopper_ragged_k", "hopper_ragged_k reads what gather on stream 0x1002 writes"),
        ("add_parts", "add_parts reads what hopper_ragged_k on stream 0x1002 writes"),
    ],
)
def test_the_judge_sees_a_part_of_a_product_on_another_stream(fake_cuda, tmp_path, symbol, said):
    calls = twice_in_parts(fake_cuda, tmp_path)
    calls[place(calls, symbol, last=True)]["stream"] = 0x1003
    with pytest.raises(OutOfOrder, match=said):
        Order().check(calls)


def test_the_judge_sees_a_wait_that_is_left_out(fake_cuda, tmp_path):
    """Of the second call, whose outputs the first one adds to."""
    calls = twice_in_parts(fake_cuda, tmp_path)
    waits = [i for i, call in enumerate(calls) if call["call"] == "cuStreamWaitEvent" and call["stream"] == 0x1002]
    for wait in reversed(waits):
        del calls[wait]
    with pytest.raises(OutOfOrder, match="hopper_ragged_k reads|on stream 0x1001 may still use"):
        Order().check(calls)


def test_the_judge_sees_memory_between_launches_that_goes_too_early(fake_cuda, tmp_path):
    calls = twice_in_parts(fake_cuda, tmp_path)
    gather, last = place(calls, "gather", last=True), place(calls, "add_parts", last=True)
    freed = [i for i, call in enumerate(calls) if call["call"] == "fake_free" and i > last]
    scratch = next(i for i in freed if calls[i]["stream"] == 0x1002)
    calls.insert(gather + 1, calls.pop(scratch))
    with pytest.raises(OutOfOrder, match="in memory that was freed"):
        Order().check(calls)


def test_the_judge_follows_products_of_a_graph(fake_cuda, tmp_path):
    actions = [RAGGED_K, CAPTURE | {"calls": [CALL, CALL]}, REPLAY | {"times": 2}]
    assert Order().check(calls_of(fake_cuda, tmp_path, actions)).products == 6, "one call, as its outputs are added to"


def trained(fake_cuda, tmp_path, name: str) -> list[dict]:
    """A forward, and a backward on another stream: right, as torch's engine orders them."""
    actions = [PROBLEMS[name], FORWARD, BACKWARD | {"again": True}, BACKWARD | {"stream": 3}]
    calls = calls_of(fake_cuda, tmp_path, actions)
    Order().check(calls)
    return calls


@pytest.mark.parametrize("name", ["layer", "ragged", "ragged_k, plain", "ragged_n", "stack", "list"])
def test_backward_passes_stay_on_the_stream_of_their_forward(fake_cuda, tmp_path, name):
    calls = trained(fake_cuda, tmp_path, name)
    launched = [call for call in calls if call["call"] == "cuLaunchKernelEx"]
    assert len(launched) >= 5 and {call["stream"] for call in launched} == {0x1001}


@pytest.mark.parametrize("symbol", ["hopper_kept", "activation_gradient", "hopper_ragged_k"])
def test_the_judge_sees_a_backward_of_a_layer_that_is_not_ordered(fake_cuda, tmp_path, symbol):
    calls = trained(fake_cuda, tmp_path, "layer")
    calls[place(calls, symbol, last=True)]["stream"] = 0x1002
    with pytest.raises(
        OutOfOrder, match="on stream 0x100[12] (writes|may still use)|work from before may still use it"
    ):
        Order().check(calls)
