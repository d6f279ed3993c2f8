"""The groups of a product with ragged M, for pointer kernels: a scan over `offs`, SCAN_WINDOW groups at a time.

`offs` is read on the device and may hold anything. The scan makes ends rise and stay within [0, M]. The rows behind the
last end are one more group.
"""

import triton
import triton.language as tl

SCAN_WINDOW = tl.constexpr(256)  # with the rows behind them, 255 groups in one go


@triton.jit
def _later(end, other):
    return tl.maximum(end, other)


@triton.jit
def group_ends(offs, index, groups, M, before, skips_rest):
    """Row ends of the consecutive groups `index`. Those before the first one end at `before`.

    Those behind the last one end at M, or with `skips_rest` where the last one does: they have no rows then.
    """
    missing = tl.where((index < 0) | (skips_rest != 0), 0, M)
    stated = tl.load(offs + index, mask=(index >= 0) & (index < groups), other=missing)
    return tl.minimum(tl.associative_scan(tl.maximum(stated, before), 0, _later), M)


@triton.jit
def _nearest(passed, first, start, stop, other_passed, other_first, other_start, other_stop):
    start, stop = tl.maximum(start, other_start), tl.minimum(stop, other_stop)
    return passed + other_passed, tl.maximum(first, other_first), start, stop


@triton.jit
def find_group(tile, tile_ends, row_ends, tiles_before, rows_before, M):
    """The group of the scan window that owns `tile`: its index in the window, first tile and rows [start, stop)."""
    passed = tile_ends <= tile
    first = tl.where(passed, tile_ends, tiles_before)
    start, stop = tl.where(passed, row_ends, rows_before), tl.where(passed, M, row_ends)
    return tl.reduce((passed.to(tl.int32), first, start, stop), 0, _nearest)
