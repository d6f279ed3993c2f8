"""From a walk that fails to the least part of it that still does: delta debugging (Zeller, Hildebrandt 2002)."""

import json
import time
from collections.abc import Callable

Fails = Callable[[list[dict]], bool]


def shrunk(actions: list[dict], fails: Fails, seconds: float) -> list[dict]:
    """The actions that remain after `seconds`; first whole actions go, then parts of them."""
    end = time.monotonic() + seconds
    known: dict[str, bool] = {}

    def still_fails(part: list[dict]) -> bool:
        text = json.dumps(part)
        if text not in known:
            known[text] = time.monotonic() < end and fails(part)
        return known[text]

    actions = minimized(actions, still_fails)
    actions = one_thread(actions, still_fails)
    for place in range(len(actions)):
        for name in ("calls", "fills"):
            if actions[place].get(name):
                actions = with_less(actions, place, name, still_fails)
    return actions


def one_thread(actions: list[dict], fails: Fails) -> list[dict]:
    """Walks of two threads: one of them will do where it fails alone."""
    for place, action in enumerate(actions):
        for inner in action.get("walks", ()):
            alone = actions[:place] + inner + actions[place + 1 :]
            if fails(alone):
                return minimized(alone, fails)
    return actions


def with_less(actions: list[dict], place: int, name: str, fails: Fails) -> list[dict]:
    def changed(items: list) -> list[dict]:
        return [*actions[:place], actions[place] | {name: items}, *actions[place + 1 :]]

    return changed(minimized(actions[place][name], lambda items: fails(changed(items))))


def minimized(items: list, fails: Callable[[list], bool]) -> list:
    """No run of items, down to single ones, can be left out any more; `items` fail."""
    parts = 2
    while items:
        size = max(len(items) // parts, 1)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items
