"""Keys of measured rows: the builder writes them into the table, csrc looks for them, so both compute them."""

import ctypes

import pytest
from builder_sandbox import ROOT
from hypothesis import given
from hypothesis import strategies as st

from aot.build import native
from aot.spec.abi import EPILOGUES, SOURCES
from aot.spec.tables import layer_key, shape_key, signed_key
from aot.tuning.layers import load_of

SIZE = st.integers(1, 2**31 - 1)


@pytest.fixture(scope="module")
def probe(generated, tmp_path_factory):
    library = tmp_path_factory.mktemp("keys") / "keys.so"
    sources = [ROOT / "tests/cpu/key_probe.cpp", ROOT / "csrc/forms/table_key.cpp"]
    native.shared_library(library, sources, include=[ROOT / "csrc", generated])
    probe = ctypes.CDLL(library)
    probe.list_key.restype = probe.layer_key.restype = probe.signed_key.restype = ctypes.c_uint64
    probe.signed_key.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
    probe.load_of.restype = ctypes.c_int64
    for function in (probe.layer_key, probe.load_of):
        function.argtypes = [ctypes.c_int64] * (4 if function is probe.layer_key else 2)
    return probe


@given(groups=st.lists(st.tuples(SIZE, SIZE, SIZE, st.integers(1, 10**6)), max_size=40), order=st.randoms())
def test_a_list_has_one_key_in_any_order(probe, groups, order):
    shuffled = order.sample(groups, len(groups))
    words = (ctypes.c_int64 * (4 * len(groups)))(*(size for group in shuffled for size in group))
    assert probe.list_key(words, len(groups)) == shape_key(groups)


@given(SIZE, SIZE, SIZE, SIZE)
def test_a_layer_has_one_key(probe, groups, n, k, rows):
    assert probe.load_of(rows, groups) == load_of(rows, groups)
    load = load_of(rows, groups)
    assert probe.layer_key(groups, n, k, load) == layer_key(groups, n, k, load)


@given(st.integers(0, 2**64 - 1))
def test_a_product_that_does_more_has_a_key_of_its_own(probe, key):
    """The plain product keeps its key, so tables that are there stay as they are."""
    kinds = [(epilogue, source) for epilogue in EPILOGUES for source in SOURCES]
    keys = [signed_key(key, *kind) for kind in kinds]
    numbers = ((EPILOGUES.index(epilogue), SOURCES.index(source)) for epilogue, source in kinds)
    assert keys == [probe.signed_key(key, *each) for each in numbers]
    assert keys[kinds.index(("linear", "rows"))] == key and len(set(keys)) == len(kinds)
