"""Which arguments go with arrays alone, as `grouped_mm` takes them."""

from typing import Any

_DEFAULTS = {"batch_invariant": False, "gate_up": "gate_first", "alpha": 1.0, "beta": 0.0, "k_alignment": 1}


def refuse_with_lists(caller: str, **arguments: Any) -> None:
    """Raises ValueError for the first argument that is given: that is neither None nor what it is by default."""
    for name, value in arguments.items():
        default = _DEFAULTS.get(name)
        if value is None or (isinstance(value, (bool, int, float, str)) and value == default):
            continue
        raise ValueError(f"{caller}: {name} goes with arrays, as grouped_mm takes them; lists have no such thing")
