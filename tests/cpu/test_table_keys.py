"""Keys of measured rows: the builder writes them into the table, csrc looks for them, so both compute them."""

import ctypes

import pytest
from builder_sandbox import ROOT
from hypothesis import given
from hypothesis import strategies as st

from aot.build import native
from aot.spec.tables import layer_key, shape_key
from aot.tuning.layers import load_of

SIZE = st.integers(1, 2**31 - 1)


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    library = tmp_path_factory.mktemp("keys") / "keys.so"
    sources = [ROOT / "tests/cpu/key_probe.cpp", ROOT / "csrc/forms/table_key.cpp"]
    native.shared_library(library, sources, include=[ROOT / "csrc"])
    probe = ctypes.CDLL(library)
    probe.list_key.restype = probe.layer_key.restype = ctypes.c_uint64
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
