"""Walks as data: the same from the same seed, whole in every part, small where they fail."""

import itertools
import json

import pytest

from fuzz.actions import walk
from fuzz.layouts import clamped_ends, group_ends, layouts
from fuzz.shrink import shrunk


def test_a_seed_says_all_that_a_walk_does():
    assert walk(5, 200, devices=2) == walk(5, 200, devices=2) != walk(6, 200, devices=2)
    assert json.loads(json.dumps(walk(5, 200))) == walk(5, 200)


@pytest.mark.parametrize("culprits", [[41], [17, 60], [3, 40, 41, 99]])
def test_shrinking_leaves_what_fails_and_nothing_else(culprits):
    actions = [action | {"number": number} for number, action in enumerate(walk(1, 100))]  # no two are alike
    wanted = [actions[i] for i in culprits]
    tried = []

    def fails(part):
        tried.append(part)
        return all(action in part for action in wanted)

    assert shrunk(actions, fails, 60) == wanted
    assert len(tried) < 150


def test_shrinking_reaches_into_captures():
    capture = {"do": "capture", "g": 1, "device": 0, "stream": 1, "calls": [{"do": "call", "p": p} for p in range(6)]}
    actions = [{"do": "settle"}, capture, {"do": "settle"}]

    def fails(part):
        return any({"do": "call", "p": 4} in action.get("calls", ()) for action in part)

    assert shrunk(actions, fails, 60) == [capture | {"calls": [{"do": "call", "p": 4}]}]


def spans(stacks) -> list[tuple[int, int]]:
    return [
        (start, start + sum((extent - 1) * stride for extent, stride in zip(stack.shape, stack.strides)) + 1)
        for stack in stacks
        for start in range(stack.start, stack.start + stack.count * stack.pitch, stack.pitch)
    ]


def test_matrices_lie_apart_and_inside_their_block():
    made = [action for seed in range(30) for action in walk(seed, 60) if action["do"] == "make"]
    assert {spec["view"] for spec in made} == {"aligned", "odd", "strided"}
    for spec in made:
        A, B, in_bytes, C, out_bytes = layouts(spec)
        for stacks, size, dtype in ((A + B, in_bytes, spec["dtype"]), (C, out_bytes, spec["out"])):
            element = {"fp16": 2, "bf16": 2, "e4m3": 1, "fp32": 4}[dtype]
            ends = sorted(spans(stacks))
            assert ends[0][0] * element >= 512 and ends[-1][1] * element + 16 <= size
            assert all(end + 16 // element <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_walks_have_lists_on_both_sides_of_what_parameters_hold():
    made = [action for seed in range(120) for action in walk(seed, 60) if action["do"] == "make"]
    groups = [sum(entry[3] for entry in spec["classes"]) for spec in made if spec["kind"] == "list"]
    for low, high in ((1, 8), (9, 32), (33, 80), (300, 700)):
        assert any(low <= count <= high for count in groups), (low, high)


@pytest.mark.parametrize("seed", range(20))
def test_ends_of_groups(seed):
    spec = {"rows": 50, "experts": 6}
    ends = clamped_ends(group_ends(spec, seed), spec["rows"])
    assert ends == sorted(ends) and ends[0] >= 0 and ends[-1] <= 50


def test_walks_come_to_every_form_with_each_kind_of_scales():
    made = [action for seed in range(120) for action in walk(seed, 60) if action["do"] == "make"]
    modes = {"ragged": ("", "tensor", "row", "block"), "ragged_k": ("tensor", "block")}
    modes["stack"] = modes["ragged"]
    for kind, wanted in modes.items():
        assert {s["scales"] for s in made if (s["kind"], s["dtype"]) == (kind, "e4m3")} == set(wanted), kind
    assert not [s for s in made if s["dtype"] != "e4m3" and s.get("scales")]


def test_walks_come_to_every_form_and_to_backward_passes():
    seen = [action for seed in range(30) for action in walk(seed, 60)]
    kinds = {action["kind"] for action in seen if action["do"] == "make"}
    assert kinds == {"list", "ragged", "layer", "ragged_k", "ragged_n", "stack"}
    inner = [call for action in seen for call in action.get("calls", ())]
    assert {action["do"] for action in seen} > {"forward", "backward", "forget"}
    assert {call["do"] for call in inner} == {"call", "plan", "run", "drop", "train"}
