"""Every embedded image, damaged inside the extension: each one's sha256 is checked before the driver sees it."""

import random
import shutil
from pathlib import Path

import pytest

import gg_runtime
from embedded import KERNELS
from faults.fake_driver import assert_says
from gg_runtime import _C

IMAGES = [
    (name, kind)
    for name, kernel in sorted(KERNELS.items())
    for kind in ("cubin", "ptx")
    if kernel[f"{kind}_bytes"]
]  # fmt: skip
CONTENT = {which: _C.image(*which) for which in IMAGES}

# Device 0 takes cubins of sm_80, 1 those of sm_90, 2 the PTX. None of the three loads what is damaged.
LOAD_ALL = """
def load(name, device):
    return failure(gg_runtime._C.load, name, device)

for kernel in gg_runtime.kernels():
    for kind in ("cubin", "ptx"):
        if kernel[kind + "_bytes"]:
            device = 2 if kind == "ptx" else {80: 0, 90: 1}[kernel["sm"]]
            report([kernel["name"], kind, load(kernel["name"], device)])
report(failure(gg_runtime.verify))
"""
DEVICES = {"FAKE_CUDA_DEVICES": 3, "FAKE_CUDA_SM": "80,90,120"}


@pytest.fixture(scope="module")
def places() -> dict[tuple[str, str], int]:
    """Where each image lies in the extension."""
    binary = Path(_C.__file__).read_bytes()
    found = {which: binary.find(content) for which, content in CONTENT.items()}
    assert min(found.values()) > 0
    return found


@pytest.fixture
def damaged(tmp_path, places):
    """A copy of the package in which each image is replaced by change(which, image), which has as many bytes."""
    package = Path(shutil.copytree(Path(gg_runtime.__file__).parent, tmp_path / "gg_runtime"))
    extension = package / Path(_C.__file__).name

    def damage(change) -> Path:
        binary = bytearray(extension.read_bytes())
        for which, start in places.items():
            content = CONTENT[which]
            changed = change(which, content)
            assert len(changed) == len(content) and changed != content
            binary[start : start + len(content)] = changed
        extension.write_bytes(binary)
        return package

    return damage


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def assert_nothing_is_loaded(fake_cuda, package) -> None:
    ran = fake_cuda.run(LOAD_ALL, package=package, **DEVICES)
    *loads, verify = ran.reported
    assert [(name, kind) for name, kind, _ in loads] == IMAGES
    for name, kind, error in loads:
        assert_says(error, "ArtifactError", name, "PTX" if kind == "ptx" else "cubin", "damaged", "sha256", "install")
    assert_says(verify, "ArtifactError", "sha256", "reinstall")
    assert ran.of("cuLibraryLoadData") == []


@pytest.mark.parametrize("where", ["first", "last", "seed 1", "seed 2"])
def test_one_flipped_bit_in_every_image(fake_cuda, damaged, where):
    numbers = random.Random(where)

    def bit(content: bytes) -> int:
        bits = 8 * len(content)
        return {"first": 0, "last": bits - 1}.get(where, numbers.randrange(bits))

    assert_nothing_is_loaded(fake_cuda, damaged(lambda _, content: flipped(content, bit(content))))


def test_images_of_which_the_end_was_never_written(fake_cuda, damaged):
    """A file that lost its blocks keeps its length: from a page on there are zeros."""

    def truncated(_, content: bytes) -> bytes:
        kept = len(content) // 2 // 4096 * 4096
        return content[:kept] + bytes(len(content) - kept)

    assert_nothing_is_loaded(fake_cuda, damaged(truncated))


def test_images_of_other_kernels_in_their_place(fake_cuda, damaged):
    """Whole cubins and PTX, each with a hash that is right elsewhere."""
    others = dict(zip(IMAGES, IMAGES[1:] + IMAGES[:1]))

    def swapped(which, content: bytes) -> bytes:
        other = CONTENT[others[which]][: len(content)]
        return other + bytes(len(content) - len(other))

    assert_nothing_is_loaded(fake_cuda, damaged(swapped))


def test_without_damage_all_of_them_load(fake_cuda):
    ran = fake_cuda.run(LOAD_ALL, **DEVICES)
    assert [error["type"] for _, _, error in ran.reported[:-1]] == [None] * len(IMAGES)
    assert len(ran.of("cuLibraryLoadData")) == len(IMAGES)
