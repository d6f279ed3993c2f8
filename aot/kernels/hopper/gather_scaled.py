"""The producer of a gathering kernel with scales of blocks: rows of A by an index, each with its scales, and B.

As gather.py. The scales of a k-tile are copied a k-tile ahead, where produce_scaled of promotion.py copies four: each
thread copies that of one row, and four threads those of the columns. A row that is not to be read has the scale 0.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import gathered_scaled_descriptors
from .gather import copies_of_tile, copy_rows, gathering_lanes, load_b, rows_of_tile
from .record import word_now
from .scale_ring import BLOCK, part_columns, scale_slot, words
from .work import shared_address, tile_coord


@gluon.aggregate
class GatheredSources:
    """Where the scales of a k-tile lie that a thread copies, and how far it is to those of the next one."""

    a: gl.tensor  # of a row of the tile
    exists: gl.tensor
    b: gl.tensor  # of a part of its columns
    a_step: gl.tensor
    b_step: gl.tensor


@gluon.jit
def sources_of_tile(work, group, m, n):
    """Of a tile's first k-tile. The last columns may lie past N: they take the last block's scale."""
    gl.static_assert(work.tiling.BLOCK_M == 32 * gl.num_warps(), "a thread copies the scale of one row")
    base, thread = work.schedule.base, words(work.tiling.BLOCK_M)
    COLUMNS: gl.constexpr = part_columns(work.tiling.BLOCK_N)
    wanted, exists = rows_of_tile(work, group, m, thread)
    of_row = gl.where(exists, wanted, 0) * word_now(base + gathered_scaled_descriptors.scale_a_row)
    part = thread % work.scaling.b.shape[1]
    if work.epilogue.HALVES:  # whole blocks of gate, then of up, or the other way round
        block = n // (2 * BLOCK) + (part ^ work.schedule.gate_of_b(group)) * (group.N // (2 * BLOCK))
    else:
        block = gl.minimum((n + part * COLUMNS) // BLOCK, gl.cdiv(group.N, BLOCK) - 1)
    index = gl.minimum(group.index, work.schedule.groups - 1).to(gl.int64)
    of_columns = index * word_now(base + gathered_scaled_descriptors.scale_b_step)
    of_columns += block.to(gl.int64) * word_now(base + gathered_scaled_descriptors.scale_b_n)
    return GatheredSources(
        word_now(base + gathered_scaled_descriptors.scale_a) + of_row * 4,
        exists,
        word_now(base + gathered_scaled_descriptors.scale_b) + of_columns * 4,
        word_now(base + gathered_scaled_descriptors.scale_a_k) * 4,
        word_now(base + gathered_scaled_descriptors.scale_b_k) * 4,
    )


@gluon.constexpr_function
def _copies(columns):
    """The PTX of a thread's copies of scales. Operands: the thread, of a row's scale the destination, the source and
    whether it is there, and of a column's the destination and the source."""
    return (
        f"{{ .reg .pred zero, copies; setp.eq.u32 zero, $3, 0; setp.lt.u32 copies, $0, {columns}; "
        "cp.async.ca.shared.global [$1], [$2], 4, zero; @copies cp.async.ca.shared.global [$4], [$5], 4; }"
    )


@gluon.jit
def copy_scales(work, sources, slot):
    """cp.async of the scales of a k-tile. Returns the sources of the next one."""
    thread = words(work.tiling.BLOCK_M)
    gl.inline_asm(
        _copies(work.scaling.b.shape[1]),
        "r,r,l,r,r,l",
        [
            thread,
            shared_address(work.scaling.a) + (slot * work.scaling.PITCH + thread) * 4,
            sources.a,
            sources.exists.to(gl.int32),
            shared_address(work.scaling.b.index(slot)) + thread * 4,
            sources.b,
        ],
    )
    a_step, b_step = sources.a_step, sources.b_step
    return GatheredSources(sources.a + a_step, sources.exists, sources.b + b_step, a_step, b_step)


@gluon.jit
def gather_scaled(work):
    gl.static_assert(work.scaling.BLOCKS and work.scaling.AHEAD, "scales of blocks, copied a k-tile ahead")
    lanes = gathering_lanes(work)
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            sources = sources_of_tile(work, group, m, n)  # worked out behind the copies they would spill
            copies = copies_of_tile(work, group, lanes, m)
            if k_tiles > 0:
                sources = copy_scales(work, sources, scale_slot(work, k_tile))
            for i in range(0, k_tiles):
                copies = copy_rows(work, lanes, copies, k_tile, True)
                load_b(work, group, lanes, n, i * work.tiling.BLOCK_K, k_tile)
                k_tile += 1
                if i + 1 < k_tiles:
                    sources = copy_scales(work, sources, scale_slot(work, k_tile))
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
