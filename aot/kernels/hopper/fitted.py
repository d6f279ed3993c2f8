"""Row tiles that are as tall as their group asks, with deferred epilogues, for `hopper_ragged_fitted`.

A group of 300 rows has three tiles of BLOCK_M = 128 rows, 22 % of them past its end. Here they are three of 104 rows.
They cost less, as benchmarks/NOTES.md tells. wgmma multiplies 64 rows of its first operand, no others, but any multiple
of 8 columns of its second. So a tile is summed as its transpose: columns of B are the 64 rows, rows of A the columns.
cuBLAS' tiles of 256 columns and 152 rows are of that kind. Each of two consumer groups has half of a tile's columns.

What multiplies is compiled for each number of rows from 64 on, since it is part of the instruction. TMA reads zeros
past a tile's last row and writes nothing there, as RaggedMSchedule.tile_stop says: boxes are BLOCK_M rows for all.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .load import produce
from .pipeline import apply_epilogue, release_before
from .store import round_pairs, store_subtile, subtile
from .tiling import Tiling
from .wgmma import descriptor, through, wait_for_all_but
from .work import tile_coord

_COLUMNS = gl.constexpr(128)  # of a tile, of each consumer group
_ROW_STEP = gl.constexpr(8)  # rows by which tiles differ: aot/spec/kernels.py says so to the host
_LEAST_ROWS = gl.constexpr(64)  # that are multiplied: of fewer the operands take as long to be read
_REGISTERS = gl.constexpr(128)  # a thread's sums


@gluon.jit
def make_fitted_tiling(
    DTYPE: gl.constexpr, OUT: gl.constexpr, LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
):  # fmt: skip
    """As make_tiling. A group's part of a tile is written out in two halves of its rows."""
    gl.static_assert(BLOCK_N == 2 * _COLUMNS and CONSUMERS == 2 and SPLIT == 2 and SLICES == 2)
    gl.static_assert(BLOCK_M * _COLUMNS == 128 * _REGISTERS and BLOCK_K == 64, "rows of a k-tile have 128 bytes of K")
    return Tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        RASTER, CONSUMERS, False, True, BLOCK_M // SLICES, SLICES, True, True, _ROW_STEP, 1,
    )  # fmt: skip


