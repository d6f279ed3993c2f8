"""wgmma in PTX, for numbers of columns that are no powers of two. main_loop.py and fitted.py share it.

Between the start of products and the wait for them nothing else may touch their sums, or ptxas lets each product wait
for the one before and says so in its log alone (C7510 to C7515). tests/cpu/test_machine_code.py looks for that. So
where start and wait are assembly of their own, sums are tied: each is an output and an input.
"""

from triton.experimental import gluon

# A matrix descriptor but its address: rows of 128 bytes, the 128-byte swizzle, 1024 bytes from 8 rows to the next.
ROWS_OF_128_BYTES = 0x4000004000010000


@gluon.constexpr_function
def descriptor(name, address):
    """PTX that makes the descriptor `name` of what lies at an address in shared memory. It has a register `at`."""
    return f"shr.b32 at, {address}, 4; cvt.u64.u32 {name}, at; or.b64 {name}, {name}, {ROWS_OF_128_BYTES}; "


@gluon.constexpr_function
def through(count, inputs=""):
    """The constraints of as many outputs, each of which is an input too, and of `inputs` behind them."""
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + list(inputs))


@gluon.constexpr_function
def wait_for_all_but(count, note=""):
    """PTX that waits until `count` batches are in flight at most."""
    return f"wgmma.wait_group.sync.aligned {count};" + (f" // {note}" if note else "")
