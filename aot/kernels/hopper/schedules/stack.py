"""Schedule of a stack: matrices of one size, A[g], B[g] and C[g], of which `counts` may say how many rows matter.

`counts` is on the device, so a captured launch serves any of them. A count is read as one in [0, M], whatever it is.
Rows from a group's count on are not computed, and not written: C's coordinates count from there (ragged_row). Where
there are no counts all rows matter, and a tile's group follows from its index. With counts, a warp reads _SCAN_WINDOW
of them at once, as RaggedMSchedule does with its ends. The only record is GROUPED_DESCRIPTORS of aot/spec/records.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...records import gated_descriptors, grouped_descriptors, scaled_stack_descriptors
from ..boxes import EVICT_FIRST, EVICT_NORMAL, load_3d, load_4d_hinted
from ..boxes_5d import load_5d, store_5d
from ..record import scale_or_one, word
from ..tiling import Tiling
from .ragged_m import LAST_ROW, plus, ragged_row

_SCAN_WINDOW = gl.constexpr(128)  # groups


@gluon.aggregate
class ScanWindow:
    """What the lanes know of _SCAN_WINDOW groups, from group `at` on."""

    at: gl.tensor
    tiles_before: gl.tensor
    rows: gl.tensor  # of each group
    tile_ends: gl.tensor


@gluon.aggregate
class Group:
    """A group with the tiles [first, end), and how many of its rows matter."""

    index: gl.tensor
    first: gl.tensor
    end: gl.tensor
    rows: gl.tensor
    N: gl.tensor
    K: gl.tensor
    record: gl.tensor
    window: ScanWindow  # that shows the group, where there are counts


@gluon.aggregate
class StoreCoord:
    """Group, row and column of a tile of C. `m` is a ragged_row of a group that starts at 0 and ends at row `stop`."""

    record: gl.tensor
    index: gl.tensor
    m: gl.tensor
    stop: gl.tensor
    n: gl.tensor


@gluon.aggregate
class StackSchedule:
    """The interface is in hopper/schedules/__init__.py. `matrix_M`: the rows of each matrix. `counts`: 0 if all matter.

    A with K contiguous is read as far as rows matter, and as zeros from there on: those rows may never have been
    written, and bytes that nobody needs cost decoding its time. One with rows contiguous is read whole: TMA cannot
    start a box at any row of it.
    """

    base: gl.tensor
    groups: gl.tensor
    matrix_M: gl.tensor
    N: gl.tensor
    K: gl.tensor
    counts: gl.tensor
    tiling: Tiling
    PRODUCER_REGISTERS: gl.constexpr = 40  # the scan window spills in 24
    DESCRIPTORS_MAY_BE_STALE: gl.constexpr = False  # kernel parameters are each launch's own
    HAS_BIAS: gl.constexpr = True
    GATHERS: gl.constexpr = False
    ARRIVALS: gl.constexpr = 1

    @gluon.jit
    def scan(self, at, tiles_before):
        """Reads the counts of the groups from `at` on. Garbage in them is made harmless here and nowhere else."""
        lanes: gl.constexpr = gl.BlockedLayout([_SCAN_WINDOW // 32], [32], [gl.num_warps()], [0])
        group = at + gl.arange(0, _SCAN_WINDOW, lanes)
        counts = self.counts.to(gl.pointer_type(gl.int32))
        rows = gl.load(counts + group, mask=(self.counts != 0) & (group < self.groups), other=0)
        rows = gl.minimum(gl.maximum(rows, 0), self.matrix_M)
        tiles = gl.cdiv(rows, self.tiling.BLOCK_M) * gl.cdiv(self.N, self.tiling.BLOCK_N)
        return ScanWindow(at, tiles_before, rows, tiles_before + gl.associative_scan(tiles, 0, plus))

    @gluon.jit
    def find_counted(self, window, tile):
        """The group that owns `tile`, from `window` on. Past the last tile, a group that ends before it."""
        last = gl.max(window.tile_ends, 0)
        while (last <= tile) & (window.at + _SCAN_WINDOW < self.groups):
            window = self.scan(window.at + _SCAN_WINDOW, last)
            last = gl.max(window.tile_ends, 0)
        lanes: gl.constexpr = gl.BlockedLayout([_SCAN_WINDOW // 32], [32], [gl.num_warps()], [0])
        passed = window.tile_ends <= tile
        place = gl.sum(passed.to(gl.int32), 0)
        first = gl.max(gl.where(passed, window.tile_ends, window.tiles_before), 0)
        end = gl.min(gl.where(passed, last, window.tile_ends), 0)
        rows = gl.max(gl.where(gl.arange(0, _SCAN_WINDOW, lanes) == place, window.rows, 0), 0)
        return Group(window.at + place, first, end, rows, self.N, self.K, self.base, window)

    @gluon.jit
    def find_whole(self, window, tile):
        """The same where all rows of all groups matter."""
        tiles = gl.cdiv(self.matrix_M, self.tiling.BLOCK_M) * gl.cdiv(self.N, self.tiling.BLOCK_N)
        index = tile // tiles
        end = gl.minimum(index + 1, self.groups) * tiles
        return Group(index, index * tiles, end, self.matrix_M, self.N, self.K, self.base, window)

    @gluon.jit
    def find_group(self, window, tile):
        if self.counts == 0:
            group = self.find_whole(window, tile)
        else:
            group = self.find_counted(window, tile)
        return group

    @gluon.jit
    def first(self, tile):
        zero = gl.to_tensor(0)
        return self.find_group(self.scan(zero, zero), tile)

    @gluon.jit
    def next(self, group, tile):
        return self.find_group(group.window, tile)

    @gluon.jit
    def M(self, group):
        return group.rows

    @gluon.jit
    def acquire(self, group):
        pass

    @gluon.jit
    def first_k(self, group):
        return 0

    @gluon.jit
    def load_a(self, group, inner, outer, barrier, buffer, offset):
        if self.tiling.LAYOUT[0] == "n":
            row = ragged_row(0, group.rows, outer)
            last_row = gl.to_tensor(LAST_ROW)
            load_5d(group.record, inner, row, last_row, group.rows, group.index, barrier, buffer, offset)
        else:
            policy = gl.to_tensor(EVICT_NORMAL)
            load_3d(group.record, inner, outer, group.index, barrier, buffer, offset, policy)

    @gluon.jit
    def policy_of_b(self, group):
        """A B that one row tile reads leaves L2 first: decoding is 1 % faster so with ragged M."""
        return gl.where(group.rows <= self.tiling.BLOCK_M, EVICT_FIRST, EVICT_NORMAL)

    @gluon.jit
    def load_b(self, group, inner, outer, barrier, buffer, offset):
        descriptor = group.record + grouped_descriptors.b
        load_3d(descriptor, inner, outer, group.index, barrier, buffer, offset, self.policy_of_b(group))

    @gluon.jit
    def load_half_of_b(self, group, half, inner, outer, barrier, buffer, offset):
        """Of a gated B: half 0 is gate's, and `up_first` says where it lies."""
        lies = half ^ word(group.record + gated_descriptors.up_first).to(gl.int32)
        descriptor = group.record + grouped_descriptors.b
        policy = self.policy_of_b(group)
        load_4d_hinted(descriptor, inner, outer, lies, group.index, barrier, buffer, offset, policy, None)

    @gluon.jit
    def load_behind(self, work, group, m, n, k_tile):
        return k_tile

    @gluon.jit
    def store_coord(self, group, m, n):
        return StoreCoord(group.record, group.index, ragged_row(0, group.rows, m), group.rows, n)

    @gluon.jit
    def words_of(self, coord):
        return coord.m, coord.stop, coord.n, coord.index

    @gluon.jit
    def coord_of(self, m, stop, n, index):
        return StoreCoord(self.base, index, m, stop, n)

    @gluon.jit
    def no_store(self, group):
        """The group's end. What is a value of the group too is added to, as in ListSchedule.no_store."""
        return StoreCoord(group.record + 0, group.index + 0, gl.to_tensor(LAST_ROW), group.rows + 0, gl.to_tensor(0))

    @gluon.jit
    def store(self, coord, n, buffer, offset, leader):
        descriptor = coord.record + grouped_descriptors.c
        store_5d(descriptor, n, coord.m, gl.to_tensor(LAST_ROW), coord.stop, coord.index, buffer, offset, leader)

    @gluon.jit
    def scale_a(self, group):
        return scale_or_one(word(group.record + grouped_descriptors.scale_a), 0)

    @gluon.jit
    def scale_b(self, group):
        index = group.index.to(gl.int64) * word(group.record + grouped_descriptors.scale_b_step)
        return scale_or_one(word(group.record + grouped_descriptors.scale_b), index)

    @gluon.jit
    def scale_offset(self, group, row):
        of_group = group.index.to(gl.int64) * word(group.record + scaled_stack_descriptors.scale_a_group)
        return of_group + row.to(gl.int64) * word(group.record + scaled_stack_descriptors.scale_a_row)

    @gluon.jit
    def has_bias(self, group):
        return word(group.record + grouped_descriptors.bias) != 0

    @gluon.jit
    def bias_row(self, group, OUT: gl.constexpr):
        """The group's first bias, as a pointer."""
        bias = word(group.record + grouped_descriptors.bias).to(gl.pointer_type(OUT))
        return bias + group.index.to(gl.int64) * word(group.record + grouped_descriptors.bias_row)

    @gluon.jit
    def bias_stride(self, group):
        return word(group.record + grouped_descriptors.bias_col)
