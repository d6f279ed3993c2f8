"""Walks against the fake driver, and the judgement of what they asked of it."""

import json
from pathlib import Path

from fuzz.order import Order, OutOfOrder
from fuzz.shrink import shrunk

SCRIPT = """
from fuzz import order_backend
report(order_backend.run_file({path!r}))
"""


def judged(fake, folder: Path, actions: list[dict], **settings) -> tuple[str | None, dict]:
    """What is wrong with the walk, or None, and how much of what it did. `fake`: faults.fake_driver.FakeDriver."""
    path = folder / "actions.json"
    path.write_text(json.dumps(actions))
    try:
        ran = fake.run(SCRIPT.format(path=str(path)), **settings)
    except AssertionError as error:  # the process ended with an exception
        return str(error).strip().splitlines()[-1], {}
    try:
        order = Order().check(ran.calls)
    except OutOfOrder as error:
        return str(error), {}
    counts = {"lists read from memory": order.checked, "launches with a workspace": order.in_workspaces}
    counts["grouped products and launches around them"] = order.products
    return None, ran.reported[0] | counts


def least_failure(fake, folder: Path, actions: list[dict], sm: int, seconds: float = 10) -> str:
    """The least part of a walk that still fails, and how."""

    def failure(part: list[dict]) -> str | None:
        return judged(fake, folder, part, FAKE_CUDA_SM=sm)[0]

    least = shrunk(actions, lambda part: bool(failure(part)), seconds)
    return "\n".join([*map(json.dumps, least), f"{len(least)} of {len(actions)} actions: {failure(least)}"])


def order_again(seed: int, steps: int, sm: int) -> str:
    arguments = f"order --seed {seed} --walks 1 --steps {steps} --sm {sm}"
    return f"run again: PYTHONSAFEPATH=1 PYTHONPATH=tests .venv/bin/python -m fuzz {arguments}"