@gluon.constexpr_function
def _products(rows, columns_contiguous, dtype):
    """The PTX of a k-tile's products, which are added to the sums or, with `adds` 0, take their place.

    Operands: the sums of two times 64 columns, those for as many rows as a tile has at most, twice, as they are tied;
    the addresses of B's and of A's k-tile; `adds`.
    """
    kind = {"fp16": "f16", "bf16": "bf16"}[str(dtype)]
    of_b, of_a, adds = (f"${2 * 128 + i}" for i in range(3))
    # From 16 of K to the next, in units of 16 bytes: rows of a box, or bytes of its rows. 64 columns are 8192 bytes.
    step_b, step_a, half_of_b = (16 * 128 if columns_contiguous else 32) // 16, 32 // 16, 8192 // 16

    def product(half, place):
        sums = ", ".join(f"${64 * half + i}" for i in range(rows // 2))
        shape = f"m64n{rows}k16.f32.{kind}.{kind}"
        return (
            f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {place}, a, adds, 1, 1, {int(columns_contiguous)}, 0; "
        )

    both = product(0, "b") + product(1, "c")
    further = f"add.s64 a, a, {step_a}; add.s64 b, b, {step_b}; add.s64 c, c, {step_b}; "
    return (
        "{ .reg .b32 at; .reg .b64 a, b, c; .reg .pred adds; "
        + descriptor("a", of_a) + descriptor("b", of_b) + f"add.s64 c, b, {half_of_b}; "
        + f"setp.ne.b32 adds, {adds}, 0; wgmma.fence.sync.aligned; "
        + (further).join([both + "setp.eq.b32 adds, 0, 0; ", both, both, both])
        + "wgmma.commit_group.sync.aligned; }"
    )  # fmt: skip


@gluon.jit
def start_fitted(work, k_tile, sums, adds, ROWS: gl.constexpr, ME: gl.constexpr):
    """The products of a k-tile once its slot is full: B^T times A^T. They are in flight until `wait_fitted`."""
    tiling = work.tiling
    STAGES: gl.constexpr = tiling.STAGES
    COLUMNS_CONTIGUOUS: gl.constexpr = tiling.LAYOUT[1] == "n"
    slot = k_tile % STAGES
    mbarrier.wait(work.full.index(slot), k_tile // STAGES & 1)
    b = work.b_ring.index(slot).slice(ME * _COLUMNS, _COLUMNS, 1 if COLUMNS_CONTIGUOUS else 0)
    return gl.inline_asm(
        _products(ROWS, COLUMNS_CONTIGUOUS, tiling.DTYPE),
        through(_REGISTERS, "rrr"),
        [sums, b, work.a_ring.index(slot), adds],
        sums.type,
    )


@gluon.jit
def wait_fitted(sums, BATCHES: gl.constexpr, ROWS: gl.constexpr):
    """The sums, when but so many batches are done. `ROWS` makes the text of the assembly another one for each number
    of rows: LLVM moves what is alike at the ends of branches behind them, and with it sums that are in flight."""
    return gl.inline_asm(wait_for_all_but(BATCHES, ROWS), through(_REGISTERS), [sums], sums.type)


@gluon.jit
def zero_sums(work):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, work.tiling.BLOCK_M, 16]
    )
    return gl.zeros([_COLUMNS, work.tiling.BLOCK_M], gl.float32, layout)


@gluon.jit
def store_half(work, coord, pairs, INDEX: gl.constexpr, ME: gl.constexpr):
    """One half of a tile's rows, of consumer group ME's columns, from `round_pairs`."""
    words = subtile(pairs, INDEX, 2)
    upper = words.to(gl.int16).to(work.tiling.OUT, bitcast=True)
    lower = (words >> 16).to(gl.int16).to(work.tiling.OUT, bitcast=True)
    values = gl.join(upper, lower).reshape([words.shape[0], 2 * words.shape[1]])
    coord = work.schedule.below(coord, INDEX * work.tiling.CONSUMER_M)
    store_subtile(work, coord, values, ME * _COLUMNS, ME, ME, 0)


@gluon.jit
def multiply(work, k_tile, k_tiles, coord, pairs, ROWS: gl.constexpr, ME: gl.constexpr):
    """The sums of a tile of ROWS rows. The tile before is stored behind its first k-tiles."""
    sums = zero_sums(work)
    for i in gl.static_range(2):
        sums = start_fitted(work, k_tile, sums, gl.to_tensor(i), ROWS, ME)
        store_half(work, coord, pairs, i, ME)
        sums = wait_fitted(sums, 1, ROWS)
        release_before(work, k_tile, i > 0)
        k_tile += 1
    for _ in range(2, k_tiles):
        sums = start_fitted(work, k_tile, sums, gl.to_tensor(1), ROWS, ME)
        sums = wait_fitted(sums, 1, ROWS)
        release_before(work, k_tile, True)
        k_tile += 1
    sums = wait_fitted(sums, 0, ROWS)
    release_before(work, k_tile, True)
    return sums


@gluon.jit
def multiply_fitted(work, rows, k_tile, k_tiles, coord, pairs, ROWS: gl.constexpr, ME: gl.constexpr):
    """The sums of a tile of `rows` rows, by the products of ROWS or of the next number of rows that has room."""
    if ROWS < work.tiling.BLOCK_M:
        if rows <= ROWS:
            sums = multiply(work, k_tile, k_tiles, coord, pairs, ROWS, ME)
        else:
            sums = multiply_fitted(work, rows, k_tile, k_tiles, coord, pairs, ROWS + _ROW_STEP, ME)
    else:
        sums = multiply(work, k_tile, k_tiles, coord, pairs, ROWS, ME)
    return sums


@gluon.jit
def consume_fitted(work, ME: gl.constexpr):
    """Consumer group ME: its half of the columns of each tile."""
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    m, n = tile_coord(work, group, tile)
    coord = work.schedule.no_store(group)
    pairs = round_pairs(work, zero_sums(work))
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        rows = work.tiling.tile_rows(work.schedule.M(group))
        sums = multiply_fitted(work, rows, k_tile, k_tiles, coord, pairs, _LEAST_ROWS, ME)
        k_tile += k_tiles
        pairs = round_pairs(work, apply_epilogue(work, group, sums, n + ME * _COLUMNS))
        coord = work.schedule.store_coord(group, m, n)
        tile += gl.num_programs(0)
        if tile >= group.end:
            group = work.schedule.next(group, tile)
        m, n = tile_coord(work, group, tile)
    for i in gl.static_range(2):
        store_half(work, coord, pairs, i, ME)
    tma.store_wait(0)


@gluon.jit
def first_fitted(work):
    consume_fitted(work, 0)


@gluon.jit
def second_fitted(work):
    consume_fitted(work, 1)


@gluon.jit
def run_fitted(work):
    """As `run` of hopper/pipeline.py."""
    PRODUCER: gl.constexpr = work.schedule.PRODUCER_REGISTERS
    gl.warp_specialize([(first_fitted, (work,)), (second_fitted, (work,)), (produce, (work,))], [4, 1], [232, PRODUCER])
