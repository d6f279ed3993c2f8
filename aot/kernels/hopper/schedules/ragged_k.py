"""Schedule of a grouped problem with ragged K: A and B are stacks along K, and `offs` says where each group's K ends.

Each group has a matrix of C, or with `splits` above 1 one for each part of its K. All have the same tiles, so that a
division tells the matrix of a tile. K is the outer dimension of A (M contiguous) and of B (N contiguous): both are
reached by ragged TMA coordinates, and what lies past a group's end is loaded as zeros. The only record is
GROUPED_K_DESCRIPTORS of aot/spec/records.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...records import grouped_k_descriptors
from ..addends import load_addends, loads_c
from ..boxes import load_4d
from ..matrices import store_or_add_3d
from ..tiling import Tiling
from .ragged_m import LAST_ROW, greater, ragged_row

SCAN_WINDOW = gl.constexpr(128)  # groups
# A part of a split group is this deep or a multiple of it, whatever the kernel: csrc and the tests count so too.
_SPLIT_UNIT = gl.constexpr(64)
# csrc/forms/guarantees.hpp takes no more rows than these, and a tile at them still counts in 32 bits.
_PAST_ROWS = gl.constexpr(2**31 - 256)


@gluon.aggregate
class ScanWindow:
    """What the lanes know of SCAN_WINDOW groups, from group `at` on."""

    at: gl.tensor
    before: gl.tensor  # where the group before them ends
    ends: gl.tensor


@gluon.aggregate
class Group:
    """Matrix `index` of C. It has the tiles [first, end), and sums the K from `start` to `stop`."""

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
    """Row and column of a tile of C, and the matrix."""

    record: gl.tensor
    m: gl.tensor
    n: gl.tensor
    index: gl.tensor
    adds: gl.tensor  # not 0: TMA adds to the matrix


@gluon.aggregate
class RaggedK:
    """What the schedules of a ragged K have in common. Each has its own record, order of K and group of a tile: `scan`,
    `find_group`, `first_k`, `load_a`, `load_b`, `descriptor_of_c` and `adds`, which is not 0 where sums are added to
    C."""

    @gluon.jit
    def lanes(self):
        layout: gl.constexpr = gl.BlockedLayout([SCAN_WINDOW // 32], [32], [gl.num_warps()], [0])
        return gl.arange(0, SCAN_WINDOW, layout)

    @gluon.jit
    def first(self, tile):
        zero = gl.to_tensor(0)
        return self.find_group(self.scan(zero, zero), tile)

    @gluon.jit
    def next(self, group, tile):
        return self.find_group(group.window, tile)

    @gluon.jit
    def M(self, group):
        return self.rows

    @gluon.jit
    def acquire(self, group):
        pass

    @gluon.jit
    def loads_c(self, group):
        if self.ADDEND_SLOTS > 0:
            return (self.adds() != 0) & loads_c(self, group)
        else:
            return False

    @gluon.jit
    def adds_by_tma(self, group):
        if self.ADDEND_SLOTS > 0:
            return gl.where(loads_c(self, group), 0, self.adds())
        else:
            return self.adds()

    @gluon.jit
    def load_behind(self, work, group, m, n, k_tile):
        if self.ADDEND_SLOTS > 0 and self.loads_c(group):
            k_tile = load_addends(work, group, m, n, k_tile)
        return k_tile

    @gluon.jit
    def store_coord(self, group, m, n):
        return StoreCoord(group.record, m, n, group.index, self.adds_by_tma(group))

    @gluon.jit
    def no_store(self, group):
        """A tile past the rows of every matrix. `record` and `index` are values of their own, as in ListSchedule."""
        return StoreCoord(group.record + 0, gl.to_tensor(_PAST_ROWS), gl.to_tensor(0), group.index + 0, gl.to_tensor(0))

    @gluon.jit
    def store(self, coord, n, buffer, offset, leader):
        descriptor = self.descriptor_of_c(coord)
        ADDS: gl.constexpr = self.tiling.OUT.primitive_bitwidth == 32
        store_or_add_3d(descriptor, n, coord.m, coord.index, buffer, offset, leader, coord.adds, ADDS, self.GATHERS)


@gluon.aggregate
class RaggedKSchedule(RaggedK):
    """The interface is in hopper/schedules/__init__.py. `total_K`: that of all groups."""

    base: gl.tensor
    groups: gl.tensor
    rows: gl.tensor
    N: gl.tensor
    total_K: gl.tensor
    offs: gl.tensor
    splits: gl.tensor
    accumulates: gl.tensor
    tiling: Tiling
    GATHERS: gl.constexpr  # rows of A^T or of B by an index: hopper/gather_k.py
    GATHERS_B: gl.constexpr  # of B
    ARRIVALS: gl.constexpr  # on a full barrier: of the TMA loads, and of each gathering thread
    ADDEND_SLOTS: gl.constexpr  # of the ring, that a tile of C takes where it is loaded: hopper/addends.py
    PRODUCER_REGISTERS: gl.constexpr = 40
    DESCRIPTORS_MAY_BE_STALE: gl.constexpr = False  # kernel parameters are each launch's own
    HAS_BIAS: gl.constexpr = False

    @gluon.jit
    def scan(self, at, before):
        """Reads the ends of the groups from `at` on.

        Garbage in `offs` is made harmless here and nowhere else: no end is below the one before it nor past the last.
        """
        group = at + self.lanes()
        ends = gl.load(self.offs.to(gl.pointer_type(gl.int32)) + group, mask=group < self.groups, other=0)
        ends = gl.minimum(gl.maximum(gl.associative_scan(ends, 0, greater), before), self.total_K)
        return ScanWindow(at, before, ends)

    @gluon.jit
    def find_group(self, window, tile):
        """The matrix that owns `tile`, from `window` on. Past the last tile, one that ends before it."""
        tiles = gl.cdiv(self.rows, self.tiling.BLOCK_M) * gl.cdiv(self.N, self.tiling.BLOCK_N)
        index = tile // tiles
        group = gl.minimum(index // self.splits, self.groups - 1)
        while window.at + SCAN_WINDOW <= group:
            window = self.scan(window.at + SCAN_WINDOW, gl.max(window.ends, 0))
        lane = window.at + self.lanes()
        start = gl.max(gl.where(lane < group, window.ends, window.before), 0)
        stop = gl.max(gl.where(lane <= group, window.ends, window.before), 0)
        if self.splits > 1:
            chunk = gl.cdiv(gl.cdiv(stop - start, self.splits), _SPLIT_UNIT) * _SPLIT_UNIT
            start = gl.minimum(start + index % self.splits * chunk, stop)
            stop = gl.minimum(start + chunk, stop)
        first = index * tiles
        end = gl.where(index < self.groups * self.splits, first + tiles, 0)
        return Group(index, first, end, start, stop, self.N, stop - start, self.base, window)

    @gluon.jit
    def first_k(self, group):
        """Counted from the group's start. A group without K has no k-tiles, or with a deferred epilogue zeros alone."""
        return 0

    @gluon.jit
    def load_a(self, group, inner, outer, barrier, buffer, offset):
        row = ragged_row(group.start, group.stop, outer)
        load_4d(group.record, inner, row, gl.to_tensor(LAST_ROW), group.stop, barrier, buffer, offset)

    @gluon.jit
    def load_b(self, group, inner, outer, barrier, buffer, offset):
        row = ragged_row(group.start, group.stop, outer)
        descriptor = group.record + grouped_k_descriptors.b
        load_4d(descriptor, inner, row, gl.to_tensor(LAST_ROW), group.stop, barrier, buffer, offset)

    @gluon.jit
    def adds(self):
        return self.accumulates

    @gluon.jit
    def descriptor_of_c(self, group):
        return group.record + grouped_k_descriptors.c
