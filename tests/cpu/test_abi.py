"""Every launcher against its cubin, as NVIDIA's own cuobjdump reads it: nothing here goes through aot/build/elf.py."""

import ctypes
import itertools
import re
import struct
import subprocess
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64
from pathlib import Path

import pytest
from builder_sandbox import ROOT

from aot.build import native
from aot.build.toolchain import tool
from aot.spec.abi import ARGUMENTS

INVALID_VALUE = 1
# Another one for each argument, with bits in all bytes.
VALUES = {
    argument.name: 0x0123_4567 + 0x0101_0101 * index if argument.type == "i32" else 0x1122_3344_5566_7788 + index
    for index, argument in enumerate(ARGUMENTS.values())
} | {"profile_scratch": 0}


class Arguments(ctypes.Structure):
    """gg_arguments of build/aot/abi.h."""

    _fields_ = [
        ("list_words", POINTER(c_uint64)),
        ("list_word_count", c_uint32),
        ("overlaps", c_int32),
        *((argument.name, c_int32 if argument.type == "i32" else c_uint64) for argument in ARGUMENTS.values()),
    ]


@pytest.fixture(scope="session")
def launchers(generated, tmp_path_factory):
    """Artifact name -> a function (arguments, grid) that gives the code, the launch's facts and its parameter bytes."""
    library = tmp_path_factory.mktemp("probe") / "probe.so"
    sources = [generated / name for name in ("launchers.c", "table.c", "images.S")]
    sources.append(Path(__file__).with_name("launch_probe.c"))
    native.shared_library(library, sources, include=[ROOT / "csrc", generated], flags=["-Wpedantic"])
    probe = ctypes.CDLL(str(library))
    probe.probe_name.restype = c_char_p
    probe.probe_launch.argtypes = [c_int, POINTER(Arguments), c_uint, POINTER(c_size_t), POINTER(c_ubyte)]

    def launcher(index):
        def launch(arguments, grid):
            facts, parameters = (c_size_t * 8)(), (c_ubyte * 8192)()
            code = probe.probe_launch(index, arguments, grid, facts, parameters)
            return code, list(facts), bytes(parameters)[: facts[7]]

        return launch

    names = itertools.takewhile(lambda name: name is not None, map(probe.probe_name, itertools.count()))
    return {name.decode(): launcher(index) for index, name in enumerate(names)}


@pytest.fixture(scope="session")
def dumps(built, generated):
    """Artifact name -> what cuobjdump prints of its cubin: ELF sections and resource usage."""
    program = tool("cuobjdump")
    return {
        name: subprocess.run(
            [program, "-elf", "-res-usage", generated / "images" / f"{name}.cubin"],
            check=True, capture_output=True, text=True,
        ).stdout
        for name in built
    }  # fmt: skip


def parameters_of(dump):
    """[(offset, size), ...] by ordinal."""
    found = re.findall(r"Ordinal\s*: 0x(\w+)\s+Offset\s*: 0x(\w+)\s+Size\s*: 0x(\w+)", dump)
    by_ordinal = {int(ordinal, 16): (int(offset, 16), int(size, 16)) for ordinal, offset, size in found}
    return [by_ordinal[ordinal] for ordinal in range(len(by_ordinal))]


def arguments_with(words):
    values = {name: value for name, value in VALUES.items() if name != "profile_scratch"}
    array = (c_uint64 * len(words))(*words)
    return Arguments(list_words=array, list_word_count=len(words), **values)


def test_every_artifact_of_the_manifest_has_a_launcher_in_the_order_of_names(launchers, built):
    assert list(launchers) == sorted(built)


@pytest.mark.compiler
def test_every_launcher_writes_each_argument_where_its_cubin_reads_it(launchers, built, dumps):
    for name, entry in built.items():
        skip, capacity = entry["word_skip"], entry["word_capacity"]
        words = [0xA000_0000_0000_0000 + index for index in range(capacity)]
        code, facts, parameters = launchers[name](arguments_with(words), 7)
        assert (code, facts[0]) == (0, 1), name
        places = parameters_of(dumps[name])
        assert len(parameters) == places[-1][0] + places[-1][1], name
        signature = [text.split(":")[0] for text in entry["signature"]]
        assert ("list_words" in signature) == (signature[0] == "list_words") == (capacity > 0), name
        assert signature[-2:] == ["global_scratch", "profile_scratch"], name
        expected = words + [VALUES[argument] for argument in signature if argument != "list_words"]
        assert len(expected) == len(places) - skip, name
        for value, (offset, size) in zip(expected, places[skip:], strict=True):
            (found,) = struct.unpack_from({4: "<I", 8: "<Q"}[size], parameters, offset)
            assert found == value, f"{name}: {found:#x} at byte {offset}, {value:#x} belongs there"


