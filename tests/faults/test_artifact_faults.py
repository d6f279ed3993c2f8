"""Packages that were damaged after the build: said before the driver sees anything, and never launched."""

import shutil
from pathlib import Path

import pytest

import gg_runtime
from faults.fake_driver import SM_80, assert_says
from gg_runtime import _C

VARIANT = next(k["name"] for k in gg_runtime.kernels() if k["name"].startswith("basic_sm80_fp16_nn_a16"))
FORCED = f"""
    A, B, out = operands([(64, 64, 64)])
    report(failure(lambda: Plan(A, B, out=out, variant="{VARIANT}").run()))
    report(failure(gg_runtime.verify))
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the installed package that a test may damage."""
    return Path(shutil.copytree(Path(gg_runtime.__file__).parent, tmp_path / "gg_runtime"))


def extension(package: Path) -> Path:
    return package / Path(_C.__file__).name


def change(package: Path, image: bytes, at: int) -> None:
    """Flips one bit of the image inside the extension."""
    binary = bytearray(extension(package).read_bytes())
    start = binary.find(image)
    assert start >= 0, "the image is in the extension as it is"
    assert binary.find(image, start + 1) < 0, "and there once"
    binary[start + at] ^= 1
    extension(package).write_bytes(binary)


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_bit_is_found_before_the_driver_gets_the_image(fake_cuda, package, where):
    image = _C.image(VARIANT, "cubin")
    change(package, image, {"first": 0, "middle": len(image) // 2, "last": len(image) - 1}[where])
    ran = fake_cuda.run(FORCED, package=package, **SM_80)
    use, verify = ran.reported
    assert_says(use, "ArtifactError", VARIANT, "sha256", "install")
    assert_says(verify, "ArtifactError", VARIANT, "sha256", "install")
    assert ran.of("cuLibraryLoadData") == []


def test_damaged_ptx_is_found_on_the_gpu_that_would_compile_it(fake_cuda, package):
    change(package, _C.image(VARIANT, "ptx"), 100)
    ran = fake_cuda.run(FORCED, package=package, FAKE_CUDA_SM=100)
    assert_says(ran.reported[0], "ArtifactError", VARIANT, "PTX", "sha256")
    assert ran.of("cuLibraryLoadData") == []


def test_a_damaged_kernel_leaves_the_others_usable(fake_cuda, package):
    change(package, _C.image(VARIANT, "cubin"), 200)
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)], pad=1)
        report(group_gemm(A, B, out=out) == out)
    """, package=package, **SM_80)  # fmt: skip
    assert ran.reported == [True]


def test_a_manifest_of_another_build_is_told(fake_cuda, package):
    path = package / "manifest.json"
    path.write_text(path.read_text().replace("sha256", "sha255", 1))
    ran = fake_cuda.run("report(failure(gg_runtime.verify))", package=package)
    assert_says(ran.reported[0], "ArtifactError", "manifest", "reinstall")


def replaced(line: str, by: str):
    return lambda lines: [by if old == line else old for old in lines]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda lines: lines[:-1], ["absent in the image"]),
        (lambda lines: [*lines, "basic 4080 8"], ["absent in the launcher"]),
        (replaced("basic 3840 8", "basic 3840 4"), ["4 bytes at 3840", "8 bytes at 3840"]),
        (replaced("basic 3848 4", "basic 3852 4"), ["4 bytes at 3852", "4 bytes at 3848"]),
    ],
    ids=["one too few", "one too many", "narrower", "moved"],
)
def test_parameters_that_do_not_fit_the_launcher_are_never_launched(fake_cuda, tmp_path, edit, words):
    lines = [line for line in fake_cuda.parameters.read_text().splitlines() if line.startswith("basic ")]
    table = tmp_path / "parameters"
    table.write_text("\n".join(edit(lines)) + "\n")
    assert table.read_text().splitlines() != lines
    ran = fake_cuda.run(FORCED, **SM_80, FAKE_CUDA_PARAMETERS=table)
    assert_says(ran.reported[0], "ArtifactError", VARIANT, "does not fit its launcher", *words)
    assert ran.launches == []


def test_a_symbol_that_the_image_lacks_is_an_artifact_error(fake_cuda):
    ran = fake_cuda.run(FORCED, **SM_80, FAKE_CUDA_FAIL="cuLibraryGetKernel:500:1")
    assert_says(ran.reported[0], "ArtifactError", VARIANT, "no kernel basic")
    assert len(ran.of("cuLibraryUnload")) == 1, "what was loaded for nothing is given back"
