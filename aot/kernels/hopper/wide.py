"""The main loop of tiles of 192 and of 256 columns, in PTX: Triton's shapes are powers of two, and its products end in
the iteration of a loop that starts them.

Of 192 columns the sums are three tensors of 64, and a k-tile of B three panels, one behind the other in shared memory.
So one instruction reads A for half as many columns again as for 128, as DeepGEMM's do. Of 256 the sums are two tensors,
and the halves are multiplied one behind the other: the products of both at once would leave no registers. They may be
gate's columns and up's.

A k-tile's products start at the end of the iteration that promotes the one before it. The loop's branch, the wait for
the next slot and its descriptors then lie behind products in flight, for which the group waits anyway. Of a
promotion's instructions aot/build/yields.py has each fourth yield.

Scales of columns, one for each, are read while sums are promoted, when the k-tile's slot may be filled again: they have
two slots more than it (scale_slot of scale_ring.py).

Scales of a whole tile, which come with its last k-tile, or one for all: what was summed until then is scaled while the
last k-tile's products are in flight. Behind them two multiplications a sum took 3 to 6 % of the time where K is short.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .scale_ring import LANE_WORDS
from .wgmma import descriptor
from .work import shared_address

WIDE = gl.constexpr(192)  # columns of a tile
READ_AHEAD = 2  # loads of scales of columns before the first are used; with 3, kernels of bfloat16 spill


@gluon.constexpr_function
def _main_loop(
    columns, batches, block_m, block_k, stages, scaling, scale_slots, row_pitch, column_words, last, gathers, cluster,
    a_dtype, b_dtype,
):  # fmt: skip
    """The PTX. Operands: the sums; in shared memory the group's rows of A, B, the full and the empty barriers, the
    scale of the first of this thread's two rows, or the one scale itself, those of columns; the first k-tile's slot,
    that slot's parity, the slot of its scales; the number of k-tiles.

    `batches`: in how many the columns are multiplied; `scaling`: "block", of each k-tile, "row", of a tile, in the slot
    of its last k-tile, or "tensor", one for all; `scale_slots`: of the ring of scales; `row_pitch`: words from those of
    rows in a slot to those in the next; `column_words`: how many words of a slot are those of columns. Blocks have 4 or
    2 where each panel or batch has one, more where each column has (copy_columns of scale_ring.py). `last`: whether the
    last k-tile's slot is kept; `gathers`: whether cp.async writes A, which wgmma reads through another proxy;
    `cluster`: how many CTAs a slot is released in.
    """
    by_column = scaling == "block" and column_words > 4
    blocks = 3 if batches == 1 else batches  # of columns that have a scale each
    count, step = columns // 2, 32  # sums of a thread; bytes of K that an instruction multiplies
    sums, parts = [f"${i}" for i in range(count)], [f"part{i}" for i in range(count // batches)]
    a, b, full, empty, row, column, slot, parity, scales, k_tiles = (f"${count + i}" for i in range(10))
    types = ".".join({"fp8e4nv": "e4m3", "fp8e5": "e5m2"}[str(dtype)] for dtype in (a_dtype, b_dtype))
    shape = f"m64n{columns // batches}k{step}"
    product = f"wgmma.mma_async.sync.aligned.{shape}.f32.{types} {{{', '.join(parts)}}}, a, b, adds, 1, 1;"

    # In a cluster lane 0 arrives in the first CTA and lane 1 in the second.
    emptied, of_lanes = empty, []
    arrive = "@one mbarrier.arrive.shared::cta.b64 _, [freed];"
    if cluster == 2:
        emptied = "emptied"
        of_lanes = [
            ".reg .pred two; .reg .b32 emptied; mov.u32 emptied, %laneid; setp.lt.u32 two, emptied, 2;",
            f"and.b32 emptied, emptied, 1; mapa.shared::cluster.u32 emptied, {empty}, emptied;",
        ]
        arrive = "@two mbarrier.arrive.shared::cluster.b64 _, [freed];"

    def advance(slot, slots):
        return f"setp.eq.u32 wraps, {slot}, {slots - 1}; add.u32 {slot}, {slot}, 1; selp.b32 {slot}, 0, {slot}, wraps;"

    def wait_full(label):  # the vote tells ptxas that lanes go on together
        return [
            f"shl.b32 at, slot, 3; add.u32 at, at, {full};",
            f"{label}: mbarrier.try_wait.parity.shared::cta.b64 done, [at], parity;",
            f"vote.sync.all.pred done, done, 0xffffffff; @!done bra {label};",
            *(["fence.proxy.async.shared::cta;"] if gathers else []),
        ]

    def multiply(batch=0):
        of_batch = f"add.u32 at, at, {batch * columns // batches * block_k}; " if batch else ""
        lines = [
            f"mad.lo.u32 at, slot, {block_m * block_k}, {a}; " + descriptor("a", "at"),
            f"mad.lo.u32 at, slot, {columns * block_k}, {b}; " + of_batch + descriptor("b", "at"),
            "wgmma.fence.sync.aligned; setp.ne.b32 adds, 0, 0;",
            product,
            "setp.ne.b32 adds, 1, 0;",
        ]
        for _ in range(1, block_k // step):
            lines += [f"add.s64 a, a, {step // 16}; add.s64 b, b, {step // 16};", product]
        return [*lines, "wgmma.commit_group.sync.aligned;"]

    def load_four(i, address):
        """Scales of columns, of which copy_columns of scale_ring.py put those of a thread together."""
        four = ", ".join(f"col{4 * i + j}" for j in range(4))
        return f"ld.shared.v4.f32 {{{four}}}, [{address}+{16 * i}];"

    def load_rows():
        return f"mad.lo.u32 at, scales, {4 * row_pitch}, {row}; ld.shared.f32 row0, [at]; ld.shared.f32 row8, [at+32];"

    def load_scales():
        if scaling != "block":
            return []
        of_rows = load_rows()
        if by_column:
            of_columns = [f"mad.lo.u32 columns, scales, {4 * column_words}, {column};"]
            of_columns += [load_four(i, "columns") for i in range(READ_AHEAD)]
        else:
            load = load_four(0, "at") if column_words == 4 else "ld.shared.v2.f32 {col0, col1}, [at];"
            of_columns = [f"shl.b32 at, scales, {column_words.bit_length() + 1}; add.u32 at, at, {column};", load]
            of_columns += [
                f"mul.f32 s{2 * i}, row0, col{i}; mul.f32 s{2 * i + 1}, row8, col{i};" for i in range(blocks)
            ]
        return [of_rows, *of_columns, advance("scales", scale_slots)]

    def promote_columns():
        """Two of 8 columns, and two of the next 8, by one load. A part times the scale of its row first: an instruction
        then reads fewer registers than where the two scales are multiplied."""
        lines = []
        for four in range(count // 8):
            if four + READ_AHEAD < count // 8:
                lines.append(load_four(four + READ_AHEAD, "columns"))
            for i in range(8 * four, 8 * four + 8):
                scaled = f"mul.f32 s{i}, {parts[i]}, {of_row(i)};"
                lines.append(f"{scaled} fma.rn.f32 {sums[i]}, s{i}, col{i // 4 * 2 + i % 2}, {sums[i]};")
        return lines

    def of_row(i):
        return "row8" if i & 2 and scaling != "tensor" else "row0"

    def times_columns(of_sum, those):
        """What `of_sum` says of each sum, then times the scale of its column: two of 8 columns by one load."""
        if scaling == "tensor":
            return [of_sum(i) for i in those]
        pairs = sorted({i // 4 for i in those})
        loads = [f"ld.shared.v2.f32 {{col{2 * one}, col{2 * one + 1}}}, [columns+{32 * one}];" for one in pairs]
        lines = loads[:READ_AHEAD]
        for place, one in enumerate(pairs):
            lines += loads[place + READ_AHEAD :][:1]
            for i in range(4 * one, 4 * one + 4):
                lines.append(f"{of_sum(i)} mul.f32 {sums[i]}, {sums[i]}, col{2 * one + i % 2};")
        return lines

    def times_row(i):
        return f"mul.f32 {sums[i]}, {sums[i]}, {of_row(i)};"

    def add_last(i):
        return f"fma.rn.f32 {sums[i]}, {parts[i - count + len(parts)]}, {of_row(i)}, {sums[i]};"

    def scale_at_end():
        """The last part is in flight. What it is added to is multiplied by the scales of rows meanwhile, the other
        sums, which are whole, by both. The slot has the scales too."""
        whole, unfinished = range(count - len(parts)), range(count - len(parts), count)
        if scaling == "tensor":
            found = [f"mov.b32 row0, {row};"]
        else:
            found = [f"sub.u32 at, freed, {emptied}; shr.u32 scales, at, 3;", load_rows()]
            found.append(f"mad.lo.u32 columns, scales, {4 * column_words}, {column};")
        return [
            *found,
            *times_columns(times_row, whole),
            *map(times_row, unfinished),
            "elect.sync _|one, 0xffffffff;",
            "wgmma.wait_group.sync.aligned 0;",
            *times_columns(add_last, unfinished),
            *([] if last else [arrive]),
        ]

    def promote(releases, batch=0):
        lines = ["elect.sync _|one, 0xffffffff;", "wgmma.wait_group.sync.aligned 0;"]
        if releases:
            lines.append(arrive)
        if by_column:
            return lines + promote_columns()
        first = batch * len(parts)
        scale_of = {i: i // (count // blocks) * 2 + i // 2 % 2 for i in range(first, first + len(parts))}
        for i in sorted(scale_of, key=lambda i: (scale_of[i], i)):  # one scale after the other
            if scaling == "block":
                lines.append(f"fma.rn.f32 {sums[i]}, {parts[i - first]}, s{scale_of[i]}, {sums[i]};")
            else:
                lines.append(f"add.f32 {sums[i]}, {parts[i - first]}, {sums[i]};")
        return lines

    # Of two batches the second's products start where the first's are promoted, and the slot is free behind them.
    behind = [] if batches == 1 else [*load_scales(), *promote(False), *multiply(1)]
    ahead = load_scales() if batches == 1 else []
    lines = [
        f".reg .f32 part<{len(parts)}>, row0, row8, col<{count // 2}>, s<{count}>;",
        ".reg .b32 at, columns, slot, parity, scales, left, freed;",
        ".reg .b64 a, b; .reg .pred done, adds, wraps, one;",
        *of_lanes,
        *(f"mov.f32 {each}, 0f00000000;" for each in sums),
        f"mov.b32 slot, {slot}; mov.b32 parity, {parity}; mov.b32 scales, {scales}; mov.b32 left, {k_tiles};",
        "setp.le.s32 done, left, 0; @done bra end;",
        *wait_full("first"),
        *multiply(),
        "loop:",
        *behind,
        f"shl.b32 freed, slot, 3; add.u32 freed, freed, {emptied};",
        advance("slot", stages),
        "@wraps xor.b32 parity, parity, 1; sub.s32 left, left, 1; setp.le.s32 done, left, 0; @done bra last;",
        *wait_full("again"),
        *ahead,
        *promote(True, batches - 1),
        *multiply(),
        "bra loop;",
        "last:",
        *([*ahead, *promote(not last, batches - 1)] if scaling == "block" else scale_at_end()),
        "end:",
    ]
    return "{ " + " ".join(lines) + " }"


@gluon.jit
def multiply_wide(work, place, scales, factor, k_tiles, KEEPS_LAST: gl.constexpr, TYPE: gl.constexpr, ME: gl.constexpr):
    """A tile's sums, in three panels of TYPE or in two halves, times their scales.

    The first k-tile lies at `place`, and its scales in the slot `scales`. `factor`: the scale where there is one for
    all. KEEPS_LAST: the last k-tile's slot is not released.
    """
    tiling = work.tiling
    scaling = work.scaling
    BATCHES: gl.constexpr = 1 if tiling.B_PANELS > 1 else 2
    gl.static_assert(tiling.BLOCK_N == (WIDE if tiling.B_PANELS > 1 else 256) and tiling.CONSUMER_M == 64)
    gl.static_assert(tiling.LAYOUT == "nt" and tiling.BLOCK_K == 128, "rows of a k-tile have 128 bytes of K")
    # One number a thread. With the rows in the layout of sums, two of them, ptxas spills and leaves uniform registers.
    thread = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    row = ME * tiling.CONSUMER_M + thread // 32 * 16 + thread % 32 // 4
    SCALING: gl.constexpr = "block" if scaling.BLOCKS else "row" if scaling.LAST else "tensor"
    ROW_PITCH: gl.constexpr = 0 if SCALING == "tensor" else scaling.PITCH
    COLUMN_WORDS: gl.constexpr = 0 if SCALING == "tensor" else scaling.b.shape[1]
    gl.static_assert(COLUMN_WORDS <= 4 or COLUMN_WORDS >= WIDE, "scales of blocks: one a panel, or one a column")
    LOOP: gl.constexpr = _main_loop(
        tiling.BLOCK_N, BATCHES, tiling.BLOCK_M, tiling.BLOCK_K, tiling.STAGES, SCALING, scaling.SLOTS, ROW_PITCH,
        COLUMN_WORDS, KEEPS_LAST, work.schedule.GATHERS, tiling.CLUSTER, work.a_ring.dtype, work.b_ring.dtype,
    )  # fmt: skip
    if SCALING == "tensor":
        of_columns = work.full  # what is given is not read
    elif SCALING == "row":
        of_columns = shared_address(scaling.b) + thread % 4 * 8
    elif COLUMN_WORDS > 4:
        of_columns = shared_address(scaling.b) + thread % 4 * (4 * LANE_WORDS)
    else:
        of_columns = scaling.b
    rows_of_a = shared_address(work.a_ring) + ME * tiling.CONSUMER_M * tiling.BLOCK_K
    if SCALING == "tensor":
        of_rows = factor.to(gl.int32, bitcast=True)
    else:
        of_rows = shared_address(scaling.a) + row * 4
    given = (
        rows_of_a,
        work.b_ring,
        work.full,
        work.empty,
        of_rows,
        of_columns,
        place.slot,
        place.parity,
        scales,
        k_tiles,
    )
    if tiling.B_PANELS == 1:
        return gl.inline_asm(LOOP, ("=f", "=f", "r", "r", "r", "r", "r", "r", "r", "r", "r", "r"), given, (TYPE, TYPE))
    else:
        return gl.inline_asm(
            LOOP, ("=f", "=f", "=f", "r", "r", "r", "r", "r", "r", "r", "r", "r", "r"), given, (TYPE, TYPE, TYPE)
        )
