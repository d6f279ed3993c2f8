"""The PTX of the main loop of hopper/wide.py, which says what the loop does and why."""

from dataclasses import dataclass
from typing import Any

from .wgmma import descriptor

STEP = 32  # bytes of K that an instruction multiplies
READ_AHEAD = 2  # loads of scales of columns before the first are used; with 3, kernels of bfloat16 spill


@dataclass
class MainLoop:
    """A tile's k-tiles, of one consumer group.

    Operands: the sums; in shared memory the group's rows of A, B, the full and the empty barriers, the scale of the
    first of this thread's two rows, or the one scale itself, those of columns; the first k-tile's slot, that slot's
    parity, the slot of its scales; the number of k-tiles.
    """

    columns: int
    batches: int  # in how many the columns are multiplied
    block_m: int
    block_k: int
    stages: int
    scaling: str  # "block", of each k-tile, "row", of a tile, in the slot of its last k-tile, or "tensor", one for all
    scale_slots: int  # of the ring of scales
    row_pitch: int  # words from the scales of rows in a slot to those in the next
    # Words of a slot that are scales of columns. Blocks have 4 or 2 where each panel or batch has one, more where each
    # column has (copy_columns of scale_ring.py).
    column_words: int
    keeps_last: bool  # whether the last k-tile's slot is kept
    gathers: bool  # whether cp.async writes A, which wgmma reads through another proxy
    cluster: int  # CTAs that a slot is released in
    a_dtype: Any
    b_dtype: Any

    def __post_init__(self):
        count = self.columns // 2  # of a thread
        self.sums = [f"${i}" for i in range(count)]
        self.parts = [f"part{i}" for i in range(count // self.batches)]
        names = [f"${count + i}" for i in range(10)]
        self.a, self.b, self.full, self.empty, self.row, self.column, *counts = names
        self.slot, self.parity, self.scales, self.k_tiles = counts
        self.by_column = self.scaling == "block" and self.column_words > 4
        self.blocks = 3 if self.batches == 1 else self.batches  # of columns that have a scale each
        # In a cluster lane 0 arrives in the first CTA and lane 1 in the second.
        self.emptied = "emptied" if self.cluster == 2 else self.empty
        self.arrive = "@one mbarrier.arrive.shared::cta.b64 _, [freed];"
        if self.cluster == 2:
            self.arrive = "@two mbarrier.arrive.shared::cluster.b64 _, [freed];"

    def text(self):
        # Of two batches the second's products start where the first's are promoted, and the slot is free behind them.
        one_batch = self.batches == 1
        behind = [] if one_batch else [*self.load_scales(), *self.promote(False), *self.multiply(1)]
        ahead = self.load_scales() if one_batch else []
        at_end = [*ahead, *self.promote(not self.keeps_last, self.batches - 1)]
        lines = [
            f".reg .f32 part<{len(self.parts)}>, row0, row8, col<{self.columns // 4}>, s<{self.columns // 2}>;",
            ".reg .b32 at, columns, slot, parity, scales, left, freed;",
            ".reg .b64 a, b; .reg .pred done, adds, wraps, one;",
            *self.lanes_of_cluster(),
            *(f"mov.f32 {each}, 0f00000000;" for each in self.sums),
            f"mov.b32 slot, {self.slot}; mov.b32 parity, {self.parity}; mov.b32 scales, {self.scales}; "
            f"mov.b32 left, {self.k_tiles};",
            "setp.le.s32 done, left, 0; @done bra end;",
            *self.wait_full("first"),
            *self.multiply(),
            "loop:",
            *behind,
            f"shl.b32 freed, slot, 3; add.u32 freed, freed, {self.emptied};",
            advance("slot", self.stages),
            "@wraps xor.b32 parity, parity, 1; sub.s32 left, left, 1; setp.le.s32 done, left, 0; @done bra last;",
            *self.wait_full("again"),
            *ahead,
            *self.promote(True, self.batches - 1),
            *self.multiply(),
            "bra loop;",
            "last:",
            *(at_end if self.scaling == "block" else self.scale_at_end()),
            "end:",
        ]
        return "{ " + " ".join(lines) + " }"

    def lanes_of_cluster(self):
        if self.cluster != 2:
            return []
        return [
            ".reg .pred two; .reg .b32 emptied; mov.u32 emptied, %laneid; setp.lt.u32 two, emptied, 2;",
            f"and.b32 emptied, emptied, 1; mapa.shared::cluster.u32 emptied, {self.empty}, emptied;",
        ]

    def wait_full(self, label):
        """The vote tells ptxas that lanes go on together."""
        return [
            f"shl.b32 at, slot, 3; add.u32 at, at, {self.full};",
            f"{label}: mbarrier.try_wait.parity.shared::cta.b64 done, [at], parity;",
            f"vote.sync.all.pred done, done, 0xffffffff; @!done bra {label};",
            *(["fence.proxy.async.shared::cta;"] if self.gathers else []),
        ]

    def multiply(self, batch=0):
        """Starts the products of a k-tile, or of a batch of its columns."""
        columns = self.columns // self.batches
        types = ".".join({"fp8e4nv": "e4m3", "fp8e5": "e5m2"}[str(dtype)] for dtype in (self.a_dtype, self.b_dtype))
        instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k{STEP}.f32.{types}"
        product = f"{instruction} {{{', '.join(self.parts)}}}, a, b, adds, 1, 1;"
        of_batch = f"add.u32 at, at, {batch * columns * self.block_k}; " if batch else ""
        lines = [
            f"mad.lo.u32 at, slot, {self.block_m * self.block_k}, {self.a}; " + descriptor("a", "at"),
            f"mad.lo.u32 at, slot, {self.columns * self.block_k}, {self.b}; " + of_batch + descriptor("b", "at"),
            "wgmma.fence.sync.aligned; setp.ne.b32 adds, 0, 0;",
            product,
            "setp.ne.b32 adds, 1, 0;",
        ]
        for _ in range(1, self.block_k // STEP):
            lines += [f"add.s64 a, a, {STEP // 16}; add.s64 b, b, {STEP // 16};", product]
        return [*lines, "wgmma.commit_group.sync.aligned;"]

    def load_rows(self):
        at = f"mad.lo.u32 at, scales, {4 * self.row_pitch}, {self.row};"
        return f"{at} ld.shared.f32 row0, [at]; ld.shared.f32 row8, [at+32];"

    def load_scales(self):
        """Of blocks, those of a k-tile."""
        if self.scaling != "block":
            return []
        if self.by_column:
            of_columns = [f"mad.lo.u32 columns, scales, {4 * self.column_words}, {self.column};"]
            of_columns += [load_four(i, "columns") for i in range(READ_AHEAD)]
        else:
            shift = self.column_words.bit_length() + 1
            load = load_four(0, "at") if self.column_words == 4 else "ld.shared.v2.f32 {col0, col1}, [at];"
            of_columns = [f"shl.b32 at, scales, {shift}; add.u32 at, at, {self.column};", load]
            for i in range(self.blocks):
                of_columns.append(f"mul.f32 s{2 * i}, row0, col{i}; mul.f32 s{2 * i + 1}, row8, col{i};")
        return [self.load_rows(), *of_columns, advance("scales", self.scale_slots)]

    def promote(self, releases, batch=0):
        """Adds a batch's part to the sums once its products are done, times its scales where these are of blocks."""
        lines = ["elect.sync _|one, 0xffffffff;", "wgmma.wait_group.sync.aligned 0;"]
        if releases:
            lines.append(self.arrive)
        if self.by_column:
            return lines + self.promote_columns()
        first = batch * len(self.parts)
        of_block = len(self.sums) // self.blocks
        scale_of = {i: i // of_block * 2 + i // 2 % 2 for i in range(first, first + len(self.parts))}
        for i in sorted(scale_of, key=lambda i: (scale_of[i], i)):  # one scale after the other
            total, part = self.sums[i], self.parts[i - first]
            if self.scaling == "block":
                lines.append(f"fma.rn.f32 {total}, {part}, s{scale_of[i]}, {total};")
            else:
                lines.append(f"add.f32 {total}, {part}, {total};")
        return lines

    def promote_columns(self):
        """Two of 8 columns, and two of the next 8, by one load. A part times the scale of its row first: an instruction
        then reads fewer registers than where the two scales are multiplied."""
        lines = []
        fours = len(self.sums) // 8
        for four in range(fours):
            if four + READ_AHEAD < fours:
                lines.append(load_four(four + READ_AHEAD, "columns"))
            for i in range(8 * four, 8 * four + 8):
                scaled = f"mul.f32 s{i}, {self.parts[i]}, {self.row_of(i)};"
                lines.append(f"{scaled} fma.rn.f32 {self.sums[i]}, s{i}, col{i // 4 * 2 + i % 2}, {self.sums[i]};")
        return lines

    def row_of(self, i):
        """The scale of a sum's row."""
        return "row8" if i & 2 and self.scaling != "tensor" else "row0"

    def scale_at_end(self):
        """The last part is in flight. What it is added to is multiplied by the scales of rows meanwhile, the other
        sums, which are whole, by both. The slot has the scales too."""
        count, parts = len(self.sums), len(self.parts)
        whole, unfinished = range(count - parts), range(count - parts, count)
        if self.scaling == "tensor":
            found = [f"mov.b32 row0, {self.row};"]
        else:
            found = [
                f"sub.u32 at, freed, {self.emptied}; shr.u32 scales, at, 3;",
                self.load_rows(),
                f"mad.lo.u32 columns, scales, {4 * self.column_words}, {self.column};",
            ]
        return [
            *found,
            *self.times_columns(self.times_row, whole),
            *map(self.times_row, unfinished),
            "elect.sync _|one, 0xffffffff;",
            "wgmma.wait_group.sync.aligned 0;",
            *self.times_columns(self.add_last, unfinished),
            *([] if self.keeps_last else [self.arrive]),
        ]

    def times_columns(self, of_sum, those):
        """What `of_sum` says of each sum, then times the scale of its column: two of 8 columns by one load."""
        if self.scaling == "tensor":
            return [of_sum(i) for i in those]
        pairs = sorted({i // 4 for i in those})
        loads = [f"ld.shared.v2.f32 {{col{2 * one}, col{2 * one + 1}}}, [columns+{32 * one}];" for one in pairs]
        lines = loads[:READ_AHEAD]
        for place, one in enumerate(pairs):
            lines += loads[place + READ_AHEAD :][:1]
            for i in range(4 * one, 4 * one + 4):
                lines.append(f"{of_sum(i)} mul.f32 {self.sums[i]}, {self.sums[i]}, col{2 * one + i % 2};")
        return lines

    def times_row(self, i):
        return f"mul.f32 {self.sums[i]}, {self.sums[i]}, {self.row_of(i)};"

    def add_last(self, i):
        part = self.parts[i - len(self.sums) + len(self.parts)]
        return f"fma.rn.f32 {self.sums[i]}, {part}, {self.row_of(i)}, {self.sums[i]};"


def advance(slot, slots):
    """The next slot; `wraps` tells whether it is the first."""
    return f"setp.eq.u32 wraps, {slot}, {slots - 1}; add.u32 {slot}, {slot}, 1; selp.b32 {slot}, 0, {slot}, wraps;"


def load_four(i, address):
    """Scales of columns, of which copy_columns of scale_ring.py put those of a thread together."""
    four = ", ".join(f"col{4 * i + j}" for j in range(4))
    return f"ld.shared.v4.f32 {{{four}}}, [{address}+{16 * i}];"
