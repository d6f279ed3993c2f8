"""`pack`: uploads problem records that arrive as kernel parameters to device memory; sm_80 and later.

A list that does not fit a kernel's own parameters reaches the GPU this way. There is no copy engine, no staging buffer
that must outlive the call and no synchronization, and a captured launch carries the words with it.

A group has `record_words` + 1 words: its end, then its record. Most words are equal in all groups, such as formats and
boxes of descriptors, or the sizes of like matrices. They travel once. Each group brings only the words that differ
between groups: for 64 groups of one size on `hopper` 4 of 57, so one launch instead of eight
(benchmarks/notes/lists.md). Bit w of `differs` is set where word w differs:

    same[number of 0 bits]            words that all groups share, by rising position
    own[groups][number of 1 bits]     the others, group by group, by rising position

Each thread moves one word: parameters have addresses, so a thread may index them. csrc/launch/upload.cpp writes them.
"""

import triton
import triton.language as tl

from ..schedule import list_address, word


@triton.jit
def set_bits(x):
    """How many bits of a 64-bit word are set: sums of 2, 4 and 8 bits in place, then of all bytes."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    x = x + (x >> 8)
    x = x + (x >> 16)
    return ((x + (x >> 32)) & 0x7F).to(tl.int32)


@triton.jit
def pack(
    list_words,
    problems,
    ends,
    records,
    differs,
    groups,
    record_words,
    BLOCK: tl.constexpr,
    BY_VALUE: tl.constexpr,
):
    """Writes ends[0:groups] and records[0:groups * record_words]; one program for each BLOCK words.

    The words to expand are the kernel's first parameter, or lie at `problems` if that is not 0.
    """
    group_words = record_words + 1
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < groups * group_words
    index = tl.minimum(index, groups * group_words - 1)
    group, position = index // group_words, index % group_words

    differs = differs.to(tl.int64)
    own = set_bits(differs)
    bit = tl.minimum(position, 63).to(tl.int64)  # what is behind word 62 never differs
    rank = set_bits(differs & ((tl.full((BLOCK,), 1, tl.int64) << bit) - 1))
    is_own = ((differs >> bit) & 1) != 0
    source = tl.where(is_own, group_words - own + group * own + rank, position - rank)
    value = word(list_address(problems, BY_VALUE) + source.to(tl.int64) * 8, BY_VALUE is not None)

    record_word = group.to(tl.int64) * record_words + position - 1
    tl.store(ends.to(tl.pointer_type(tl.int64)) + group, value, mask=inside & (position == 0))
    tl.store(records.to(tl.pointer_type(tl.int64)) + record_word, value, mask=inside & (position > 0))
