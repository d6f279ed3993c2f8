"""Back through a gated activation: from a tile of dh, the gradient of its weighted output, to that of its input.

A tile is done in parts of 64 x 64. Each part has three buffers in shared memory: TMA brings gate's columns of the
pre-activation z into the first and up's into the second, where their gradients take their places; the third takes the
output of the activation. Two parts take turns, so that the next part's z is on its way while a part is computed.

What registers hold is counted: a thread has 216, of which the sums take 128. Addresses and words of the record are
read where they are needed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from ..hopper.boxes import commit_stores, load_4d_hinted, store_4d
from ..hopper.gather import shared_address
from ..hopper.gather import word_now as word
from ..hopper.schedules.ragged_m import LAST_ROW
from ..hopper.store import subtile
from ..records import gradient_descriptors
from .curves import PART, go_back, make_curve

_BYTES = gl.constexpr(64 * 128)  # of a buffer
_BUFFERS = gl.constexpr(3)  # of a part
_EVICT_FIRST = gl.constexpr(0x12F0000000000000)  # an L2 policy, as `createpolicy` makes it: z is read once


@gluon.jit
def record_now(BY_VALUE: gl.constexpr):
    """As parameters_address of hopper/record.py, where it stands: two registers less to keep."""
    return gl.inline_asm(
        "{ .reg .b64 parameter; mov.b64 parameter, " + BY_VALUE + "_param_0; cvta.param.u64 $0, parameter; "
        "add.s64 $0, $0, 63; and.b64 $0, $0, -64; }",
        "=l",
        [],
        result_types=gl.int64,
    )


@gluon.jit
def rows_of(tile, INDEX: gl.constexpr):
    """PART rows of a tile, from INDEX parts on."""
    if tile.shape[0] == PART:
        return tile
    else:
        top, bottom = tile.reshape([2, PART, tile.shape[1]]).permute((1, 2, 0)).split()
        return top if INDEX == 0 else bottom


@gluon.jit
def load_weights(record, first, count, LAYOUT: gl.constexpr):
    """The weights of PART rows from `first` on; 0 where `count` rows are passed, and for a row that has no slot."""
    row = gl.arange(0, PART, LAYOUT)
    slots = word(record + gradient_descriptors.slot).to(gl.pointer_type(gl.int32)) + first
    slot = gl.load(slots + row, mask=row < count, other=-1)
    known = (slot >= 0) & (slot < word(record + gradient_descriptors.entries))
    weights = word(record + gradient_descriptors.weights)
    kind = word(record + gradient_descriptors.weight_kind)
    if kind == 0:
        weight = gl.load(weights.to(gl.pointer_type(gl.float32)) + slot, mask=known, other=0.0)
    elif kind == 1:
        weight = gl.load(weights.to(gl.pointer_type(gl.float16)) + slot, mask=known, other=0.0).to(gl.float32)
    else:
        weight = gl.load(weights.to(gl.pointer_type(gl.bfloat16)) + slot, mask=known, other=0.0).to(gl.float32)
    return weight * word(record + gradient_descriptors.factor_bits).to(gl.int32).to(gl.float32, bitcast=True)


@gluon.aggregate
class GatedGradient:
    """What hopper/gradient.py asks of an epilogue: the fields of linear.py, `prefetch` and `store`."""

    z_full: gl.shared_memory_descriptor  # two barriers for each consumer group: a part's z has arrived
    BY_VALUE: gl.constexpr  # the kernel
    SUMS_PER_OUTPUT: gl.constexpr = 1
    HALVES: gl.constexpr = False

    @gluon.jit
    def load_part(self, work, coord, INDEX: gl.constexpr, ME: gl.constexpr):
        """Starts to load z for part INDEX of the tile at `coord`, into buffers that nobody reads."""
        COLUMNS: gl.constexpr = work.tiling.BLOCK_N // PART
        FIRST: gl.constexpr = (2 * ME + INDEX % 2) * _BUFFERS
        WARP: gl.constexpr = ME * gl.num_warps()
        barrier = self.z_full.index(2 * ME + INDEX % 2)
        column, row = coord.n + INDEX % COLUMNS * PART, coord.m + INDEX // COLUMNS * PART
        last, policy = gl.to_tensor(LAST_ROW), gl.to_tensor(_EVICT_FIRST)
        mbarrier.expect(barrier, 2 * _BYTES)
        record = record_now(self.BY_VALUE)
        gate, up = record + gradient_descriptors.z, record + gradient_descriptors.z_up
        buffers, place = work.c_buffers.index(0), FIRST * _BYTES
        load_4d_hinted(gate, column, row, last, coord.stop, barrier, buffers, place, policy, WARP)
        load_4d_hinted(up, column, row, last, coord.stop, barrier, buffers, place + _BYTES, policy, WARP)

    @gluon.jit
    def prefetch(self, work, coord, ME: gl.constexpr):
        """Starts to load z for the first two parts, once the buffers are no longer read."""
        tma.store_wait(0)
        gl.barrier()
        self.load_part(work, coord, 0, ME)
        self.load_part(work, coord, 1, ME)

    @gluon.jit
    def store_part(self, work, coord, dh, weights, INDEX: gl.constexpr, ME: gl.constexpr):
        """All that becomes of a part of dh. Returns the row sums of the activation times dh."""
        COLUMNS: gl.constexpr = work.tiling.BLOCK_N // PART
        PARTS: gl.constexpr = work.tiling.BLOCK_M // PART * COLUMNS
        FIRST: gl.constexpr = (2 * ME + INDEX % 2) * _BUFFERS
        LEADER: gl.constexpr = ME * gl.num_warps() * 32
        record = record_now(self.BY_VALUE)
        buffers, place = work.c_buffers.index(0), FIRST * _BYTES
        mbarrier.wait(self.z_full.index(2 * ME + INDEX % 2), INDEX // 2 & 1)
        gate = work.c_buffers.index(FIRST).load(dh.type.layout)
        up = work.c_buffers.index(FIRST + 1).load(dh.type.layout)
        if INDEX >= 1 and INDEX + 1 < PARTS:
            tma.store_wait(0)
            gl.barrier()
            self.load_part(work, coord, INDEX + 1, ME)
        curve = make_curve(word(record + gradient_descriptors.activation).to(gl.int32))
        sums = gl.sum(go_back(gate, up, dh, weights.expand_dims(1), curve, shared_address(buffers) + place), 1)
        fence_async_shared()
        gl.barrier()
        column, row, last = coord.n + INDEX % COLUMNS * PART, coord.m + INDEX // COLUMNS * PART, gl.to_tensor(LAST_ROW)
        row_of_h = gl.where(word(record + gradient_descriptors.writes_h) != 0, row, LAST_ROW)
        store_4d(record + gradient_descriptors.dz, column, row, last, coord.stop, buffers, place, LEADER)
        store_4d(record + gradient_descriptors.dz_up, column, row, last, coord.stop, buffers, place + _BYTES, LEADER)
        store_4d(
            record + gradient_descriptors.c, column, row_of_h, last, coord.stop, buffers, place + 2 * _BYTES, LEADER
        )
        commit_stores(LEADER)
        return sums

    @gluon.jit
    def store_rows(self, work, coord, dh, INDEX: gl.constexpr, ME: gl.constexpr):
        """All that becomes of PART rows of a tile, of the parts from INDEX on."""
        COLUMNS: gl.constexpr = work.tiling.BLOCK_N // PART
        layout: gl.constexpr = gl.SliceLayout(1, subtile(dh, 0, COLUMNS).type.layout)
        row = coord.m + INDEX // COLUMNS * PART
        weights = load_weights(record_now(self.BY_VALUE), coord.stop + (row - LAST_ROW), LAST_ROW - row, layout)
        sums = gl.zeros([PART], gl.float32, layout)
        for j in gl.static_range(COLUMNS):
            sums += self.store_part(work, coord, subtile(dh, j, COLUMNS), weights, INDEX + j, ME)
        row_sums = word(record_now(self.BY_VALUE) + gradient_descriptors.row_sums).to(gl.pointer_type(gl.float32))
        row_sums += (
            (coord.n // work.tiling.BLOCK_N).to(gl.int64) * work.schedule.total_M + coord.stop + (row - LAST_ROW)
        )
        place = gl.arange(0, PART, layout)
        gl.store(row_sums + place, sums, mask=place < LAST_ROW - row)

    @gluon.jit
    def store(self, work, coord, tile, ME: gl.constexpr):
        """All that becomes of a tile of dh."""
        COLUMNS: gl.constexpr = work.tiling.BLOCK_N // PART
        ROWS: gl.constexpr = work.tiling.BLOCK_M // PART
        gl.static_assert(ROWS * COLUMNS == 4, "after a tile the barriers are at their phases again")
        for i in gl.static_range(ROWS):
            self.store_rows(work, coord, rows_of(tile, i), i * COLUMNS, ME)
