"""What a launch handed to a kernel, read back from the bytes that the driver got, and what it should have been."""

import struct
from dataclasses import dataclass
from math import ceil

RECORD = ("a", "b", "c", "a_row", "a_col", "b_row", "b_col", "c_row", "c_col", "m", "n", "k")


@dataclass
class ListArguments:
    """Arguments of `basic` and `tma`: all list words, then the scalars."""

    words: tuple[int, ...]
    problems: int
    groups: int
    tiles: int
    global_scratch: int
    profile_scratch: int


@dataclass
class PackArguments:
    words: tuple[int, ...]
    destination: int
    count: int
    global_scratch: int
    profile_scratch: int


def _unpack(launch: dict, word_capacity: int, scalars: str) -> tuple[tuple, tuple]:
    layout = struct.Struct(f"@{word_capacity}Q{scalars}QQ")  # native alignment, as the C launchers have it
    buffer = bytes.fromhex(launch["parameters"])
    assert len(buffer) == layout.size, f"{len(buffer)} bytes of parameters, {layout.size} expected"
    values = layout.unpack(buffer)
    return values[:word_capacity], values[word_capacity:]


def list_arguments(launch: dict, word_capacity: int) -> ListArguments:
    words, scalars = _unpack(launch, word_capacity, "qii")
    return ListArguments(words, *scalars)


def pack_arguments(launch: dict, word_capacity: int) -> PackArguments:
    words, scalars = _unpack(launch, word_capacity, "Qi")
    return PackArguments(words, *scalars)


def read_list(words: tuple[int, ...], groups: int) -> tuple[list[int], list[dict]]:
    """Ends and records of a list, as aot/kernels/schedule.py documents it."""
    signed = struct.unpack(f"{len(words)}q", struct.pack(f"{len(words)}Q", *words))
    records = [signed[groups + len(RECORD) * g : groups + len(RECORD) * (g + 1)] for g in range(groups)]
    return list(signed[:groups]), [dict(zip(RECORD, record)) for record in records]


def expected_record(a, b, c) -> dict:
    """The record of C = A @ B for arrays (or dicts) with address, shape and strides, C having unit column stride."""
    values = (a["address"], b["address"], c["address"], *a["strides"], *b["strides"], *c["strides"])
    return dict(zip(RECORD, (*values, *c["shape"], a["shape"][1])))


def expected_ends(records: list[dict], block_m: int, block_n: int) -> list[int]:
    ends, end = [], 0
    for record in records:
        end += ceil(record["m"] / block_m) * ceil(record["n"] / block_n)
        ends.append(end)
    return ends
