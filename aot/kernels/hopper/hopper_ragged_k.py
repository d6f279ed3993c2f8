"""`hopper_ragged_k`: C[g] = A[:, K of g] @ B[K of g, :], the weight gradients of a MoE layer; sm_90, in Gluon.

The pipeline of `hopper` with ragged K (schedules/ragged_k.py). What it adds:

- A stack of C: its descriptor is that of all matrices, so that a CTA moves to another one at no cost.
- Sums of float32 may be added to C, by TMA (matrices.py) or where K is little by the consumers (addends.py), and may be
  those of a part of a group's K alone.
- Rows of A^T or of B may come by an index (gather_k.py): its record is then GATHER_K_DESCRIPTORS.
- Both consumer groups of a cooperative schedule defer their epilogues (ragged_k_consumers.py): groups of few k-tiles
  leave little else to do while a tile is written.

This file puts the kernel together. The record is GROUPED_K_DESCRIPTORS of aot/spec/records.py, which
csrc/forms/grouped_k_record.cpp writes; that of a kernel that gathers begins with the same fields.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues.linear import Linear
from ..records import grouped_k_descriptors
from .addends import addend_slots
from .factor import Factor, load_factor
from .gather import GATHER_WARPS
from .ragged_k_consumers import make_ragged_k_tiling, run_ragged_k
from .record import parameters_address, word
from .schedules.ragged_k import RaggedKSchedule
from .work import make_work


@gluon.jit
def hopper_ragged_k(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: gl.constexpr,
    OUT: gl.constexpr,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SPLIT: gl.constexpr,
    SLICES: gl.constexpr,
    SOURCE: gl.constexpr,
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides, C's rows and the
    stride of its matrices; M is contiguous in A, and N in B; groups, rows, columns and depth > 0. With an index 16
    bytes divide the rows that it names, and 2^36 - 17 bytes hold them all; the index may hold anything."""
    gl.static_assert(LAYOUT == "tn", "K has to be the outer dimension of both operands")
    base = parameters_address(BY_VALUE)
    tiling = make_ragged_k_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES
    )
    GATHERS: gl.constexpr = SOURCE != "rows"
    GATHERS_B: gl.constexpr = SOURCE == "indexed_b"
    ARRIVALS: gl.constexpr = 1 + 32 * GATHER_WARPS if GATHERS else 1
    schedule = RaggedKSchedule(
        base, groups, rows, columns, depth,
        word(base + grouped_k_descriptors.offs),
        word(base + grouped_k_descriptors.splits).to(gl.int32),
        word(base + grouped_k_descriptors.accumulates).to(gl.int32),
        tiling, GATHERS, GATHERS_B, ARRIVALS, 0 if GATHERS else addend_slots(tiling),
    )  # fmt: skip
    alpha = load_factor(word(base + grouped_k_descriptors.alpha_at), word(base + grouped_k_descriptors.alpha_bits))
    run_ragged_k(make_work(schedule, tiling, Factor(alpha), Linear()))
