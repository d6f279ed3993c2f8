"""Has the instructions of long promotions yield: a control bit that no compiler option sets.

A promotion is a run of FFMA or FADD, one a cycle, beside another warp group's products. Where none yields, the whole
product takes a tenth longer. Most likely the two share the ports of the register file: the tensor cores read and write
sums there. ptxas lets each second instruction yield where products and promotion lie in one iteration of a loop, and
none where they are pipelined (kernels/hopper/wide.py). DeepGEMM rewrote the bit too, until CUDA 12.9 set it. Each
fourth is the fastest of those tried on an H200: benchmarks/notes/fp8.md. Of a promotion with a scale for each column
the FMULs count too, and loads of scales lie between.
"""

import struct
from collections.abc import Iterator

from .elf import read_sections

EACH = 4
LONG = 80  # of the 96 sums of a thread, for 64 x 192 in a warp group. Epilogues and lesser tiles have shorter runs
LONG_OF_A_HALF = 50  # of the 64 for half of 64 x 256, of which ptxas moves some behind other instructions

_BYTES = 16  # of an instruction, two words of 64 bits
_SUMS, _PRODUCT = (0x223, 0x221), 0x220  # FFMA, FADD; FMUL: of registers alone
_BETWEEN = 4  # other instructions in a row, as loads of scales, that end no run with products
_STALL, _YIELD, _REUSE = 41, 45, 58  # bits of the upper word: 4 of cycles until the next issue; 0 yields; 4 of operands


def spread(image: bytes, long: int = LONG) -> bytes:
    """A cubin in which runs of at least `long` yield. Nothing but control bits is changed: what is computed stays as it
    is."""
    for name, code in read_sections(image):
        if name.startswith(".text."):
            image = image.replace(code, _spread(code, long), 1)
    return image


def _spread(code: bytes, long: int = LONG) -> bytes:
    found = bytearray(code)
    for runs in (_runs, _runs_with_products):
        for place in (place for run in runs(bytes(found), long) for place in run[::EACH]):
            (word,) = struct.unpack_from("<Q", found, place + 8)
            word &= ~(1 << _YIELD | 15 << _REUSE)  # a warp that yields keeps no operand for its next instruction
            struct.pack_into("<Q", found, place + 8, word)
    return bytes(found)


def _instructions(code: bytes) -> Iterator[tuple[int, int, bool, bool]]:
    """Place, opcode, whether the next one is issued a cycle later, and whether the warp stays."""
    for place in range(0, len(code), _BYTES):
        low, high = struct.unpack_from("<QQ", code, place)
        yield place, low & 0xFFF, high >> _STALL & 15 == 1, bool(high >> _YIELD & 1)


def _runs(code: bytes, long: int) -> list[list[int]]:
    """Where the instructions lie of each long run of sums of which none yields."""
    runs, run = [], []
    for place, opcode, at_once, stays in _instructions(code):
        if opcode in _SUMS and at_once and stays:
            run.append(place)
        else:
            runs.append(run)
            run = []
    return [run for run in (*runs, run) if len(run) >= long]


def _runs_with_products(code: bytes, long: int) -> list[list[int]]:
    """The same of as many sums and as many products of scales, with little else between. Sums alone, with loads of what
    is added, are an epilogue's."""
    runs, run, sums = [], [], 0
    for place, opcode, at_once, stays in _instructions(code):
        is_math = at_once and (opcode in _SUMS or opcode == _PRODUCT)
        if is_math and stays:
            run.append(place)
            sums += opcode in _SUMS
        elif is_math or (run and place - run[-1] > _BETWEEN * _BYTES):
            runs.append((run, sums))
            run, sums = [], 0
    return [run for run, sums in (*runs, (run, sums)) if min(sums, len(run) - sums) >= long]
