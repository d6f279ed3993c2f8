"""wgmma of 192 columns, in PTX: Triton's shapes are powers of two.

The sums are three tensors of 64 columns, and a k-tile of B three panels, one behind the other in shared memory. So one
instruction reads A for half as many columns again as for 128, as DeepGEMM's do.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .wgmma import descriptor, through, wait_for_all_but

WIDE = gl.constexpr(192)  # columns of a tile
_REGISTERS = gl.constexpr(96)  # a thread's sums of them, in a group of 64 rows


@gluon.constexpr_function
def _products(columns, k_bytes, a_dtype, b_dtype):
    """The PTX of a batch that sums `k_bytes` of K anew. Operands: the sums, the addresses of A and of B."""
    step = 32  # bytes of K that an instruction multiplies
    registers = columns // 2
    sums = ", ".join(f"${i}" for i in range(registers))
    types = ".".join({"fp8e4nv": "e4m3", "fp8e5": "e5m2"}[str(dtype)] for dtype in (a_dtype, b_dtype))
    multiply = f"wgmma.mma_async.sync.aligned.m64n{columns}k{step}.f32.{types} {{{sums}}}, a, b, adds, 1, 1; "
    descriptors = "".join(descriptor(name, f"${registers + i}") for i, name in enumerate("ab"))
    steps = f"add.s64 a, a, {step // 16}; add.s64 b, b, {step // 16}; ".join(
        f"setp.ne.b32 adds, {min(i, 1)}, 0; {multiply}" for i in range(k_bytes // step)
    )
    declarations = ".reg .b32 at; .reg .b64 a, b; .reg .pred adds; "
    return f"{{ {declarations}{descriptors}wgmma.fence.sync.aligned; {steps}wgmma.commit_group.sync.aligned; }}"


@gluon.jit
def start_wide(work, slot, TYPE: gl.constexpr, ME: gl.constexpr):
    """The products of a k-tile, in three panels of the sums' TYPE. They are in flight until `wait_wide`."""
    tiling = work.tiling
    gl.static_assert(tiling.BLOCK_N == WIDE and tiling.B_PANELS == 3 and tiling.CONSUMER_M == 64)
    gl.static_assert(tiling.LAYOUT == "nt" and tiling.BLOCK_K == 128, "rows of a k-tile have 128 bytes of K")
    a, b = work.a_ring.index(slot), work.b_ring.index(slot * tiling.B_PANELS)
    return gl.inline_asm(
        _products(WIDE, tiling.BLOCK_K, a.dtype, b.dtype),
        ("=f", "=f", "=f", "r", "r"),
        [a.slice(ME * tiling.CONSUMER_M, tiling.CONSUMER_M, 0), b],
        (TYPE, TYPE, TYPE),
    )


@gluon.jit
def wait_wide(parts):
    """The panels, when the products in flight are done."""
    TYPE: gl.constexpr = parts[0].type
    return gl.inline_asm(wait_for_all_but(0), through(_REGISTERS), [parts[0], parts[1], parts[2]], (TYPE, TYPE, TYPE))
