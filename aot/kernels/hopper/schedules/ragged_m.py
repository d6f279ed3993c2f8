"""Schedule of a grouped problem with ragged M: A and C are stacks of rows, and `offs` says where each group's rows end.

`offs` is on the device, so a captured launch serves any split. A warp reads SCAN_WINDOW ends at once, and two prefix
scans give the rows and the tiles before each group. Most groups are then found without a load. The only record is
GROUPED_DESCRIPTORS of aot/spec/records.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...records import gated_descriptors, grouped_descriptors, scaled_descriptors
from ..boxes import EVICT_FIRST, EVICT_NORMAL, load_3d, load_3d_for, load_4d, load_4d_for, load_4d_hinted, store_4d
from ..record import scale_or_one, word
from ..tiling import Tiling

SCAN_WINDOW = gl.constexpr(128)  # groups
LAST_ROW = gl.constexpr(1 << 30)


@gluon.aggregate
class ScanWindow:
    """What the lanes know of SCAN_WINDOW groups, from group `at` on."""

    at: gl.tensor
    tiles_before: gl.tensor
    rows_before: gl.tensor
    tile_ends: gl.tensor
    row_ends: gl.tensor


@gluon.aggregate
class Group:
    """A group with the tiles [first, end) and the rows [start, stop) of A and C.

    The rows behind the last end are one more group, with K = 0 and without bias, which makes them 0.
    """

    index: gl.tensor
    first: gl.tensor
    end: gl.tensor
    start: gl.tensor
    stop: gl.tensor
    N: gl.tensor
    K: gl.tensor
    record: gl.tensor
    window: ScanWindow  # that shows the group


@gluon.aggregate
class StoreCoord:
    """Row and column of a tile of C. `m` is a ragged_row; `stop` is the row of C at which the group ends."""

    record: gl.tensor
    m: gl.tensor
    stop: gl.tensor
    n: gl.tensor


@gluon.jit
def ragged_row(start, stop, row):
    """TMA coordinate of row `row` of the group [start, stop). The coordinates after it are LAST_ROW and `stop`.

    Ragged TMA coordinates, as in triton.tools.ragged_tma. The dimension of rows ends at LAST_ROW, and the group's end
    gets that coordinate: the hardware reads zeros past the group and writes nothing there. Two more dimensions, whose
    strides csrc/forms/grouped_record.cpp encodes, move the address back:

        address = base + (LAST_ROW - size + row) * pitch + LAST_ROW * (2**34 elements - pitch) + stop * pitch
                = base + (start + row) * pitch + 2**64 elements

    Addresses are taken modulo 2**64, so the last term is 0.
    """
    return LAST_ROW - (stop - start) + row


@gluon.jit
def greater(x, y):
    return gl.maximum(x, y)


@gluon.jit
def plus(x, y):
    return x + y


@gluon.aggregate
class RaggedMSchedule:
    """The interface is in hopper/schedules/__init__.py. `total_M`: the rows of A and C, those of all groups."""

    base: gl.tensor
    groups: gl.tensor
    total_M: gl.tensor
    N: gl.tensor
    K: gl.tensor
    offs: gl.tensor
    tiling: Tiling
    GATHERS: gl.constexpr  # rows of A by an index: hopper/gather.py
    ARRIVALS: gl.constexpr  # on a full barrier: of the TMA loads, and of each gathering thread
    PRODUCER_REGISTERS: gl.constexpr = 40  # the scan window spills in 24
    DESCRIPTORS_MAY_BE_STALE: gl.constexpr = False  # kernel parameters are each launch's own
    HAS_BIAS: gl.constexpr = True

    @gluon.jit
    def ends(self, at, rows_before, LANES: gl.constexpr):
        """The first rows of SCAN_WINDOW groups from `at` on, and their ends.

        Garbage in `offs` is made harmless here and nowhere else: no end is below the one before it nor past the rows.
        """
        group = at + gl.arange(0, SCAN_WINDOW, LANES)
        offs = self.offs.to(gl.pointer_type(gl.int32))
        # The rows behind the last end are a group with all that are left, or none.
        rest = gl.where(word(self.base + grouped_descriptors.skips_rest) != 0, 0, 2147483647)
        ends = gl.load(offs + group, mask=group < self.groups, other=rest)
        starts = gl.load(offs + group - 1, mask=(group > at) & (group <= self.groups), other=0)
        ends = gl.minimum(gl.maximum(gl.associative_scan(ends, 0, greater), rows_before), self.total_M)
        starts = gl.minimum(gl.maximum(gl.associative_scan(starts, 0, greater), rows_before), self.total_M)
        return gl.where(group > self.groups, ends, starts), ends

    @gluon.jit
    def scan(self, at, tiles_before, rows_before):
        """What is to be known of the groups from `at` on."""
        lanes: gl.constexpr = gl.BlockedLayout([SCAN_WINDOW // 32], [32], [gl.num_warps()], [0])
        starts, ends = self.ends(at, rows_before, lanes)
        tiles = self.tiling.tiles_of(ends - starts, self.N)
        tile_ends = tiles_before + gl.associative_scan(tiles, 0, plus)
        return ScanWindow(at, tiles_before, rows_before, tile_ends, ends)

    @gluon.jit
    def find_group(self, window, tile):
        """The group that owns `tile`, from `window` on. Past the last tile, a group that ends before it."""
        last = gl.max(window.tile_ends, 0)
        while (last <= tile) & (window.at + SCAN_WINDOW <= self.groups):
            window = self.scan(window.at + SCAN_WINDOW, last, gl.max(window.row_ends, 0))
            last = gl.max(window.tile_ends, 0)
        passed = window.tile_ends <= tile
        index = window.at + gl.sum(passed.to(gl.int32), 0)
        first = gl.max(gl.where(passed, window.tile_ends, window.tiles_before), 0)
        start = gl.max(gl.where(passed, window.row_ends, window.rows_before), 0)
        end = gl.min(gl.where(passed, last, window.tile_ends), 0)
        stop = gl.min(gl.where(passed, self.total_M, window.row_ends), 0)
        K = gl.where(index < self.groups, self.K, 0)
        return Group(index, first, end, start, stop, self.N, K, self.base, window)

    @gluon.jit
    def first(self, tile):
        zero = gl.to_tensor(0)
        return self.find_group(self.scan(zero, zero, zero), tile)

    @gluon.jit
    def next(self, group, tile):
        return self.find_group(group.window, tile)

    @gluon.jit
    def M(self, group):
        return group.stop - group.start

    @gluon.jit
    def acquire(self, group):
        pass

    @gluon.jit
    def first_k(self, group):
        """With a deferred epilogue the rows behind the last group have k-tiles too. They start past K: all zeros."""
        if self.tiling.DEFERRED:
            return gl.where(group.K > 0, 0, gl.cdiv(self.K, self.tiling.BLOCK_K) * self.tiling.BLOCK_K)
        else:
            return 0

    @gluon.jit
    def reads_weights_once(self):
        """Whether groups have half a row tile on average: hardly any has two, so each B is read once."""
        return self.total_M <= self.groups * (self.tiling.BLOCK_M // 2)

    @gluon.jit
    def zeros_from(self, group):
        """The row of A from which TMA returns zeros instead of other groups' rows.

        Zeros past a group take less energy to multiply. Where memory sets the pace, other groups' rows are loaded
        instead: a CTA that loaded less would run ahead of those that read the same columns of B, and out of step they
        no longer share them in L2. Measured in benchmarks/notes/ragged_rows.md.
        """
        if self.tiling.BLOCK_N == 256:
            return gl.where(self.reads_weights_once(), self.total_M, group.stop)
        else:
            return self.total_M

    @gluon.jit
    def load_a(self, group, inner, outer, barrier, buffer, offset):
        stop = self.zeros_from(group)
        row = ragged_row(group.start, stop, outer)
        load_4d(group.record, inner, row, gl.to_tensor(LAST_ROW), stop, barrier, buffer, offset)

    @gluon.jit
    def load_a_for(self, group, inner, outer, barrier, buffer, offset, ctas):
        """As load_a, for the CTAs of a cluster whose bits are set."""
        stop = self.zeros_from(group)
        row = ragged_row(group.start, stop, outer)
        load_4d_for(group.record, inner, row, gl.to_tensor(LAST_ROW), stop, barrier, buffer, offset, ctas)

    @gluon.jit
    def policy_of_b(self):
        """A B that is read once leaves L2 first: decoding is 1 % faster so."""
        return gl.where(self.reads_weights_once(), EVICT_FIRST, EVICT_NORMAL)

    @gluon.jit
    def gate_of_b(self, group):
        """Which half of a gated B is gate's."""
        return word(group.record + gated_descriptors.up_first).to(gl.int32)

    @gluon.jit
    def load_b(self, group, inner, outer, barrier, buffer, offset):
        descriptor = group.record + grouped_descriptors.b
        load_3d(descriptor, inner, outer, group.index, barrier, buffer, offset, self.policy_of_b())

    @gluon.jit
    def load_b_for(self, group, inner, outer, barrier, buffer, offset, ctas):
        descriptor = group.record + grouped_descriptors.b
        load_3d_for(descriptor, inner, outer, group.index, barrier, buffer, offset, self.policy_of_b(), ctas)

    @gluon.jit
    def load_half_of_b(self, group, half, inner, outer, barrier, buffer, offset):
        """Of a gated B: half 0 is gate's."""
        lies, descriptor = half ^ self.gate_of_b(group), group.record + grouped_descriptors.b
        load_4d_hinted(descriptor, inner, outer, lies, group.index, barrier, buffer, offset, self.policy_of_b(), None)

    @gluon.jit
    def load_behind(self, work, group, m, n, k_tile):
        return k_tile

    @gluon.jit
    def store_coord(self, group, m, n):
        return StoreCoord(group.record, ragged_row(group.start, group.stop, m), group.stop, n)

    @gluon.jit
    def words_of(self, coord):
        return coord.m, coord.stop, coord.n, gl.to_tensor(0)

    @gluon.jit
    def coord_of(self, m, stop, n, index):
        return StoreCoord(self.base, m, stop, n)

    @gluon.jit
    def no_store(self, group):
        """The group's end. `record` and `stop` are values of their own, as in ListSchedule.no_store."""
        return StoreCoord(group.record + 0, gl.to_tensor(LAST_ROW), group.stop + 0, gl.to_tensor(0))

    @gluon.jit
    def store(self, coord, n, buffer, offset, leader):
        descriptor = coord.record + grouped_descriptors.c
        store_4d(descriptor, n, coord.m, gl.to_tensor(LAST_ROW), coord.stop, buffer, offset, leader)

    @gluon.jit
    def of_a_group(self, group, address):
        """`address`, or 0 for the rows behind the last group: they are zeros, whatever the scales are."""
        return gl.where(group.index < self.groups, address, 0)

    @gluon.jit
    def scale_a(self, group):
        address = word(group.record + grouped_descriptors.scale_a)
        return scale_or_one(self.of_a_group(group, address), 0)

    @gluon.jit
    def scale_b(self, group):
        address = word(group.record + grouped_descriptors.scale_b)
        index = group.index.to(gl.int64) * word(group.record + grouped_descriptors.scale_b_step)
        return scale_or_one(self.of_a_group(group, address), index)

    @gluon.jit
    def scale_offset(self, group, row):
        return (group.start + row).to(gl.int64) * word(group.record + scaled_descriptors.scale_a_row)

    @gluon.jit
    def has_bias(self, group):
        return (word(group.record + grouped_descriptors.bias) != 0) & (group.index < self.groups)

    @gluon.jit
    def bias_row(self, group, OUT: gl.constexpr):
        """The group's first bias, as a pointer."""
        bias = word(group.record + grouped_descriptors.bias).to(gl.pointer_type(OUT))
        return bias + group.index.to(gl.int64) * word(group.record + grouped_descriptors.bias_row)

    @gluon.jit
    def bias_stride(self, group):
        return word(group.record + grouped_descriptors.bias_col)
