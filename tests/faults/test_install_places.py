"""Where the package may lie: in a folder that cannot be written, under any name, twice in one process."""

import shutil
from pathlib import Path

import pytest

import gg_runtime
from faults.fake_driver import SM_80

USE = """
    from pathlib import Path
    A, B, out = operands([(64, 64, 64)])
    report([str(Path(gg_runtime.__file__).parent), group_gemm(A, B, out=out) == out, gg_runtime.verify() > 0])
    report([len(gg_runtime.manifest()["artifacts"]), gg_runtime.preload(0) > 0])
"""


def copy_of_the_package(folder: Path) -> Path:
    return Path(shutil.copytree(Path(gg_runtime.__file__).parent, folder / "gg_runtime"))


@pytest.mark.parametrize("name", ["with spaces", "Größe-模型-и-так-далее", "percent%20and'quotes\"", "é" * 80])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_any_name_of_a_folder(fake_cuda, tmp_path, name, locale):
    package = copy_of_the_package(tmp_path / name)
    ran = fake_cuda.run(USE, package=package, LC_ALL=locale, **SM_80)
    assert ran.reported[0] == [str(package), True, True]


# Root may write anywhere: the right to do so is given up first.
NO_OVERRIDE = """
    import ctypes, os
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    class Sets(ctypes.Structure):
        _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]
    assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), (Sets * 2)()) == 0
    def writes(folder):
        try:
            open(os.path.join(folder, "written"), "w")
        except PermissionError:
            return False
        return True
    report([writes(os.path.dirname(gg_runtime.__file__)), writes(".")])
"""


def test_folders_that_cannot_be_written(fake_cuda, tmp_path):
    """The package, the working folder, no HOME and no TMPDIR."""
    package = copy_of_the_package(tmp_path)
    shutil.rmtree(package / "__pycache__")
    folders = (package, tmp_path)
    for folder in folders:
        folder.chmod(0o555)
    try:
        ran = fake_cuda.run(NO_OVERRIDE.replace('writes(".")', f'writes("{tmp_path}")') + f"""
    os.chdir("{tmp_path}")
    assert "HOME" not in os.environ and "TMPDIR" not in os.environ
    """ + USE, package=package, **SM_80)  # fmt: skip
    finally:
        for folder in folders:
            folder.chmod(0o755)
    writable, use, whole = ran.reported
    assert writable == [False, False]
    assert use[1:] == [True, True] and whole[0] > 0 and whole[1]
    assert len(ran.launches) == 1


def test_two_copies_in_one_process(fake_cuda, tmp_path):
    """One that another package carries: each has its own kernels and state, and no symbol of the other."""
    (tmp_path / "carrier").mkdir()
    other = copy_of_the_package(tmp_path / "carrier")
    ran = fake_cuda.run(f"""
        A, B, out = operands([(64, 64, 64)])
        plan = Plan(A, B, out=out)
        sys.path.insert(0, "{tmp_path}")
        from carrier import gg_runtime as second
        first = gg_runtime
        report([second.__file__ != first.__file__, second._C is not first._C, second._C.Plan is not first._C.Plan])
        again = second.Plan(A, B, out=out)
        for _ in range(2):
            plan.run(), again.run()
        report([second.group_gemm(A, B, out=out) == first.group_gemm(A, B, out=out) == out])
        report([again.variant == plan.variant])
        report(failure(second.group_gemm, A, [1]))
        older = {{"sm": 75, "multiprocessors": 40, "shared_bytes_per_block": 65536}}
        faults = []
        for copy in (first, second):
            try:
                copy.explain(A, B, device=older)
            except copy.UnsupportedError:
                faults.append(True)
        report(faults)
        maps = open("/proc/self/maps").read()
        report(["{other}" in maps, first._C.__file__ in maps])
    """, **SM_80)  # fmt: skip
    *facts, error, errors_of_their_own, mapped = ran.reported
    assert errors_of_their_own == [True, True]
    assert facts == [[True] * 3, [True], [True]]
    assert error["type"] == "TypeError" and "B[0] is an int" in error["text"]
    assert mapped == [True, True]
    assert len(ran.launches) == 6
    assert len(ran.of("cuLibraryLoadData")) == 2, "one for each copy"
