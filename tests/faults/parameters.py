"""What a launch handed to a kernel, read back from the bytes that the driver got, and what it should have been."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from aot.spec.records import (
    GATED_DESCRIPTORS,
    GATED_POINTERS,
    GATHER_K_DESCRIPTORS,
    GATHERED_SCALED_DESCRIPTORS,
    GRADIENT_DESCRIPTORS,
    GROUPED_DESCRIPTORS,
    GROUPED_K_DESCRIPTORS,
    GROUPED_K_POINTERS,
    GROUPED_POINTERS,
    KEPT_DESCRIPTORS,
    LIST_DESCRIPTORS,
    LIST_POINTERS,
    QUANTIZED_DESCRIPTORS,
    SCALED_DESCRIPTORS,
    SCALED_K_DESCRIPTORS,
    SCALED_K_POINTERS,
    SCALED_POINTERS,
    SCALED_STACK_DESCRIPTORS,
    SCALED_STACK_POINTERS,
    STACK_POINTERS,
    Record,
)

# Addresses in bytes, strides in elements.
RECORD = tuple(field.name for field in LIST_POINTERS.fields)
# What fake_cuda.c writes into a descriptor of 16 words; the stride in bytes.
DESCRIPTOR = ("address", "columns", "rows", "row_stride", "box_columns", "box_rows", "type", "rank")
# Entry points of grouped products whose records have descriptors.
DESCRIBED = (
    "hopper_ragged", "hopper_ragged_k", "hopper_ragged_k_block_scales", "hopper_stack", "hopper_kept", "hopper_dgated",
    "hopper_scaled", "hopper_scaled_stack", "hopper_ragged_fitted",
)  # fmt: skip
PARAMETERS_START = 0x210  # where sm_90 has a kernel's parameters: 16 bytes past a multiple of 64


@dataclass
class ListArguments:
    """Arguments of `basic`, `tma` and `hopper`: the words of the list, then the scalars."""

    words: tuple[int, ...]
    problems: int
    groups: int
    tiles: int
    global_scratch: int
    profile_scratch: int


@dataclass
class RaggedArguments:
    """Arguments of the kernels of grouped products: of the entry points basic_ragged, hopper_ragged and others."""

    words: tuple[int, ...]
    groups: int
    rows: int
    columns: int
    depth: int
    global_scratch: int
    profile_scratch: int


@dataclass
class PackArguments:
    words: tuple[int, ...]
    problems: int
    ends: int
    records: int
    differs: int
    groups: int
    record_words: int
    global_scratch: int
    profile_scratch: int


def _unpack(launch: dict, scalars: str) -> tuple:
    """All words, then the scalars, in native alignment as C has it."""
    buffer = bytes.fromhex(launch["parameters"])
    words = (len(buffer) - struct.calcsize(f"@{scalars}")) // 8
    layout = struct.Struct(f"@{words}Q{scalars}")
    assert layout.size == len(buffer), f"{len(buffer)} bytes of parameters, {layout.size} expected"
    values = layout.unpack(buffer)
    return values[:words], *values[words:]


def list_arguments(launch: dict) -> ListArguments:
    return ListArguments(*_unpack(launch, "qiiQQ"))


def ragged_arguments(launch: dict) -> RaggedArguments:
    return RaggedArguments(*_unpack(launch, "iiiiQQ"))


def pack_arguments(launch: dict) -> PackArguments:
    return PackArguments(*_unpack(launch, "QQQQiiQQ"))


def packed_memory(launches: list[dict], block: int = 128) -> dict[int, int]:
    """What launches of `pack` (aot/kernels/memory/pack.py) leave in memory: address -> word. `block`: its BLOCK."""
    memory = {}
    for launch in launches:
        arguments = pack_arguments(launch)
        assert launch["symbol"] == "pack" and arguments.problems == 0
        moved = arguments.groups * (arguments.record_words + 1)
        assert moved <= launch["grid"][0] * block, "a thread for each word"
        for address, word in expanded(arguments):
            assert address not in memory, "each word is written once"
            memory[address] = word
    return memory


def uploaded_words(arguments: ListArguments, packs: list[dict], count: int) -> tuple[int, ...]:
    """The words of a list in device memory, as the kernel that these arguments are of finds them there; 0 where nobody
    wrote: `hopper` reads none of the words that fill its ends up to 64 bytes."""
    memory = packed_memory(packs)
    inside = range(arguments.problems, arguments.problems + 8 * count, 8)
    assert memory.keys() <= set(inside), "written outside of the list"
    return tuple(memory.get(address, 0) for address in inside)


def expanded(arguments: PackArguments) -> Iterator[tuple[int, int]]:
    """(address, word) of all that one launch writes: words that all groups share, then those of each."""
    positions = range(arguments.record_words + 1)
    own = [position for position in positions if arguments.differs >> position & 1]
    same = [position for position in positions if position not in own]
    shared = dict(zip(same, arguments.words))
    for group in range(arguments.groups):
        start = len(same) + len(own) * group
        words = shared | dict(zip(own, arguments.words[start : start + len(own)]))
        yield arguments.ends + 8 * group, words[0]
        for position in positions[1:]:
            yield arguments.records + 8 * (arguments.record_words * group + position - 1), words[position]


def read_list(words: tuple[int, ...], groups: int, kind: Record = LIST_POINTERS) -> tuple[list[int], list[dict]]:
    """Ends and records of a list for `basic` or `tma`."""
    signed = struct.unpack(f"{len(words)}q", struct.pack(f"{len(words)}Q", *words))
    records = [signed[groups + kind.words * g : groups + kind.words * (g + 1)] for g in range(groups)]
    return list(signed[:groups]), [dict(zip([field.name for field in kind.fields], record)) for record in records]


def read_descriptors(
    words: tuple[int, ...], groups: int, kind: Record = LIST_DESCRIPTORS
) -> tuple[list[int], list[dict]]:
    """Ends and records of a list for `hopper` (aot/kernels/hopper/hopper.py), whose ends fill whole 64 bytes."""
    start, size, offsets = ceil(groups / 8) * 8, kind.words, kind.word_offsets()
    records = []
    for record in (words[start + size * g : start + size * (g + 1)] for g in range(groups)):
        found = {}
        for field in kind.fields:
            own = record[offsets[field.name] : offsets[field.name] + field.words]
            found[field.name] = dict(zip(DESCRIPTOR, own)) if field.kind == "descriptor" else own[0]
        records.append(found)
    return list(words[:groups]), records


def record_of(words: tuple[int, ...], symbol: str) -> Record:
    """What an entry point of grouped products reads. Those of `hopper` have a larger record to gather or to gate."""
    if symbol not in DESCRIBED:
        return {
            "basic_ragged": SCALED_POINTERS if len(words) == SCALED_POINTERS.words else GROUPED_POINTERS,
            "basic_gated": GATED_POINTERS,
            "basic_stack": SCALED_STACK_POINTERS if len(words) == SCALED_STACK_POINTERS.words else STACK_POINTERS,
            "basic_ragged_k": GROUPED_K_POINTERS,
            "basic_ragged_k_block_scales": SCALED_K_POINTERS,
        }[symbol]
    if symbol == "hopper_kept":
        return KEPT_DESCRIPTORS
    if symbol == "hopper_dgated":
        return GRADIENT_DESCRIPTORS
    if symbol == "hopper_ragged_k_block_scales":
        return SCALED_K_DESCRIPTORS
    if symbol == "hopper_ragged_k":
        return GATHER_K_DESCRIPTORS if len(words) >= GATHER_K_DESCRIPTORS.words else GROUPED_K_DESCRIPTORS
    for scaled in (SCALED_DESCRIPTORS, SCALED_STACK_DESCRIPTORS, GATHERED_SCALED_DESCRIPTORS, QUANTIZED_DESCRIPTORS):
        if len(words) == scaled.words + 1:
            return scaled
    return GATED_DESCRIPTORS if len(words) >= GATED_DESCRIPTORS.words else GROUPED_DESCRIPTORS


def read_ragged(words: tuple[int, ...], symbol: str) -> dict:
    """The record of a grouped product by the names of its fields; descriptors as `read_descriptor`, the rest signed.
    The word of the activation is two: activation and limit_bits."""
    record = record_of(words, symbol)
    assert len(words) - record.words == (1 if symbol in DESCRIBED else 0), (len(words), record.name)
    found, offsets = {}, record.word_offsets()
    for field in record.fields:
        own = words[offsets[field.name] : offsets[field.name] + field.words]
        is_descriptor = field.kind == "descriptor"
        found[field.name] = read_descriptor(own) if is_descriptor else own[0] - (own[0] >> 63 << 64)
    if "activation" in found:
        found["limit_bits"], found["activation"] = divmod(found["activation"], 1 << 32)
    return found


def float_bits(value: float) -> int:
    return struct.unpack("i", struct.pack("f", value))[0]


def limit_bits(activation: str | None, swiglu_limit: float | None = None) -> int:
    """What a kernel is told to limit gate and up to."""
    default = 7 if activation == "swiglu_oai" else float("inf")
    return float_bits(default if swiglu_limit is None else swiglu_limit)


def read_descriptor(words: tuple[int, ...]) -> dict:
    """A descriptor of any rank as fake_cuda.c writes it: sizes, byte strides and box, the innermost dimension first."""
    rank = words[7]
    more = max(rank - 2, 0)
    return {
        "address": words[0], "sizes": [*words[1:3], *words[8 : 8 + more]],
        "strides": [words[3], *words[11 : 11 + more]],
        "box": [*words[4:6], *(words[14] >> 16 * i & 0xFFFF for i in range(more))], "type": words[6],
    }  # fmt: skip


def by_value(arguments: "ListArguments | RaggedArguments", kernel: str) -> tuple[int, ...]:
    """The words from where the kernel looks for them: descriptors start at the parameters' first 64-byte boundary."""
    return arguments.words[-PARAMETERS_START % 64 // 8 if kernel.startswith("hopper") else 0 :]


def expected_record(a: dict, b: dict, c: dict, scales: tuple[int, int] = (0, 0)) -> dict:
    """The record of C = A @ B, of arrays as `Array.facts` gives them; C has unit column stride. Scales by address."""
    values = (a["address"], b["address"], c["address"], *a["strides"], *b["strides"], *c["strides"])
    return dict(zip(RECORD, (*values, *c["shape"], a["shape"][1], *scales)))


def expected_ends(records: list[dict], block_m: int, block_n: int) -> list[int]:
    ends, end = [], 0
    for record in records:
        end += ceil(record["m"] / block_m) * ceil(record["n"] / block_n)
        ends.append(end)
    return ends
