"""From sums to C, in `hopper` and `hopper_ragged`: scales and bias, rounding, shared memory, TMA.

TMA leaves out rows and columns past a group's edge: no tile has a slow path. (Columns by whole 16 bytes, hence the
guarantee about N.)
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from ..records import grouped_descriptors, list_descriptors
from .tiles import LAST_ROW, counted_row, word

# csrc/forms/guarantees.hpp takes no more rows than these, and a tile of them still counts in 32 bits.
_PAST_ROWS = gl.constexpr(2**31 - 256)


@gluon.aggregate
class Place:
    """Where a tile's values go, as C's descriptor counts rows; what it does not have is left out."""

    record: gl.tensor
    row: gl.tensor
    stop: gl.tensor  # of a ragged matrix: the row of C at which the group ends
    column: gl.tensor


@gluon.jit
def place_of(work, group, row, column):
    if work.RAGGED:
        return Place(group.record, counted_row(group.start, group.stop, row), group.stop, column)
    else:
        return Place(group.record, row, gl.to_tensor(0), column)


@gluon.jit
def nowhere(work, group):
    """A place outside of its group, of which nothing is written.

    In a list it lies past the rows of every matrix: the producer may not have acquired C's descriptor yet, and what the
    multiprocessor caches in its place may be one of more rows than the group has. (Rows below 0 are an illegal
    instruction.) Its fields are values of their own: the compiler does not carry a variable from turn to turn of a loop
    if it starts as another variable's value and then takes the value that the other had.
    """
    row = gl.to_tensor(LAST_ROW if work.RAGGED else _PAST_ROWS)
    return Place(group.record + 0, row, group.stop + 0, gl.to_tensor(0))


@gluon.jit
def copy_out(descriptor, inner, outer, buffer, offset, leader):
    """One TMA box from `buffer` + `offset` bytes to global memory, issued by thread `leader` of the CTA."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread, source; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $5; "
        "add.u32 source, $3, $4; "
        "@elected cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$1, $2}], [source]; }",
        "l,r,r,r,r,r",
        [descriptor, inner, outer, buffer, offset, leader],
    )


