"""Tables of two GPUs in one wheel: rows and costs serve their own GPU, every other takes the reference, scaled."""

import ctypes

import pytest
from builder_sandbox import ROOT
from test_emit import FIGURES, ROW, costs_with, gpu_with

from aot.build import native
from aot.emit import golden
from aot.emit.generate import generate
from aot.spec.tables import shape_key, write_table
from aot.spec.variants import Config, Variant

GROUPS = [[1024, 1024, 1024, 2]]
SHARED = Config(128, 256, 64, 9, 8)
NAMES = [f"{kernel}_sm90_bf16_nt_a16_{SHARED}" for kernel in ("hopper", "tma")]
HOPPER, TMA = range(2)


def rows_of(folder, gpu, kernel):
    row = ROW | {"groups": GROUPS, "kernel": kernel, "config": str(SHARED)}
    write_table(folder / "shapes.json", {"measured": {"lists": {"gpu": gpu}}, "shapes": [row]})


def two_gpus(tables):
    """One list that another kernel wins on each; costs of both kernels on the H200, of one on the H20."""
    for gpu, winner, facts in (("NVIDIA H200", "tma", {"reference": True}), ("NVIDIA H20", "hopper", {})):
        multiprocessors = 132 if facts else 78
        rows_of(gpu_with(tables, gpu, multiprocessors=multiprocessors, **facts), gpu, winner)
    own = {"alignment": 16, "config": str(SHARED)} | FIGURES
    for kernel in ("hopper", "tma"):
        costs_with(tables, kernel, own)
    costs_with(tables, "hopper", own | {"step_us": 2.0}, name="NVIDIA H20")
    return tables


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """csrc's look-ups, linked with a table of two GPUs."""
    folder = tmp_path_factory.mktemp("gpus")
    (folder / "tables").mkdir()
    samples = [golden.sample(Variant(kernel, 90, "bf16", "bf16", "nt", 16, SHARED)) for kernel in ("hopper", "tma")]
    for name, data in generate(samples, golden.MANIFEST, two_gpus(folder / "tables")).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    sources = [folder / name for name in ("launchers.c", "table.c", "images.S")]
    sources += [ROOT / "tests/cpu/gpu_probe.cpp", ROOT / "csrc/driver/gpus.cpp", ROOT / "csrc/select/tuned.cpp"]
    library = ctypes.CDLL(str(native.shared_library(folder / "probe.so", sources, include=[ROOT / "csrc", folder])))
    library.tuned.restype = library.basis.restype = ctypes.c_char_p
    library.tuned.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64)
    library.step_us.restype = ctypes.c_double
    return library


def test_a_row_serves_its_own_gpu_where_another_has_one_of_the_same_key(probe):
    key = shape_key(GROUPS)
    assert probe.tuned(b"NVIDIA H200", 132, key).decode() == NAMES[TMA]
    assert probe.tuned(b"NVIDIA H20", 78, key).decode() == NAMES[HOPPER]
    for name, multiprocessors in ((b"NVIDIA H20", 132), (b"NVIDIA H200", 78), (b"NVIDIA H100", 132), (b"", 132)):
        assert probe.tuned(name, multiprocessors, key) is None


def test_costs_are_those_of_the_gpu_itself_else_of_the_reference(probe):
    assert [probe.step_us(b"NVIDIA H200", 132, at) for at in (HOPPER, TMA)] == [0.25, 0.25]
    assert [probe.step_us(b"NVIDIA H20", 78, at) for at in (HOPPER, TMA)] == [2.0, 0.25]
    assert [probe.step_us(b"NVIDIA H100", 132, at) for at in (HOPPER, TMA)] == [0.25, 0.25]


def test_explanations_name_the_gpu_whose_costs_they_rest_on(probe):
    assert probe.basis(b"NVIDIA H20", 78, HOPPER) == b"cost model measured on NVIDIA H20"
    assert probe.basis(b"NVIDIA H20", 78, TMA).startswith(
        b"cost model measured on NVIDIA H200, scaled to NVIDIA H20 by"
    )
    assert probe.basis(b"NVIDIA H900", 78, HOPPER).startswith(b"cost model measured on NVIDIA H200, scaled to")
