"""Schedule of a problem list: unlike problems, whose sizes the host wrote into their records.

    ends[groups]      cumulative tile counts, padded to whole 64 bytes
    record[groups]    LIST_DESCRIPTORS of aot/spec/records.py, or with scales by row or block SCALED_LIST_DESCRIPTORS

All lanes of a warp scan the ends together, from the group that the warp is in. That group's record then has all else.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...records import list_descriptors, scaled_list_descriptors
from ..boxes import acquire_descriptor, load_2d, store_2d
from ..record import scale_or_one, word
from ..tiling import Tiling

# csrc/forms/guarantees.hpp takes no more rows than these, and a tile at them still counts in 32 bits.
_PAST_ROWS = gl.constexpr(2**31 - 256)


@gluon.aggregate
class Group:
    """A problem of the list. It owns the tiles [first, end)."""

    index: gl.tensor
    first: gl.tensor
    end: gl.tensor
    M: gl.tensor
    N: gl.tensor
    K: gl.tensor
    record: gl.tensor


@gluon.aggregate
class StoreCoord:
    """Row and column of a tile of C, and the record with C's descriptor."""

    record: gl.tensor
    m: gl.tensor
    n: gl.tensor


@gluon.jit
def find_group(base, groups, index, tile, RECORD_BYTES: gl.constexpr):
    """The group that owns `tile`, from group `index` on. Each lane compares one end; the sum is a vote over lanes."""
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    WINDOW: gl.constexpr = 32 * gl.num_warps()
    start = index
    searching = True
    while searching:
        at = start + gl.arange(0, WINDOW, lanes)
        ends = word(base + gl.minimum(at, groups - 1).to(gl.int64) * 8)
        passed = gl.sum(((ends <= tile) & (at < groups)).to(gl.int32), 0)
        index += passed
        start += WINDOW
        searching = (passed == WINDOW) & (start < groups)
    index = gl.minimum(index, groups - 1)
    end = word(base + index.to(gl.int64) * 8).to(gl.int32)
    before = word(base + gl.maximum(index - 1, 0).to(gl.int64) * 8).to(gl.int32)
    ends_bytes = (groups + 7) // 8 * 64
    record = base + ends_bytes.to(gl.int64) + index.to(gl.int64) * RECORD_BYTES
    M = word(record + list_descriptors.m).to(gl.int32)
    N = word(record + list_descriptors.n).to(gl.int32)
    K = word(record + list_descriptors.k).to(gl.int32)
    return Group(index, gl.where(index > 0, before, 0), end, M, N, K, record)


@gluon.aggregate
class ListSchedule:
    """The interface is in hopper/schedules/__init__.py.

    `uploaded`: the list is in device memory, which may have held another list before.
    """

    base: gl.tensor
    groups: gl.tensor
    uploaded: gl.tensor
    tiling: Tiling
    RECORD_BYTES: gl.constexpr  # of a group
    PRODUCER_REGISTERS: gl.constexpr = 24
    DESCRIPTORS_MAY_BE_STALE: gl.constexpr = True
    HAS_BIAS: gl.constexpr = False
    GATHERS: gl.constexpr = False
    ARRIVALS: gl.constexpr = 1

    @gluon.jit
    def first(self, tile):
        return find_group(self.base, self.groups, gl.to_tensor(0), tile, self.RECORD_BYTES)

    @gluon.jit
    def next(self, group, tile):
        return find_group(self.base, self.groups, group.index, tile, self.RECORD_BYTES)

    @gluon.jit
    def M(self, group):
        return group.M

    @gluon.jit
    def acquire(self, group):
        """Makes TMA read the group's descriptors from memory.

        A multiprocessor caches descriptors by their address, beyond the end of a kernel. Where the list's memory held
        another list before, that list's descriptors would be used and C be written to its tensors. The producer
        acquires C's descriptor for the consumers too: they store a tile only after its k-tiles arrived, hence after
        this fence.
        """
        if self.uploaded:
            acquire_descriptor(group.record + list_descriptors.a)
            acquire_descriptor(group.record + list_descriptors.b)
            acquire_descriptor(group.record + list_descriptors.c)

    @gluon.jit
    def first_k(self, group):
        return 0

    @gluon.jit
    def load_a(self, group, inner, outer, barrier, buffer, offset):
        load_2d(group.record, inner, outer, barrier, buffer, offset)

    @gluon.jit
    def load_b(self, group, inner, outer, barrier, buffer, offset):
        load_2d(group.record + list_descriptors.b, inner, outer, barrier, buffer, offset)

    @gluon.jit
    def load_behind(self, work, group, m, n, k_tile):
        return k_tile

    @gluon.jit
    def store_coord(self, group, m, n):
        return StoreCoord(group.record, m, n)

    @gluon.jit
    def words_of(self, coord):
        return coord.m, coord.record.to(gl.int32), coord.n, (coord.record >> 32).to(gl.int32)

    @gluon.jit
    def coord_of(self, m, low, n, high):
        return StoreCoord((high.to(gl.int64) << 32) | (low.to(gl.int64) & 0xFFFFFFFF), m, n)

    @gluon.jit
    def no_store(self, group):
        """A tile past the rows of every matrix.

        C's descriptor may not be acquired yet, and the one that the multiprocessor still caches in its place may have
        more rows than this group. A row below 0 would be an illegal instruction. `record` is a value of its own: the
        compiler does not carry a variable round a loop if it starts as another variable's value and then takes the
        value that the other had.
        """
        return StoreCoord(group.record + 0, gl.to_tensor(_PAST_ROWS), gl.to_tensor(0))

    @gluon.jit
    def store(self, coord, n, buffer, offset, leader):
        store_2d(coord.record + list_descriptors.c, n, coord.m, buffer, offset, leader)

    @gluon.jit
    def scale_a(self, group):
        return scale_or_one(word(group.record + list_descriptors.scale_a), 0)

    @gluon.jit
    def scale_b(self, group):
        return scale_or_one(word(group.record + list_descriptors.scale_b), 0)

    @gluon.jit
    def scale_offset(self, group, row):
        return row.to(gl.int64) * word(group.record + scaled_list_descriptors.scale_a_row)

    @gluon.jit
    def has_bias(self, group):
        return False