@gluon.jit
def copy_out_ragged(descriptor, inner, row, stop, buffer, offset, leader):
    """One TMA box to row `row`, as counted_row has it, of a group that ends at row `stop` of C."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread, source; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $7; "
        "add.u32 source, $5, $6; "
        "@elected cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
        "[$0, {$1, $2, $3, $4}], [source]; }",
        "l,r,r,r,r,r,r,r",
        [descriptor, inner, row, gl.to_tensor(LAST_ROW), stop, buffer, offset, leader],
    )


@gluon.jit
def commit_out(leader):
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $0; "
        "@elected cp.async.bulk.commit_group; }",
        "r",
        [leader],
    )


@gluon.jit
def write_slice(
    work, place, values,
    OFFSET: gl.constexpr, ME: gl.constexpr, BUFFER: gl.constexpr, WRITING: gl.constexpr,
):  # fmt: skip
    """The columns from OFFSET on of a tile, through a buffer; WRITING slices before it may still be on their way."""
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    WIDE: gl.constexpr = 1024 // work.c_tiles.dtype.primitive_bitwidth
    buffer = work.c_tiles.index(BUFFER)
    tma.store_wait(WRITING)
    gl.barrier()  # the compiler does not see copy_out read the tile: order it by hand on both sides
    if work.SWAPPED:
        buffer.permute((1, 0)).store(values.to(buffer.dtype))
    else:
        buffer.store(values.to(buffer.dtype))
    fence_async_shared()
    gl.barrier()
    for i in gl.static_range(buffer.shape[1] // WIDE):
        at = place.column + OFFSET + i * WIDE
        bytes = i * buffer.shape[0] * 128
        if work.RAGGED:
            copy_out_ragged(place.record + list_descriptors.c, at, place.row, place.stop, buffer, bytes, LEADER)
        else:
            copy_out(place.record + list_descriptors.c, at, place.row, buffer, bytes, LEADER)
    commit_out(LEADER)


@gluon.jit
def scale(address, index):
    """Element `index` of the float32 array at `address`, 1 where there is none."""
    return gl.load(address.to(gl.pointer_type(gl.float32)) + index, mask=address != 0, other=1.0)


@gluon.jit
def finish(work, group, sums, column):
    """Scales and bias, before the sums are rounded. The rows behind the last group have neither."""
    if work.SCALING == "tensor":
        if work.RAGGED:
            index = gl.minimum(group.index, work.groups - 1).to(gl.int64)
            sums *= scale(word(group.record + grouped_descriptors.scale_a), 0)
            sums *= scale(
                word(group.record + grouped_descriptors.scale_b),
                index * word(group.record + grouped_descriptors.scale_b_step),
            )
        else:
            sums *= scale(word(group.record + list_descriptors.scale_a), 0)
            sums *= scale(word(group.record + list_descriptors.scale_b), 0)
    if work.RAGGED:
        bias = word(group.record + grouped_descriptors.bias)
        if (bias != 0) & (group.index < work.groups):
            OUT: gl.constexpr = work.c_tiles.dtype
            ROWS_ALONG: gl.constexpr = 1 if work.SWAPPED else 0
            columns = column + gl.arange(0, work.BLOCK_N, gl.SliceLayout(ROWS_ALONG, sums.type.layout))
            row = bias.to(gl.pointer_type(OUT)) + group.index.to(gl.int64) * word(
                group.record + grouped_descriptors.bias_row
            )
            row += columns.to(gl.int64) * word(group.record + grouped_descriptors.bias_col)
            sums += gl.load(row, mask=columns < group.columns, other=0.0).to(gl.float32).expand_dims(ROWS_ALONG)
    return sums


@gluon.jit
def halves(tile):
    return tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def quarter(tile, INDEX: gl.constexpr):
    left, right = halves(tile)
    first, second = halves(left if INDEX < 2 else right)
    return first if INDEX % 2 == 0 else second


@gluon.jit
def write_out(work, place, sums, ME: gl.constexpr):
    """The tile through consumer group ME's buffer, whole or in slices, which leave room for a stage of the ring."""
    if work.SLICES == 1:
        write_slice(work, place, sums, 0, ME, ME, 0)
    elif work.SLICES == 2:
        left, right = halves(sums)
        write_slice(work, place, left, 0, ME, ME, 0)
        write_slice(work, place, right, work.BLOCK_N // 2, ME, ME, 0)
    else:
        for i in gl.static_range(4):
            write_slice(work, place, quarter(sums, i), i * (work.BLOCK_N // 4), ME, ME, 0)


@gluon.jit
def rounded(work, sums):
    """Sums as C has them, of 16 bits, two neighbours in a word: kept one by one they would take a register each."""
    PAIR: gl.constexpr = "bf16x2" if work.c_tiles.dtype == gl.bfloat16 else "f16x2"
    left, right = sums.reshape([sums.shape[0], sums.shape[1] // 2, 2]).split()
    return gl.inline_asm_elementwise(
        "cvt.rn." + PAIR + ".f32 $0, $2, $1;", "=r,r,r", [left, right], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def write_quarter(work, place, pairs, INDEX: gl.constexpr):
    """A quarter of a tile that `rounded` made, through two buffers in turns. For the only consumer group."""
    words = quarter(pairs, INDEX)
    left = words.to(gl.int16).to(work.c_tiles.dtype, bitcast=True)
    right = (words >> 16).to(gl.int16).to(work.c_tiles.dtype, bitcast=True)
    values = gl.join(left, right).reshape([words.shape[0], 2 * words.shape[1]])
    write_slice(work, place, values, INDEX * (work.BLOCK_N // 4), 0, INDEX % 2, 1)
