"""The shared object: what it needs, what it shows, and that its images are those of the manifest."""

import hashlib
import re
import subprocess

import pytest

import gg_runtime
from gg_runtime import _C

ALLOWED = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libdl.so.2", "ld-linux-x86-64.so.2"}


def tool(*command: str) -> str:
    return subprocess.run([*command, _C.__file__], check=True, capture_output=True, text=True).stdout


def test_it_links_neither_cuda_nor_torch_nor_python():
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", tool("readelf", "-dW")))
    assert needed and needed <= ALLOWED, needed - ALLOWED


def test_it_searches_no_folder_of_the_build_machine():
    assert not re.search(r"RPATH|RUNPATH", tool("readelf", "-dW"))


def test_it_exports_its_entry_alone():
    exported = {line.split()[-1] for line in tool("nm", "-D", "--defined-only").splitlines()}
    assert exported == {"PyInit__C"}


def test_its_stack_is_not_executable_and_its_images_are_read_only():
    (stack,) = re.findall(r"GNU_STACK.*", tool("readelf", "-lW"))
    assert "RWE" not in stack
    image = _C.image(gg_runtime.kernels()[0]["name"], "cubin")
    sections = re.findall(r"\] (\.\S+)\s+\S+\s+\S+ (\S+) (\S+) \S+\s+(\S*)", tool("readelf", "-SW"))
    with open(_C.__file__, "rb") as file:
        at = file.read().find(image)
    (flags,) = [flags for _, offset, size, flags in sections if int(offset, 16) <= at < int(offset, 16) + int(size, 16)]
    assert "W" not in flags and "X" not in flags


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
