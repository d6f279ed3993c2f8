"""Short walks with a fault in them that must be found, for each backend that computes; and the same without one."""

from dataclasses import dataclass


def made(kind: str, **facts) -> dict:
    return {
        "do": "make", "p": 1, "kind": kind, "dtype": "bf16", "out": "bf16", "layout": "nn", "view": "aligned",
        "out_order": "n", "device": 0, "stream": 0, "data": {"seed": 1, "normal": False}, **facts,
    }  # fmt: skip


# Outputs that are added to, of columns by an index, by factors on the device; and stacks whose counts change.
RAGGED_K = made(
    "ragged_k", out="fp32", layout="tn", experts=4, m=64, n=64, rows=1000, index="a", sources=60, wide_index=False,
    alpha=0.5, beta=1.0, on_device=True,
)  # fmt: skip
OF_E4M3 = {"dtype": "e4m3", "layout": "nt", "scales": "block", "k_alignment": 128}
SCALED_K = RAGGED_K | OF_E4M3 | {"index": "", "rows": 1008}
MASKED_STACK = made("stack", experts=4, m=64, n=64, k=64, bias=False, masked=True)
PROBLEMS = {
    "ragged_k": RAGGED_K,
    "ragged_k, plain": RAGGED_K | {"out": "bf16", "index": "", "alpha": 1.0, "beta": 0.0, "on_device": False},
    "ragged_k, scaled": SCALED_K,
    "ragged_n": made("ragged_n", experts=4, m=64, k=64, rows=200),
    "stack": MASKED_STACK | {"masked": False, "bias": True},
    "masked": MASKED_STACK,
    "ragged": made("ragged", rows=200, n=64, k=64, experts=4, bias=True),
    "list": made("list", classes=[[64, 64, 64, 20]], order=1),
    "layer": made(
        "layer", rows=40, k=2, experts=4, hidden=64, inner=64, activation="swiglu", gate_up="gate_first", bias=True,
        on_input=False, invariant=False, main=True, layout="nt",
    ),
}  # fmt: skip
WITH_GRADIENTS = ["list", "ragged", "ragged_k, plain", "ragged_n", "stack", "layer"]

CALL = {"do": "call", "p": 1, "with_out": True, "family": None}
CAPTURE = {"do": "capture", "g": 1, "device": 0, "stream": 1, "calls": [CALL]}
OTHER_DATA = {"seed": 5, "normal": False}
REPLAY = {"do": "replay", "g": 1, "stream": 2, "times": 1, "fills": []}
REFILLED = REPLAY | {"fills": [[1, OTHER_DATA]], "times": 2}
FORWARD = {"do": "forward", "t": 1, "p": 1, "wants": "abc", "drops": True, "main": False, "stream": 1}
BACKWARD = {"do": "backward", "t": 1, "seed": 7, "again": False, "stream": 2}
TRAIN = {"do": "train", "p": 1, "wants": "abc", "drops": True, "main": False, "seed": 7}
BUSY = {"do": "busy", "stream": 1, "device": 0, "cycles": 4_000_000}
FILL = {"do": "fill", "p": 1, "stream": 3, "data": OTHER_DATA}

CALLED = [CAPTURE, REPLAY, REFILLED]
TRAINED = {
    "eager": [BUSY, FORWARD, BACKWARD | {"again": True, "stream": 3}, BACKWARD],
    "graph": [CAPTURE | {"calls": [TRAIN]}, REPLAY, REFILLED],
}
INTO_MAIN = {
    "eager": [BUSY, FORWARD | {"main": True}, BACKWARD | {"again": True, "stream": 3}, BACKWARD],
    "graph": [CAPTURE | {"calls": [TRAIN | {"main": True}]}, REPLAY, REFILLED],
}


@dataclass
class Scenario:
    actions: list[dict]
    said: str | None  # of a fault that is in them


def planted(actions: list[dict], what: str | None) -> list[dict]:
    """With a fault in what the last action does."""
    return [*actions[:-1], {"do": "plant", "what": what}, actions[-1]] if what else actions


def scenarios() -> dict[str, Scenario]:
    found = {}
    for name in ("ragged_k", "ragged_k, scaled", "ragged_n", "stack", "masked"):
        for what, said in ((None, None), ("unwritten", "wrong products"), ("stray", "bytes around the outputs")):
            found[f"{name}, {what}"] = Scenario([PROBLEMS[name], *planted(CALLED, what)], said)
    for name in WITH_GRADIENTS:
        for where, actions in TRAINED.items():
            for what, said in ((None, None), ("gradient", "wrong gradient of"), ("input", "inputs were changed")):
                found[f"{name} {where}, {what}"] = Scenario([PROBLEMS[name], *planted(actions, what)], said)
    for where, actions in INTO_MAIN.items():
        for what, said in ((None, None), ("main", "wrong gradient of w2")):
            found[f"main gradients {where}, {what}"] = Scenario([PROBLEMS["layer"], *planted(actions, what)], said)
    past = Scenario([PROBLEMS["masked"], *planted(CALLED, "past counts")], "wrong products")
    found["masked, rows past the counts"] = past
    return found | {"filled in between": Scenario([PROBLEMS["layer"], FORWARD, FILL, BACKWARD], None)}
