"""TMA stores to one matrix of a stack, and reduce-adds to it: a box of sums is added to what is there, by L2."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def _store(ADDS, RELATIVE):
    """PTX of a store, of thread $6 of the CTA, or with RELATIVE of the thread whose $6 is 0; with ADDS an add in its
    place where $7 is not 0."""
    box = "[$0, {$1, $2, $3}], [source];"
    store = f"@stores cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group {box}"
    if ADDS:
        store = (
            "setp.ne.and.u32 adds, $7, 0, stores; setp.eq.and.u32 stores, $7, 0, stores; "
            f"@adds cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group {box} {store}"
        )
    chosen = "setp.eq.u32 stores, $6, 0; " if RELATIVE else "mov.u32 thread, %tid.x; setp.eq.u32 stores, thread, $6; "
    return f"{{ .reg .pred stores, adds; .reg .b32 thread, source; {chosen}add.u32 source, $4, $5; {store} }}"


@gluon.jit
def store_or_add_3d(
    descriptor, inner, outer, matrix, buffer, offset, leader, accumulates, ADDS: gl.constexpr, RELATIVE: gl.constexpr
):
    """A box from `buffer` + `offset` bytes to a matrix, issued by thread `leader` of the CTA; with RELATIVE by the
    thread whose `leader` is 0.

    With ADDS, which takes a descriptor of float32, and `accumulates` it is added to what the matrix has. One add an
    element: the result is the same to the bit, whatever the order of the tiles.
    """
    gl.inline_asm(
        _store(ADDS, RELATIVE),
        "l,r,r,r,r,r,r,r",
        [descriptor, inner, outer, matrix, buffer, offset, leader, accumulates],
    )
