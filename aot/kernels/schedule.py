"""The problem list of the kernels that take pointers and strides, and the order in which a persistent grid walks it.

A problem list is an array of 64-bit words, the same in device memory and in kernel parameters:

ends[groups]      cumulative tile counts: group g owns the tiles [ends[g-1], ends[g])
record[groups]    LIST_POINTERS of aot/spec/records.py

Addresses are bytes, strides are elements. A scale is the address of one float32, or 0 for 1.0. The host sorts the
groups by falling K, so that the longest tiles start first, and leaves out the empty ones. Only
csrc/forms/list_record.cpp writes this layout.
"""

import triton
import triton.language as tl

from .records import list_pointers
from .sizes import ceil_div

_SCAN_WINDOW = tl.constexpr(128)  # groups whose ends are compared at once


@triton.jit
def word(address, GENERIC: tl.constexpr):
    """The 64-bit word at `address`. GENERIC also reaches kernel parameters, which `ld.global` must not read."""
    if GENERIC:
        return tl.inline_asm_elementwise("ld.b64 $0, [$1];", "=l,l", [address], dtype=tl.int64, is_pure=True, pack=1)
    else:
        return tl.load(address.to(tl.pointer_type(tl.int64)))


@triton.jit
def list_address(problems, BY_VALUE: tl.constexpr):
    """Where the list lies: at `problems`, or if that is 0 in the first parameter of the kernel named BY_VALUE."""
    if BY_VALUE is None:
        return problems
    else:
        by_value = tl.inline_asm_elementwise(
            "{ .reg .b64 parameter; mov.b64 parameter, " + BY_VALUE + "_param_0; cvta.param.u64 $0, parameter; "
            "add.s64 $0, $0, $1; }",
            "=l,l",
            [tl.cast(0, tl.int64)],
            dtype=tl.int64,
            is_pure=True,
            pack=1,
        )
        return tl.where(problems == 0, by_value, problems)


@triton.jit
def find_group(base, groups, tile, GENERIC: tl.constexpr):
    """The group that owns `tile`: how many groups end at or before it, a scan window at a time."""
    group = 0
    for start in range(0, groups, _SCAN_WINDOW):
        index = start + tl.arange(0, _SCAN_WINDOW)
        ends = word(base + tl.minimum(index, groups - 1).to(tl.int64) * 8, GENERIC)
        group += tl.sum(((ends <= tile) & (index < groups)).to(tl.int32))
    return group


@triton.jit
def group_tiles(base, group, GENERIC: tl.constexpr):
    """The first tile of `group` and the first one past it."""
    end = word(base + group.to(tl.int64) * 8, GENERIC).to(tl.int32)
    before = word(base + tl.maximum(group - 1, 0).to(tl.int64) * 8, GENERIC).to(tl.int32)
    return tl.where(group > 0, before, 0), end


@triton.jit
def record_address(base, groups, group):
    return base + groups.to(tl.int64) * 8 + group.to(tl.int64) * list_pointers.size


@triton.jit
def extent(address, WHOLE: tl.constexpr, GENERIC: tl.constexpr):
    """A size of the record; WHOLE guarantees that 8 divides it.

    One size a call: a hint on one of several results of a call holds for all of them, and a mask that takes M for a
    multiple of 8 lets stores out of the matrix.
    """
    size = word(address, GENERIC).to(tl.int32)
    return tl.multiple_of(size, 8) if WHOLE else size


@triton.jit
def tile_position(index, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The group's tile `index` in units of tiles: (row tile, column tile).

    Tiles are walked in bands of GROUP_M row tiles, down each column of a band. CTAs that run at the same time then
    share rows of A and columns of B in L2. Triton's matmul tutorial calls it grouped ordering.
    """
    m_tiles = ceil_div(M, BLOCK_M)
    n_tiles = ceil_div(N, BLOCK_N)
    band = index // (GROUP_M * n_tiles)
    band_tiles = tl.minimum(m_tiles - band * GROUP_M, GROUP_M)
    within = index % (GROUP_M * n_tiles)
    return band * GROUP_M + within % band_tiles, within // band_tiles
