"""Schedule of a grouped problem with ragged K whose groups start at whole blocks of 128: K is contiguous in A and B.

As ragged_k.py. An end counts as the next multiple of a block, or as K where that is less, so that no box of a k-tile
reaches into another group: rows past K are loaded as zeros. The only record is SCALED_K_DESCRIPTORS of
aot/spec/records.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...records import scaled_k_descriptors
from ..boxes import load_2d
from ..record import parameters_address, word_now
from ..scale_ring import BLOCK
from ..tiling import Tiling
from .ragged_k import SCAN_WINDOW, Group, RaggedK, ScanWindow
from .ragged_m import greater


@gluon.jit
def _not_before(value):
    """The value, of which the compiler works out nothing before: what it takes out of all loops is spilled."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=gl.int32, is_pure=False, pack=1)


@gluon.aggregate
class RaggedKBlocksSchedule(RaggedK):
    """The interface is in hopper/schedules/__init__.py. `total_K`: that of all groups. What else the record has is read
    where it is needed: in registers of the consumers it would spill."""

    groups: gl.tensor
    rows: gl.tensor
    N: gl.tensor
    total_K: gl.tensor
    tiling: Tiling
    BY_VALUE: gl.constexpr  # the kernel, whose parameters are the record
    ARRIVALS: gl.constexpr  # on a full barrier: of the TMA loads, and of each lane that copies scales
    ADDEND_SLOTS: gl.constexpr  # as in RaggedKSchedule
    PRODUCER_REGISTERS: gl.constexpr = 48
    DESCRIPTORS_MAY_BE_STALE: gl.constexpr = False  # kernel parameters are each launch's own
    HAS_BIAS: gl.constexpr = False
    GATHERS: gl.constexpr = False

    @gluon.jit
    def base(self):
        return parameters_address(self.BY_VALUE)

    @gluon.jit
    def scan(self, at, before):
        """Reads the ends of the groups from `at` on.

        Garbage in `offs` is made harmless here and nowhere else: ends rise, by whole blocks, and none is past the last.
        """
        group = at + self.lanes()
        offs = word_now(self.base() + scaled_k_descriptors.offs).to(gl.pointer_type(gl.int32))
        ends = gl.load(offs + group, mask=group < self.groups, other=0)
        ends = gl.minimum(gl.maximum(gl.associative_scan(ends, 0, greater), before), self.total_K)
        ends += gl.minimum(-ends & (BLOCK - 1), self.total_K - ends)
        return ScanWindow(at, before, ends)

    @gluon.jit
    def find_group(self, window, tile):
        """The matrix that owns `tile`, from `window` on. Past the last tile, one that ends before it."""
        columns = _not_before(self.N)
        tiles = gl.cdiv(self.rows, self.tiling.BLOCK_M) * gl.cdiv(columns, self.tiling.BLOCK_N)
        index = tile // tiles
        splits = word_now(self.base() + scaled_k_descriptors.splits).to(gl.int32)
        group = gl.minimum(index // splits, self.groups - 1)
        while window.at + SCAN_WINDOW <= group:
            window = self.scan(window.at + SCAN_WINDOW, gl.max(window.ends, 0))
        lane = window.at + self.lanes()
        start = gl.max(gl.where(lane < group, window.ends, window.before), 0)
        stop = gl.max(gl.where(lane <= group, window.ends, window.before), 0)
        if splits > 1:
            chunk = gl.cdiv(gl.cdiv(stop - start, BLOCK), splits) * BLOCK
            start += gl.minimum(index % splits * chunk, stop - start)
            stop = start + gl.minimum(chunk, stop - start)
        first = index * tiles
        end = gl.where(index < self.groups * splits, first + tiles, 0)
        return Group(index, first, end, start, stop, columns, stop - start, self.base(), window)

    @gluon.jit
    def first_k(self, group):
        return group.start

    @gluon.jit
    def load_a(self, group, inner, outer, barrier, buffer, offset):
        load_2d(group.record, inner, outer, barrier, buffer, offset)

    @gluon.jit
    def load_b(self, group, inner, outer, barrier, buffer, offset):
        load_2d(group.record + scaled_k_descriptors.b, inner, outer, barrier, buffer, offset)

    @gluon.jit
    def adds(self):
        return word_now(self.base() + scaled_k_descriptors.accumulates).to(gl.int32)

    @gluon.jit
    def descriptor_of_c(self, group):
        return group.record + scaled_k_descriptors.c