def test_a_list_on_the_device_needs_no_words(launchers):
    for name, launch in launchers.items():
        arguments = arguments_with([])
        arguments.list_words = None
        assert launch(arguments, 1)[:2][0] == 0, name


def test_more_words_than_the_kernel_takes_are_refused_before_the_launch(launchers, built):
    for name, launch in launchers.items():
        capacity = built[name]["word_capacity"]
        if capacity == 0:  # it has no words, and its launcher looks at none
            continue
        code, facts, _ = launch(arguments_with([0] * (capacity + 1)), 1)
        assert (code, facts[0]) == (INVALID_VALUE, 0), name


def test_a_kernel_that_needs_scratch_is_not_launched_without(launchers, built):
    with_scratch = [name for name, entry in built.items() if entry["launch"]["scratch_bytes"]]
    for name in with_scratch:
        arguments = arguments_with([0])
        arguments.global_scratch = 0
        code, facts, _ = launchers[name](arguments, 1)
        assert (code, facts[0]) == (INVALID_VALUE, 0), name


@pytest.mark.compiler
def test_every_launch_has_the_shape_that_the_cubin_was_compiled_for(launchers, built, dumps):
    for name, entry in built.items():
        launch = entry["launch"]
        _, facts, _ = launchers[name](arguments_with([0]), 7)
        _, x, y, z, threads, shared, attributes, _ = facts
        assert (x, y, z) == (7, 1, 1), name
        wanted = re.search(r"EIATTR_REQNTID\s+Format:\s+\w+\s+Value:\s+0x(\w+) 0x(\w+) 0x(\w+)", dumps[name])
        assert [threads, 1, 1] == [int(word, 16) for word in wanted.groups()], name
        assert shared == launch["shared_bytes"], name
        assert attributes == launch["programmatic"], name


@pytest.mark.compiler
def test_registers_and_spills_of_the_manifest_are_the_cubins(built, dumps):
    for name, entry in built.items():
        registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", dumps[name]).groups()
        assert (entry["registers"], entry["spill_bytes"]) == (int(registers), int(stack)), name


# Bytes a thread, once a tile: what the loop over tiles needs besides all sums.
MAY_SPILL = {"hopper_gather_dgated": 40}


def test_no_config_of_the_tables_spills(built):
    spilled = {name: entry["spill_bytes"] for name, entry in built.items()}
    assert {name: count for name, count in spilled.items() if count > MAY_SPILL.get(built[name]["kernel"], 0)} == {}


def test_cubins_up_to_hopper_load_on_every_driver_since_cuda_12(built, generated):
    for name, entry in built.items():
        header = (generated / "images" / f"{name}.cubin").read_bytes()[:16]
        assert entry["elf_abi"] == header[8], name
        if entry["sm"] <= 90:
            assert (header[7], header[8], entry["minimum_driver"]) == (0x33, 7, 12000), name


def test_cubins_are_for_the_architecture_of_their_name(built, generated):
    for name, entry in built.items():
        (flags,) = struct.unpack_from("<I", (generated / "images" / f"{name}.cubin").read_bytes(), 48)
        if entry["elf_abi"] == 7:
            assert flags & 0xFF == entry["sm"], name


def test_the_forward_path_is_ptx_of_the_oldest_isa_for_sm_80(built, generated):
    for name, entry in built.items():
        path = generated / "images" / f"{name}.ptx"
        assert path.exists() == ("ptx" in entry) == (entry["sm"] == 80), name
        if path.exists():
            text = path.read_bytes()
            assert text.endswith(b"\0") and text.count(b"\0") == 1, name
            assert b".version 8.0\n" in text and b".target sm_80\n" in text, name
            assert entry["ptx_isa"] == "8.0", name
