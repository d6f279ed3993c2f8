"""Reads from a cubin what the hardware will see: parameters, registers, stack, block size, format version.

A cubin is an ELF file whose `.nv.info` sections hold records (format, attribute, value). Nothing here asks Triton, so
what it says can be held against what Triton says.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Attributes of .nv.info, by the names that cuobjdump prints (EIATTR_...).
PARAM_CBANK = 0x0A
REQNTID = 0x10
FRAME_SIZE = 0x11
KPARAM_INFO = 0x17
CBANK_PARAM_SIZE = 0x19
REGCOUNT = 0x2F

_FORMAT_SIZED = 4  # the record is followed by as many bytes as its 16-bit value says


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter's place in the launch buffer, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True)
class Cubin:
    """Facts of the one kernel that a cubin holds."""

    abi: int  # 7: CUDA 12 drivers load it; 8: CUDA 13
    symbol: str
    parameters: tuple[Parameter, ...]
    parameter_bytes: int
    parameter_base: int  # where in the constant bank parameters start; the bank lies on 64 bytes
    threads: int
    registers: int
    stack_bytes: int  # local memory of a thread: spills, as the kernels have no local arrays


def read_cubin(image: bytes) -> Cubin:
    """Raises ValueError when the image is no cubin, or holds none or several kernels."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError(f"not a 64-bit ELF file: it starts with {image[:5].hex()}")
    sections = dict(read_sections(image))
    kernels = [name[len(".text.") :] for name in sections if name.startswith(".text.")]
    if len(kernels) != 1:
        raise ValueError(f"a cubin must hold one kernel, this one holds {kernels}")
    symbol = kernels[0]
    own = list(_records(sections[f".nv.info.{symbol}"]))
    shared = list(_records(sections[".nv.info"]))
    index = _symbol_index(sections, symbol)
    return Cubin(
        abi=image[8],
        symbol=symbol,
        parameters=_parameters(own),
        parameter_bytes=_only(own, CBANK_PARAM_SIZE, "<H"),
        parameter_base=_only(own, PARAM_CBANK, "<4xHH"),
        threads=_only(own, REQNTID, "<III"),
        registers=_of_symbol(shared, REGCOUNT, index),
        stack_bytes=_of_symbol(shared, FRAME_SIZE, index),
    )


def read_sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each."""
    table, entry_bytes, count, names_index = struct.unpack_from("<Q10xHHH", image, 40)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + entry * entry_bytes) for entry in range(count)]
    names = image[headers[names_index][4] :]
    for name, kind, _, _, offset, size, *_ in headers:
        no_bits = kind == 8
        yield names[name : names.index(b"\0", name)].decode(), b"" if no_bits else image[offset : offset + size]


def _records(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        size = value if form == _FORMAT_SIZED else 0
        yield attribute, section[at : at + size] if form == _FORMAT_SIZED else section[at - 2 : at]
        at += size


def _parameters(records: list[tuple[int, bytes]]) -> tuple[Parameter, ...]:
    found = {}
    for attribute, value in records:
        if attribute == KPARAM_INFO:
            _, ordinal, offset, flags = struct.unpack("<IHHI", value)
            found[ordinal] = Parameter(offset, flags >> 18)
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"parameters are not numbered from 0: {sorted(found)}")
    return tuple(found[ordinal] for ordinal in sorted(found))


def _only(records: list[tuple[int, bytes]], wanted: int, layout: str) -> int:
    values = [struct.unpack(layout, value)[0] for attribute, value in records if attribute == wanted]
    if len(values) != 1:
        raise ValueError(f"expected one record of attribute {wanted:#x}, found {len(values)}")
    return values[0]


def _of_symbol(records: list[tuple[int, bytes]], wanted: int, symbol: int) -> int:
    pairs = [struct.unpack("<II", value) for attribute, value in records if attribute == wanted]
    values = [value for index, value in pairs if index == symbol]
    if len(values) != 1:
        raise ValueError(f"expected one record of attribute {wanted:#x} for symbol {symbol}, found {len(values)}")
    return values[0]


def _symbol_index(sections: dict[str, bytes], symbol: str) -> int:
    names, table = sections[".strtab"], sections[".symtab"]
    wanted = symbol.encode() + b"\0"
    for index in range(len(table) // 24):
        (name,) = struct.unpack_from("<I", table, index * 24)
        if names[name : name + len(wanted)] == wanted:
            return index
    raise ValueError(f"no symbol {symbol}")
