"""route and combine on the CPU path, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gg_runtime
from arrays import ExchangeArray, fresh_address, matrix

torch = pytest.importorskip("torch")
FRAMEWORKS = {"torch": torch.from_numpy, "numpy": np.asarray}


def frameworks():
    return pytest.mark.parametrize("make", FRAMEWORKS.values(), ids=FRAMEWORKS)


def brute_force(ids, experts, expert_map=None):
    """Slot by slot, in order."""
    chosen = [[] for _ in range(experts)]
    for number, expert in enumerate(ids.reshape(-1).tolist()):
        if expert_map is not None:
            expert = expert_map[expert] if 0 <= expert < len(expert_map) else -1
        if 0 <= expert < experts:
            chosen[expert].append(number)
    places = [number for expert in chosen for number in expert]
    inverse = [places.index(number) if number in places else -1 for number in range(ids.size)]
    slot = places + [-1] * (ids.size - len(places))
    token = [number // ids.shape[1] if number >= 0 else -1 for number in slot]
    return np.cumsum([len(expert) for expert in chosen]).tolist(), token, slot, inverse


@frameworks()
@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(0, 9), k=st.integers(0, 5), experts=st.integers(1, 6), data=st.data())
def test_slots_are_sorted_by_expert(make, tokens, k, experts, data):
    integer = data.draw(st.sampled_from([np.int32, np.int64]))
    values = data.draw(st.lists(st.integers(-3, experts + 2), min_size=tokens * k, max_size=tokens * k))
    ids = np.array(values, dtype=integer).reshape(tokens, k)
    known = data.draw(st.one_of(st.none(), st.lists(st.integers(-2, experts + 1), max_size=6)))
    expert_map = None if known is None else make(np.array(known, dtype=np.int32))
    routing = gg_runtime.route(make(ids), experts, expert_map)
    for got, want in zip(routing, brute_force(ids, experts, known)):
        assert str(got.dtype).endswith("int32") and got.reshape(-1).tolist() == want
    assert tuple(routing.inverse.shape) == (tokens, k)


def test_routing_has_names():
    assert gg_runtime.Routing._fields == ("ends", "token", "slot", "inverse")


@frameworks()
def test_sums_skip_what_is_dropped(make):
    y = np.array([[1, 2], [3, 4], [np.nan, np.nan]], dtype=np.float16)
    inverse = np.array([[0, 1], [1, -1], [7, -1]], dtype=np.int32)
    weights = np.array([[0.5, 2], [4, np.nan], [np.nan, np.nan]], dtype=np.float32)
    add = np.array([[1, 1], [1, 1], [1, 1]], dtype=np.float16)
    out = gg_runtime.combine(make(y), make(inverse), make(weights), add=make(add), scale=2.0)
    assert np.asarray(out).tolist() == [[14, 19], [25, 33], [1, 1]] and str(out.dtype).endswith("float16")
    given = make(np.zeros((3, 2), dtype=np.float16))
    assert gg_runtime.combine(make(y), make(inverse), out=given) is given
    assert np.asarray(given).tolist() == [[4, 6], [3, 4], [0, 0]]


def test_strides_of_what_is_empty_do_not_matter():
    y = torch.randn(64, 5).half().T[:0]
    sums = gg_runtime.combine(y, torch.full((3, 2), -1, dtype=torch.int32))
    assert y.is_contiguous() and y.stride() == (1, 5) and not sums.any()


def test_one_row_is_added_to_in_place_whatever_its_strides():
    """A single row has no stride to a second: that of an output cut from a wider buffer need not be its own."""
    y, inverse = torch.ones(2, 8).half(), torch.tensor([[0, 1]], dtype=torch.int32)
    out = torch.full((1, 8), 5.0).half()
    gg_runtime.combine(y, inverse, add=out.as_strided((1, 8), (999, 1)), out=out)
    assert out.eq(7).all()
    two = torch.zeros(2, 16).half()
    with pytest.raises(ValueError, match="out shares memory with add"):
        gg_runtime.combine(y, inverse.repeat(2, 1), add=two.view(4, 8)[:2], out=two[:, :8])


def test_no_rows_give_zeros():
    out = gg_runtime.combine(torch.empty(0, 3).half(), torch.full((2, 2), -1, dtype=torch.int32))
    assert out.tolist() == [[0, 0, 0]] * 2


IDS = torch.zeros(4, 2, dtype=torch.int64)
ROUTE_REFUSALS = {
    "a dtype that counts nothing": (TypeError, {"topk_ids": IDS.float()}, ["topk_ids", "float32", "int32 or int64"]),
    "one dimension": (ValueError, {"topk_ids": IDS[0]}, ["topk_ids", "[2]", "2 dimensions"]),
    "gaps": (ValueError, {"topk_ids": IDS[:, :1]}, ["topk_ids", "strides [2, 1]", "pass a contiguous copy"]),
    "no array": (TypeError, {"topk_ids": [[1]]}, ["route", "topk_ids", "list"]),
    "no experts": (ValueError, {"experts": 0}, ["experts is 0", "1 to 1023"]),
    "experts beyond 64 bits": (ValueError, {"experts": 2**70}, ["experts is an integer beyond 64 bits"]),
    "too many experts": (ValueError, {"experts": 1024}, ["experts is 1024", "1 to 1023"]),
    "a map of floats": (TypeError, {"expert_map": torch.zeros(3)}, ["expert_map", "float32"]),
    "a map of two dimensions": (ValueError, {"expert_map": IDS}, ["expert_map", "1 dimension is"]),
    "a map that is a number": (ValueError, {"expert_map": IDS[0, 0]}, ["expert_map", "shape []", "or None"]),
    "a map elsewhere": (
        ValueError,
        {"expert_map": ExchangeArray(3, address=fresh_address(0), dtype="int32")},
        ["expert_map", "cuda:0", "topk_ids", "the CPU"],
    ),
}


@pytest.mark.parametrize(("kind", "given", "words"), ROUTE_REFUSALS.values(), ids=ROUTE_REFUSALS)
def test_route_refuses(kind, given, words):
    with pytest.raises(kind) as caught:
        gg_runtime.route(**{"topk_ids": IDS, "experts": 4} | given)
    assert all(word in str(caught.value) for word in ["route", *words]), str(caught.value)


def combine_arguments() -> dict:
    return {
        "y": torch.zeros(6, 8).half(),
        "inverse": torch.zeros(3, 2, dtype=torch.int32),
        "weights": torch.zeros(3, 2),
    }


SHARED = torch.zeros(9, 8).half()
COMBINE_REFUSALS = {
    "float32 rows": (TypeError, {"y": torch.zeros(6, 8)}, ["y", "float32", "float16 or bfloat16"]),
    "rows with gaps": (
        ValueError,
        {"y": torch.zeros(6, 16).half()[:, ::2]},
        ["y", "stride 2", "pass a row-major array"],
    ),
    "a vector": (ValueError, {"y": torch.zeros(6).half()}, ["y", "1 dimension"]),
    "places of 64 bits": (TypeError, {"inverse": torch.zeros(3, 2, dtype=torch.int64)}, ["inverse", "int64", "int32"]),
    "weights for other slots": (ValueError, {"weights": torch.zeros(3, 3)}, ["weights", "[3, 3]", "[3, 2]"]),
    "weights of integers": (TypeError, {"weights": IDS[:3]}, ["weights", "int64"]),
    "weights that are a number": (ValueError, {"weights": torch.tensor(0.5)}, ["weights", "shape []", "or None"]),
    "rows to add that are a number": (ValueError, {"add": SHARED[0, 0]}, ["add", "shape []", "or None"]),
    "weights with gaps": (ValueError, {"weights": torch.zeros(3, 4)[:, ::2]}, ["weights", "pass a contiguous copy"]),
    "rows to add of another dtype": (TypeError, {"add": torch.zeros(3, 8)}, ["add", "float32"]),
    "rows to add for other tokens": (ValueError, {"add": torch.zeros(6, 8).half()}, ["add", "[6, 8]", "[3, 8]"]),
    "an output of another size": (ValueError, {"out": torch.zeros(3, 9).half()}, ["out", "[3, 9]", "[3, 8]"]),
    "an output of another dtype": (TypeError, {"out": torch.zeros(3, 8)}, ["out", "float32"]),
    "an output that is y": (ValueError, {"y": SHARED, "out": SHARED[:3]}, ["out", "shares memory with y"]),
    "an output that is half of what is added": (
        ValueError,
        {"add": SHARED[:3], "out": SHARED[1:4]},
        ["out", "shares memory with add"],
    ),
    "a gradient that would be lost": (RuntimeError, {"weights": torch.zeros(3, 2, requires_grad=True)}, ["weights"]),
}


@pytest.mark.parametrize(("kind", "given", "words"), COMBINE_REFUSALS.values(), ids=COMBINE_REFUSALS)
def test_combine_refuses(kind, given, words):
    with pytest.raises(kind) as caught:
        gg_runtime.combine(**combine_arguments() | given)
    assert all(word in str(caught.value) for word in ["combine", *words]), str(caught.value)


def test_frameworks_are_not_mixed_on_the_cpu():
    with pytest.raises(TypeError, match="must be of one"):
        gg_runtime.combine(np.zeros((6, 8), np.float16), torch.zeros(3, 2, dtype=torch.int32))
    with pytest.raises(TypeError, match="must be of one"):
        gg_runtime.route(IDS, 4, np.zeros(3, np.int32))


def test_arrays_on_a_gpu_need_one():
    with pytest.raises(gg_runtime.UnsupportedError):
        gg_runtime.combine(matrix(6, 8), ExchangeArray(3, 2, address=fresh_address(0), dtype="int32"))
