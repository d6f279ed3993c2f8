"""Back through a gated activation: from a tile of dh, the gradient of its weighted output, to that of its input.

A tile is done in parts of 64 columns. Each part has a slot of the ring of k-tiles: hopper/gradient.py loads gate's
columns of the pre-activation z into the slot's A and up's into the first half of its B. Their gradients take their
places, the weighted output goes to the second half of B, and TMA stores all three from there.

Loads, arithmetic and stores of a part are PTX. The tensor cores wait for them, so each instruction counts. And a warp
alone reads and writes its rows of a box, which the compiler does not see: it would have all warps meet in between.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from ..hopper.boxes import commit_stores, store_4d
from ..hopper.record import word
from ..hopper.schedules.ragged_m import LAST_ROW
from ..hopper.store import subtile
from ..hopper.work import release, shared_address
from ..records import gradient_descriptors
from .activations import sigmoid_in_ptx

PART = gl.constexpr(64)  # columns


@gluon.constexpr_function
def _wait(pending):
    return f"cp.async.bulk.wait_group.read {pending};"


@gluon.jit
def wait_until_read(PENDING: gl.constexpr):
    """Until all but the last PENDING bulk groups of this thread are read. In tma.store_wait all threads meet."""
    gl.inline_asm(_wait(PENDING))


@gluon.constexpr_function
def _part(dtype):
    """The PTX of a warp's 16 rows of a part, of which a thread has two: 8 pairs of columns of each.

    Operands: of the two rows the sums of the activation times dh, with this part and without; dh; the weights of the
    rows; where the thread's first 16 bytes lie in the boxes of gate, up and the output.

    ldmatrix brings a pair of the first row, one of the second, and both again 8 columns later: the order of dh.
    """
    sums, dh, weights, boxes = ("$0", "$1"), [f"${4 + i}" for i in range(32)], ("$36", "$37"), ("$38", "$39", "$40")
    names = ("gate", "up", "h")
    type_ = "bf16" if str(dtype) == "bf16" else "f16"

    def move(instruction, j, count):
        """16 columns of `count` boxes, on 1024 bytes each. Chunk c of 16 bytes of row r lies in chunk c ^ (r % 8)."""
        for name, box in zip(names[:count], boxes[:count]):
            words = "{" + ", ".join(f"{name}{4 * j + i}" for i in range(4)) + "}"
            operands = f"{words}, [at]" if instruction == "ldmatrix" else f"[at], {words}"
            yield f"xor.b32 at, {box}, {32 * j}; {instruction}.sync.aligned.m8n8.x4.shared.b16 {operands};"

    def unpack(pair, word):
        if type_ == "bf16":
            return f"shl.b32 {pair}0, {word}, 16; and.b32 {pair}1, {word}, 0xffff0000;"
        return f"mov.b32 {{low, high}}, {word}; cvt.f32.f16 {pair}0, low; cvt.f32.f16 {pair}1, high;"

    def element(i, dh, row):
        """x and u are gate and up, y is x * sigmoid(x), and s is the sigmoid, then the slope of y."""
        return (
            sigmoid_in_ptx(f"x{i}", "s") + f"mul.f32 y, x{i}, s; sub.f32 t, 0f3F800000, s; fma.rn.f32 s, y, t, s; "
            f"mul.f32 t, {dh}, y; fma.rn.f32 sum{row}, t, u{i}, sum{row}; mul.f32 du{i}, t, {weights[row]}; "
            f"mul.f32 t, u{i}, {weights[row]}; mul.f32 o{i}, y, t; mul.f32 s, s, t; mul.f32 dx{i}, {dh}, s;"
        )

    lines = [
        ".reg .b32 at, gate<16>, up<16>, h<16>; .reg .b16 low, high;",
        ".reg .f32 s, t, y, x<2>, u<2>, dx<2>, du<2>, o<2>, sum<2>;",
        "mov.f32 sum0, $2; mov.f32 sum1, $3;",
        *move("ldmatrix", 0, 2),
    ]
    for j in range(4):
        if j < 3:  # all at once would take too many registers
            lines += move("ldmatrix", j + 1, 2)
        for i in range(4 * j, 4 * j + 4):
            lines += [unpack("x", f"gate{i}"), unpack("u", f"up{i}")]
            lines += [element(column, dh[2 * i + column], i % 2) for column in range(2)]
            lines += [f"cvt.rn.{type_}x2.f32 {name}{i}, {o}1, {o}0;" for name, o in zip(names, ("dx", "du", "o"))]
        lines += move("stmatrix", j, 3)
    # Lanes of a row exchange their sums. Else ptxas adds where a sum is used, behind the last part, and keeps summands.
    lines += [f"shfl.sync.bfly.b32 {sums[i]}, sum{i}, 1, 31, 0xffffffff;" for i in range(2)]
    return "{ " + " ".join(lines) + " }"


@gluon.jit
def matrix_place():
    """Where in a box the 16 bytes lie that this thread names to ldmatrix and stmatrix for the first 16 columns."""
    WARPS: gl.constexpr = gl.num_warps()
    thread = gl.arange(0, 32 * WARPS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    row, chunk = thread // 32 * 16 + thread % 16, thread % 32 // 16
    return row * 128 + (chunk ^ (row % 8)) * 16


@gluon.jit
def add_lanes(sums):
    """The sum of the four lanes that have a row's columns."""
    return gl.inline_asm_elementwise(
        "{ .reg .f32 t; shfl.sync.bfly.b32 t, $1, 1, 31, 0xffffffff; add.f32 $0, $1, t; "
        "shfl.sync.bfly.b32 t, $0, 2, 31, 0xffffffff; add.f32 $0, $0, t; }",
        "=f,f",
        [sums],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def store_boxes(work, coord, slot, COLUMN: gl.constexpr):
    """The three boxes of a slot, once all threads have written them. Three warps store one each."""
    record, last = coord.record, gl.to_tensor(LAST_ROW)
    column = coord.n + COLUMN
    gate, up, h = work.a_ring.index(slot), work.c_buffers.index(2 * slot), work.c_buffers.index(2 * slot + 1)
    row_of_h = gl.where(word(record + gradient_descriptors.writes_h) != 0, coord.m, LAST_ROW)
    fence_async_shared()
    gl.barrier()  # the compiler does not see that the stores in PTX read the slot
    store_4d(record + gradient_descriptors.dz, column, coord.m, last, coord.stop, gate, 0, 0)
    store_4d(record + gradient_descriptors.dz_up, column, coord.m, last, coord.stop, up, 0, 32)
    store_4d(record + gradient_descriptors.c, column, row_of_h, last, coord.stop, h, 0, 64)
    for i in gl.static_range(3):
        commit_stores(32 * i)


@gluon.jit
def go_back(work, coord, dh, weights, sums, place, k_tile, COLUMN: gl.constexpr):
    """All that becomes of a part of dh, with the slot of `k_tile`. Returns `sums` with the activation times dh added,
    of a row by four lanes."""
    STAGES: gl.constexpr = work.tiling.STAGES
    slot = k_tile % STAGES
    mbarrier.wait(work.full.index(slot), k_tile // STAGES & 1)
    gate, up, h = work.a_ring.index(slot), work.c_buffers.index(2 * slot), work.c_buffers.index(2 * slot + 1)
    boxes = shared_address(gate) + place, shared_address(up) + place, shared_address(h) + place
    given = (sums, dh, weights, boxes[0], boxes[1], boxes[2])
    sums = gl.inline_asm(_part(work.tiling.DTYPE), ("=f", "f", "f", "f", "r", "r", "r"), given, sums.type)
    store_boxes(work, coord, slot, COLUMN)
    # The slot before is released once its boxes are read. The thread that stored one arrives for its warp.
    wait_until_read(1)
    release(work, (k_tile + STAGES - 1) % STAGES, COLUMN > 0)
    return sums


@gluon.aggregate
class GatedGradient:
    """What hopper/gradient.py asks of an epilogue: the fields of linear.py, and `store`."""

    row_weights: gl.shared_memory_descriptor  # [2, BLOCK_M] float32, of two tiles in turns
    row_places: gl.shared_memory_descriptor  # [2, BLOCK_M] int32: where the sum of a row goes, or -1
    SUMS_PER_OUTPUT: gl.constexpr = 1
    HALVES: gl.constexpr = False

    @gluon.jit
    def store(self, work, coord, tile, k_tile, count):
        """All that becomes of a tile of dh, the CTA's `count`-th. Its parts have the slots from that of `k_tile` on,
        of which the last is not released."""
        STAGES: gl.constexpr = work.tiling.STAGES
        layout: gl.constexpr = gl.SliceLayout(1, subtile(tile, 0, 4).type.layout)
        mbarrier.wait(work.full.index(k_tile % STAGES), k_tile // STAGES & 1)
        weights = self.row_weights.index(count % 2).load(layout)
        sums = gl.zeros([work.tiling.BLOCK_M], gl.float32, layout)
        place = matrix_place()
        for i in gl.static_range(work.tiling.BLOCK_N // PART):
            sums = go_back(work, coord, subtile(tile, i, 4), weights, sums, place, k_tile + i, i * PART)
        sums = add_lanes(sums)
        place = self.row_places.index(count % 2).load(layout)
        factor = word(coord.record + gradient_descriptors.factor_bits).to(gl.int32).to(gl.float32, bitcast=True)
        row_sums = word(coord.record + gradient_descriptors.row_sums).to(gl.pointer_type(gl.float32))
        gl.store(row_sums + place, factor * sums, mask=place >= 0)
