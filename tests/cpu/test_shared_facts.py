"""aot/spec/abi.py, and what C makes of it: the compiler of the extension reads the generated header."""

import ctypes

import pytest
from builder_sandbox import ROOT

from aot.build import native
from aot.emit.abi_header import abi_header
from aot.spec import abi, records

PROBE = """
#include <stddef.h>
#include "abi.h"

{offsets}
int bytes_of_dtype(int index) {{ return gg_dtypes[index].bytes; }}
const char *name_of_dtype(int index) {{ return gg_dtype_names[index]; }}
const char *framework_of_dtype(int index) {{ return gg_dtypes[index].framework; }}
const char *name_of_layout(int index) {{ return gg_layout_names[index]; }}
const char *name_of_form(int index) {{ return gg_form_names[index]; }}
const char *name_of_extents(int index) {{ return gg_extents_names[index]; }}
const char *name_of_addressing(int index) {{ return gg_addressing_names[index]; }}
const char *name_of_epilogue(int index) {{ return gg_epilogue_names[index]; }}
const char *name_of_scaling(int index) {{ return gg_scaling_names[index]; }}
"""
AXES = {
    "dtype": tuple(abi.DTYPES),
    "layout": abi.LAYOUTS,
    "form": abi.FORMS,
    "extents": abi.EXTENTS,
    "addressing": abi.ADDRESSINGS,
    "epilogue": abi.EPILOGUES,
    "scaling": abi.SCALINGS,
}


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """The header in a C library: offset_of_RECORD_FIELD() and words_of_RECORD() of each record, and names by number."""
    folder = tmp_path_factory.mktemp("abi")
    offsets = "".join(
        f"size_t offset_of_{record.name}_{field.name}(void) {{ return offsetof(gg_{record.name}, {field.name}); }}\n"
        for record in records.RECORDS.values()
        for field in record.fields
    )
    offsets += "".join(
        f"int words_of_{record.name}(void) {{ return GG_{record.name.upper()}_WORDS; }}\n"
        f"size_t size_of_{record.name}(void) {{ return sizeof(gg_{record.name}); }}\n"
        for record in records.RECORDS.values()
    )
    (folder / "abi.h").write_text(abi_header())
    (folder / "probe.c").write_text(PROBE.format(offsets=offsets))
    library = native.shared_library(folder / "probe.so", [folder / "probe.c"], include=[ROOT / "csrc"])
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("record", records.RECORDS.values(), ids=lambda record: record.name)
def test_c_lays_records_out_as_kernels_read_them(probe, record):
    for name, word in record.word_offsets().items():
        assert getattr(probe, f"offset_of_{record.name}_{name}")() == 8 * word, name
    assert getattr(probe, f"words_of_{record.name}")() == record.words
    assert getattr(probe, f"size_of_{record.name}")() == 8 * record.words


@pytest.mark.parametrize("axis", AXES)
def test_enumerators_are_the_positions_of_the_names(probe, axis):
    name_of = getattr(probe, f"name_of_{axis}")
    name_of.restype = ctypes.c_char_p
    assert tuple(name_of(number).decode() for number in range(len(AXES[axis]))) == AXES[axis]


def test_dtypes_have_one_size_and_one_framework_name(probe):
    probe.framework_of_dtype.restype = ctypes.c_char_p
    for number, dtype in enumerate(abi.DTYPES.values()):
        assert probe.bytes_of_dtype(number) == dtype.bytes
        assert probe.framework_of_dtype(number).decode() == dtype.framework


def test_records_of_descriptors_keep_them_on_64_bytes_and_first():
    """The pipeline that both forms share finds A's, B's and C's descriptor at the same places."""
    places = []
    for record in (records.LIST_DESCRIPTORS, records.SCALED_LIST_DESCRIPTORS, records.GROUPED_DESCRIPTORS):
        assert record.words % 8 == 0
        offsets = record.word_offsets()
        places.append([offsets[name] for name in "abc"])
    assert places == [[0, records.DESCRIPTOR_WORDS, 2 * records.DESCRIPTOR_WORDS]] * 3


def test_scales_of_a_list_lie_where_those_of_other_forms_do():
    """hopper/scale_ring.py reads the records of all forms."""
    of_list, of_rows = (r.word_offsets() for r in (records.SCALED_LIST_DESCRIPTORS, records.SCALED_DESCRIPTORS))
    scales = [name for name in of_rows if name.startswith("scale_")]
    assert len(scales) == 7 and all(of_list[name] == of_rows[name] for name in scales)
