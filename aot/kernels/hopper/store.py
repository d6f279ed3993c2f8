"""From a tile's values to C: rounding, shared memory, TMA.

TMA leaves out rows and columns past the end of C, so no tile has a slow path. (Columns by whole 16 bytes, hence the
guarantee about N.)
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from .boxes import commit_stores


@gluon.jit
def store_buffer(work, coord, buffer, OFFSET: gl.constexpr, leader):
    """A buffer to the tile's columns from OFFSET on, box by box. `leader` as of store_2d in hopper/boxes.py."""
    BOX: gl.constexpr = 1024 // work.tiling.OUT.primitive_bitwidth
    for i in gl.static_range(buffer.shape[1] // BOX):
        work.schedule.store(coord, coord.n + OFFSET + i * BOX, buffer, i * buffer.shape[0] * 128, leader)


@gluon.jit
def fill(buffer, values, IN_FLIGHT: gl.constexpr, TRANSPOSED: gl.constexpr = False):
    """Rounds values into a buffer that TMA stores from next. IN_FLIGHT stores before may still be read by TMA.

    The compiler does not see that the stores in PTX read the buffer: barriers order them by hand on both sides.
    """
    tma.store_wait(IN_FLIGHT)
    gl.barrier()
    if TRANSPOSED:
        buffer.permute((1, 0)).store(values.to(buffer.dtype))
    else:
        buffer.store(values.to(buffer.dtype))
    fence_async_shared()
    gl.barrier()


@gluon.jit
def store_subtile(
    work, coord, values,
    OFFSET: gl.constexpr, ME: gl.constexpr, BUFFER: gl.constexpr, IN_FLIGHT: gl.constexpr,
):  # fmt: skip
    """The columns of a tile from OFFSET on, through a buffer. IN_FLIGHT as of `fill`."""
    buffer = work.c_buffers.index(BUFFER)
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    fill(buffer, values, IN_FLIGHT, work.tiling.SWAP_AB)
    store_buffer(work, coord, buffer, OFFSET, LEADER)
    commit_stores(LEADER)


@gluon.jit
def halves(tile):
    """The left and the right half of a tile's columns."""
    return tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def from_halves(left, right):
    """The tile of which these are the halves."""
    return gl.join(left, right).permute((0, 2, 1)).reshape([left.shape[0], 2 * left.shape[1]])


@gluon.jit
def subtile(tile, INDEX: gl.constexpr, COUNT: gl.constexpr):
    """One of two or four parts of a tile's columns."""
    left, right = halves(tile)
    if COUNT == 2:
        return left if INDEX == 0 else right
    else:
        first, second = halves(left if INDEX < 2 else right)
        return first if INDEX % 2 == 0 else second


@gluon.jit
def store_tile(work, coord, values, ME: gl.constexpr):
    """A tile through consumer group ME's buffer. Subtiles need a smaller buffer, which leaves room for a stage."""
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    if work.tiling.EPILOGUE_SUBTILES == 1:
        store_subtile(work, coord, values, 0, ME, ME, 0)
    elif work.tiling.EPILOGUE_SUBTILES == 2:
        left, right = halves(values)
        store_subtile(work, coord, left, 0, ME, ME, 0)
        store_subtile(work, coord, right, COLUMNS, ME, ME, 0)
    else:
        for i in gl.static_range(4):
            store_subtile(work, coord, subtile(values, i, 4), i * COLUMNS, ME, ME, 0)


@gluon.jit
def round_pairs(work, values):
    """Values as C has them, of 16 bits, two neighbours in a word: one by one each would take a register."""
    PAIR: gl.constexpr = "bf16x2" if work.tiling.OUT == gl.bfloat16 else "f16x2"
    left, right = values.reshape([values.shape[0], values.shape[1] // 2, 2]).split()
    return gl.inline_asm_elementwise(
        "cvt.rn." + PAIR + ".f32 $0, $2, $1;", "=r,r,r", [left, right], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def pairs_of_subtile(work, pairs, INDEX: gl.constexpr, COUNT: gl.constexpr):
    """The values of a subtile of `round_pairs`."""
    words = subtile(pairs, INDEX, COUNT)
    left = words.to(gl.int16).to(work.tiling.OUT, bitcast=True)
    right = (words >> 16).to(gl.int16).to(work.tiling.OUT, bitcast=True)
    return gl.join(left, right).reshape([words.shape[0], 2 * words.shape[1]])


@gluon.jit
def store_pairs(work, coord, pairs, INDEX: gl.constexpr):
    """A subtile of a tile from `round_pairs`, through two buffers in turns. For a consumer group that is alone."""
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    values = pairs_of_subtile(work, pairs, INDEX, work.tiling.EPILOGUE_SUBTILES)
    store_subtile(work, coord, values, INDEX * COLUMNS, 0, INDEX % 2, 1)
