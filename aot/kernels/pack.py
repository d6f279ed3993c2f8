"""`pack`: writes 64-bit words that arrive as kernel parameters to device memory; sm_80 and later.

A problem list that does not fit a kernel's own parameters reaches the GPU this way: no copy engine, no staging buffer
that must outlive the call, no synchronization, and a captured launch carries the words with it. Each thread moves one
word: parameters have addresses, so a thread may index them.
"""

import triton
import triton.language as tl

from .schedule import list_address, word


@triton.jit
def pack(list_words, destination, count, BLOCK: tl.constexpr, BY_VALUE: tl.constexpr):
    """destination[0:count] = list_words[0:count]; one program for each BLOCK words."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = list_address(tl.cast(0, tl.int64), BY_VALUE)
    value = word(source + tl.minimum(index, count - 1).to(tl.int64) * 8, True)
    tl.store(destination + index, value, mask=index < count)
