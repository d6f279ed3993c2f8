"""`basic_ragged`: C = A @ B[g] for the rows of A that are group g's, through pointers and cp.async; sm_80 and later.

`offs` says where the groups end. It is read on the device and may hold anything: ends are made to rise and to stay
within [0, rows]. The rows behind the last end are one more group, without depth and bias, which makes them 0.

`list_words` are the words of GROUPED_POINTERS in aot/spec/abi.py.
"""

import triton
import triton.language as tl

from ..records import grouped_words as at
from ..schedule import tile_position, tiles_along
from .tile import product, scale, store

SEARCH_BLOCK = 256  # groups that are looked at together: with their tail, 255 in one go

_SEARCH_BLOCK = tl.constexpr(SEARCH_BLOCK)


@triton.jit
def _later(end, other):
    return tl.maximum(end, other)


@triton.jit
def _ends(offs, index, groups, rows, before):
    """Where each of consecutive groups ends, the tail included, if those before the first one end at `before`."""
    nothing = tl.where(index < 0, 0, rows)
    stated = tl.load(offs + index, mask=(index >= 0) & (index < groups), other=nothing)
    return tl.minimum(tl.associative_scan(tl.maximum(stated, before), 0, _later), rows)


@triton.jit
def _nearest(behind, first, begin, end, more_behind, other_first, other_begin, other_end):
    begin, end = tl.maximum(begin, other_begin), tl.minimum(end, other_end)
    return behind + more_behind, tl.maximum(first, other_first), begin, end


@triton.jit
def _owner(tile, tile_ends, ends, first_tile, first_row, rows):
    """Of consecutive groups: how many lie before the one that owns `tile`, and its first tile, first row and end."""
    behind = tile_ends <= tile
    first = tl.where(behind, tile_ends, first_tile)
    begin, end = tl.where(behind, ends, first_row), tl.where(behind, rows, ends)
    return tl.reduce((behind.to(tl.int32), first, begin, end), 0, _nearest)


@triton.jit
def _bias(address, column, columns_left, stride, OUT: tl.constexpr, BLOCK_N: tl.constexpr):
    """The part of a row of biases that a tile at `column` adds."""
    index = tl.arange(0, BLOCK_N)
    place = address.to(tl.pointer_type(OUT)) + (column.to(tl.int64) + index) * stride
    return tl.load(place, mask=index < columns_left, other=0.0).to(tl.float32)


@triton.jit
def _pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(DTYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _whole(value, ALIGNED: tl.constexpr):
    """`value`, which ALIGNED promises to be a multiple of 8: hints on a kernel's own arguments would get lost."""
    return value // 8 * 8 if ALIGNED else value


@triton.jit
def basic_ragged(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SCALING: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
):
    """One CTA of a persistent grid: every `num_programs`-th tile, group by group.

    LAYOUT "nn", "nt", "tn", "tt": A with K or rows contiguous, B with N or K contiguous; "strided": neither is known.
    ALIGNED (nn and nt): pointers on 16 bytes, and 8 divides leading strides, N and K. SCALING: of aot/spec/abi.py.
    """
    a = _pointer(list_words[at.a], DTYPE, ALIGNED)
    b = _pointer(list_words[at.b], DTYPE, ALIGNED)
    c = _pointer(list_words[at.c], OUT, ALIGNED)
    offs = list_words[at.offs].to(tl.pointer_type(tl.int32))
    N, K = _whole(columns, ALIGNED), _whole(depth, ALIGNED)

    tile = tl.program_id(0)
    next_tile = 0  # the first behind the groups that were looked at
    next_row = 0
    for start in range(0, groups + 1, _SEARCH_BLOCK):
        first_tile, first_row = next_tile, next_row
        index = start + tl.arange(0, _SEARCH_BLOCK)
        begins = _ends(offs, index - 1, groups, rows, first_row)
        ends = _ends(offs, index, groups, rows, first_row)
        tiles = tiles_along(ends - begins, BLOCK_M) * tiles_along(N, BLOCK_N)
        tile_ends = first_tile + tl.cumsum(tiles)
        next_tile, next_row = tl.max(tile_ends), tl.max(ends)
        while tile < next_tile:
            behind, first, begin, end = _owner(tile, tile_ends, ends, first_tile, first_row, rows)
            group = start + behind
            within = group < groups  # else these are the rows behind the last group
            # Always 0, which no compiler sees: else products of strides and indices are taken out of the loop over the
            # tiles, live in registers all through it, and make them spill.
            zero = tl.minimum(tile, 0).to(tl.int64)
            a_row, a_col = _whole(list_words[at.a_row] + zero, ALIGNED), _whole(list_words[at.a_col] + zero, ALIGNED)
            b_row, b_col = _whole(list_words[at.b_row] + zero, ALIGNED), _whole(list_words[at.b_col] + zero, ALIGNED)
            c_row, c_col = _whole(list_words[at.c_row] + zero, ALIGNED), _whole(list_words[at.c_col] + zero, ALIGNED)
            b_stack = b + group.to(tl.int64) * _whole(list_words[at.b_group], ALIGNED)

            tile_row, tile_column = tile_position(tile - first, end - begin, N, BLOCK_M, BLOCK_N, RASTER)
            row, column = begin + tile_row * BLOCK_M, tile_column * BLOCK_N
            rows_left, columns_left = end - row, N - column
            sums = product(
                a, b_stack, row, column, rows_left, columns_left, tl.where(within, K, 0), a_row, a_col, b_row, b_col,
                LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            if SCALING == "tensor":
                scale_b = scale(list_words[at.scale_b], group.to(tl.int64) * list_words[at.scale_b_step], within)
                sums *= scale(list_words[at.scale_a], 0, within) * scale_b
            if (list_words[at.bias] != 0) & within:
                bias = list_words[at.bias] + group.to(tl.int64) * list_words[at.bias_row] * (
                    OUT.primitive_bitwidth // 8
                )
                sums += _bias(bias, column, columns_left, list_words[at.bias_col], OUT, BLOCK_N)[None, :]
            store(c, sums, row, column, rows_left, columns_left, c_row, c_col, LAYOUT)
            tile += tl.num_programs(0)
