"""TMA copies in PTX, for descriptors behind an address.

Gluon's own copies take a descriptor that is a kernel argument or that the kernel made. Ours are made on the host and
lie in the problem record, so the instructions are written out here. A copy moves one box: 128 bytes wide, as the
swizzle is, and as tall as the tile. Loads are for one warp, stores for a consumer group.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# L2 policies, as `createpolicy` makes them. What is read once may leave first.
EVICT_FIRST, EVICT_NORMAL = gl.constexpr(0x12F0000000000000), gl.constexpr(0x1000000000000000)


@gluon.constexpr_function
def _load(rank, operands, WARP):
    """PTX of a load: `operands` are those of the instruction past its coordinates. One lane issues it: of warp WARP of
    the CTA, or where that is None of each warp that comes here."""
    last = rank + 2  # descriptor, coordinates, barrier, then the buffer and the offset
    of_warp = (
        ""
        if WARP is None
        else (
            ".reg .b32 warp; mov.u32 warp, %tid.x; shr.u32 warp, warp, 5; "
            f"setp.eq.and.u32 elected, warp, {WARP}, elected; "
        )
    )
    coordinates = ", ".join(f"${1 + i}" for i in range(rank))
    hint = ".L2::cache_hint" if operands else ""
    return (
        "{ .reg .pred elected; .reg .b32 destination; elect.sync _|elected, 0xffffffff; "
        + of_warp
        + f"add.u32 destination, ${last}, ${last + 1}; "
        f"@elected cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{hint} "
        f"[destination], [$0, {{{coordinates}}}], [${last - 1}]{operands}; }}"
    )


@gluon.jit
def load_2d(descriptor, inner, outer, barrier, buffer, offset):
    """A box to `buffer` + `offset` bytes. Its bytes arrive on `barrier`."""
    gl.inline_asm(_load(2, "", None), "l,r,r,r,r,r", [descriptor, inner, outer, barrier, buffer, offset])


@gluon.jit
def load_3d(descriptor, inner, outer, matrix, barrier, buffer, offset, policy):
    """As load_2d, from one matrix of a stack. `policy` says how long L2 keeps it."""
    gl.inline_asm(
        _load(3, ", $7", None),
        "l,r,r,r,r,r,r,l",
        [descriptor, inner, outer, matrix, barrier, buffer, offset, policy],
    )


@gluon.jit
def load_4d(descriptor, x, y, z, w, barrier, buffer, offset):
    """As load_2d, with four coordinates, the innermost first."""
    gl.inline_asm(_load(4, "", None), "l,r,r,r,r,r,r,r", [descriptor, x, y, z, w, barrier, buffer, offset])


@gluon.jit
def load_4d_hinted(descriptor, x, y, z, w, barrier, buffer, offset, policy, WARP: gl.constexpr):
    """As load_4d. `policy` says how long L2 keeps the box."""
    gl.inline_asm(
        _load(4, ", $8", WARP),
        "l,r,r,r,r,r,r,r,l",
        [descriptor, x, y, z, w, barrier, buffer, offset, policy],
    )


@gluon.constexpr_function
def _load_for(rank, hinted):
    """PTX of a load for CTAs of a cluster, each at the same place of its memory and on the same barrier of its own.
    Operands as those of _load, then which CTAs, a bit each: without any, nothing is loaded."""
    last = rank + 2
    hint, policy, ctas = (".L2::cache_hint", f", ${last + 2}", last + 3) if hinted else ("", "", last + 2)
    coordinates = ", ".join(f"${1 + i}" for i in range(rank))
    return (
        "{ .reg .pred elected; .reg .b32 destination; .reg .b16 ctas; elect.sync _|elected, 0xffffffff; "
        f"setp.ne.and.b32 elected, ${ctas}, 0, elected; cvt.u16.u32 ctas, ${ctas}; "
        f"add.u32 destination, ${last}, ${last + 1}; "
        f"@elected cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f".multicast::cluster{hint} [destination], [$0, {{{coordinates}}}], [${last - 1}], ctas{policy}; }}"
    )


@gluon.jit
def load_3d_for(descriptor, inner, outer, matrix, barrier, buffer, offset, policy, ctas):
    """As load_3d, for some CTAs of a cluster."""
    gl.inline_asm(
        _load_for(3, True),
        "l,r,r,r,r,r,r,l,r",
        [descriptor, inner, outer, matrix, barrier, buffer, offset, policy, ctas],
    )


@gluon.jit
def load_4d_for(descriptor, x, y, z, w, barrier, buffer, offset, ctas):
    """As load_4d, for some CTAs of a cluster."""
    gl.inline_asm(_load_for(4, False), "l,r,r,r,r,r,r,r,r", [descriptor, x, y, z, w, barrier, buffer, offset, ctas])


@gluon.constexpr_function
def _elected(thread):
    """PTX that sets the predicate `elected` in one thread: of the CTA that which the operand names, or where it is None
    the lane that the warp elects."""
    if thread is None:
        return ".reg .pred elected; elect.sync _|elected, 0xffffffff; "
    return f".reg .pred elected; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, {thread}; "


@gluon.constexpr_function
def _store(rank, ELECTS):
    """PTX of a store. Operands: descriptor, coordinates, buffer and offset, and the thread unless one is elected."""
    coordinates = ", ".join(f"${1 + i}" for i in range(rank))
    return (
        "{ .reg .b32 source; "
        + _elected(None if ELECTS else f"${rank + 3}")
        + f"add.u32 source, ${rank + 1}, ${rank + 2}; "
        + f"@elected cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
        + f"[$0, {{{coordinates}}}], [source]; }}"
    )


@gluon.jit
def store_2d(descriptor, inner, outer, buffer, offset, leader):
    """A box from `buffer` + `offset` bytes to global memory, issued by thread `leader` of the CTA, or where that is
    None by the lane that the warp elects."""
    if leader is None:
        gl.inline_asm(_store(2, True), "l,r,r,r,r", [descriptor, inner, outer, buffer, offset])
    else:
        gl.inline_asm(_store(2, False), "l,r,r,r,r,r", [descriptor, inner, outer, buffer, offset, leader])


@gluon.jit
def store_4d(descriptor, x, y, z, w, buffer, offset, leader):
    """As store_2d, with four coordinates, the innermost first."""
    if leader is None:
        gl.inline_asm(_store(4, True), "l,r,r,r,r,r,r", [descriptor, x, y, z, w, buffer, offset])
    else:
        gl.inline_asm(_store(4, False), "l,r,r,r,r,r,r,r", [descriptor, x, y, z, w, buffer, offset, leader])


@gluon.jit
def commit_stores(leader):
    """Ends a bulk group of thread `leader`, as of store_2d, so that `store_wait` counts its stores as one."""
    if leader is None:
        gl.inline_asm("{ " + _elected(None) + "@elected cp.async.bulk.commit_group; }", "", [])
    else:
        gl.inline_asm("{ " + _elected("$0") + "@elected cp.async.bulk.commit_group; }", "r", [leader])


@gluon.jit
def acquire_descriptor(address):
    """Makes TMA read the descriptor from memory and not from the multiprocessor's cache, which outlives a kernel."""
    gl.inline_asm("fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "l", [address])
