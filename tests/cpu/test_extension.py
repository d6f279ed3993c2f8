"""The shared object: what it needs, what it shows, and that its images are those of the manifest."""

import hashlib
from pathlib import Path

import pytest
from elftools.elf.constants import P_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_DT_FLAGS_1

import gg_runtime
from aot.build import native
from gg_runtime import _C

GLIBC = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"}
UNWINDER = "libgcc_s.so.1"


@pytest.fixture(scope="module")
def elf():
    with open(_C.__file__, "rb") as file:
        yield ELFFile(file)


def dynamic(elf, tag):
    return [entry for entry in elf.get_section_by_name(".dynamic").iter_tags() if entry.entry.d_tag == tag]


def symbols(elf, *, defined):
    found = elf.get_section_by_name(".dynsym").iter_symbols()
    return {symbol.name for symbol in found if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined}


def test_it_links_glibc_and_its_unwinder_alone(elf):
    needed = {entry.needed for entry in dynamic(elf, "DT_NEEDED")}
    assert UNWINDER in needed
    others = needed - GLIBC - {UNWINDER}
    assert all(name.startswith("ld-linux-") for name in others), others


def test_it_brings_its_c_plus_plus_library_but_no_unwinder(elf):
    """Python ends daemon threads through their frames, by the unwinder of glibc (aot/build/native.py)."""
    asked = symbols(elf, defined=False)
    assert not {name for name in asked if name.startswith(("_Z", "__cxa_throw", "__gxx"))}
    assert {name for name in asked if name.startswith("_Unwind_")} == set(native.UNWINDER_NAMES)


def test_it_searches_no_folder_of_the_build_machine(elf):
    assert not dynamic(elf, "DT_RPATH") and not dynamic(elf, "DT_RUNPATH")


def test_it_exports_its_entry_alone(elf):
    assert symbols(elf, defined=True) == {"PyInit__C"}


def test_it_is_hardened_and_its_images_are_read_only(elf):
    (stack,) = (segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK")
    assert not stack["p_flags"] & P_FLAGS.PF_X
    assert any(segment["p_type"] == "PT_GNU_RELRO" for segment in elf.iter_segments())
    (flags,) = dynamic(elf, "DT_FLAGS_1")
    assert flags.entry.d_val & ENUM_DT_FLAGS_1["DF_1_NOW"]
    image = _C.image(gg_runtime.kernels()[0]["name"], "cubin")
    at = Path(_C.__file__).read_bytes().find(image)
    (segment,) = (one for one in elf.iter_segments("PT_LOAD") if 0 <= at - one["p_offset"] < one["p_filesz"])
    assert segment["p_flags"] == P_FLAGS.PF_R


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_every_image_is_the_one_of_the_manifest(kind):
    seen = 0
    for name, entry in gg_runtime.manifest()["artifacts"].items():
        image, expected = _C.image(name, kind), entry.get(kind)
        if expected is None:
            assert image == b"", name
            continue
        assert (len(image), hashlib.sha256(image).hexdigest()) == (expected["bytes"], expected["sha256"]), name
        assert image.startswith(b"\x7fELF") if kind == "cubin" else image.endswith(b"\n\0"), name
        seen += 1
    assert seen > 0


def test_the_inventory_agrees_with_the_manifest():
    manifest = gg_runtime.manifest()["artifacts"]
    kernels = gg_runtime.kernels()
    assert [kernel["name"] for kernel in kernels] == sorted(manifest)
    for kernel in kernels:
        entry = manifest[kernel["name"]]
        for name in ("kernel", "sm", "dtype", "layout", "registers", "spill_bytes", "word_capacity", "minimum_driver"):
            assert kernel[name] == entry[name], (kernel["name"], name)
        for name in ("threads", "shared_bytes", "scratch_bytes"):
            assert kernel[name] == entry["launch"][name], (kernel["name"], name)
        assert kernel["cubin_sha256"] == entry["cubin"]["sha256"]


def test_verify_counts_every_image():
    kernels = gg_runtime.kernels()
    assert gg_runtime.verify() == len(kernels) + sum(kernel["ptx_bytes"] > 0 for kernel in kernels)


def test_an_unknown_variant_is_a_wrong_argument():
    with pytest.raises(ValueError, match="no variant is called basic_sm80"):
        _C.image("basic_sm80", "cubin")


def test_only_generic_sm_80_kernels_carry_ptx_and_its_isa_is_8_0():
    for kernel in gg_runtime.kernels():
        if kernel["ptx_bytes"]:
            assert kernel["sm"] == 80, kernel["name"]
            text = _C.image(kernel["name"], "ptx").decode()
            assert ".version 8.0" in text and ".target sm_80" in text, kernel["name"]
