"""grouped_mm with wrong arguments: how its checks are asked, and what a refusal says."""

import pytest

import gg_runtime
from arrays import ragged


def arguments(rows=64, columns=48, depth=32, groups=3, **facts) -> dict:
    """A product of ragged rows that is taken."""
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, **facts)
    return {"mat_a": mat_a, "mat_b": mat_b, "offs": offs}


def check(mat_a, mat_b, **others) -> str:
    """All checks of grouped_mm, for arrays on the CPU: nothing is computed. Returns the dtype of the output."""
    return gg_runtime._C.grouped_mm(mat_a, mat_b, **others).out_dtype


def refused(kind, **given) -> str:
    with pytest.raises(kind) as caught:
        check(**given)
    assert type(caught.value) is kind and str(caught.value).startswith("grouped_mm: "), caught.value
    return str(caught.value)


def assert_says(text: str, *words: str) -> None:
    for word in words:
        assert word in text, f"{word!r} is missing in: {text}"


def assert_refused(given: dict, *words: str, kind=ValueError) -> None:
    assert_says(refused(kind, **given), *words)
