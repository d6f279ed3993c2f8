"""Has warps end with the partition that they run, in PTX, where Triton has them wait for another one.

Triton's worker warps go round a loop: they wait for the number of a partition, run it, and come back for the next one,
or to be told to end. A kernel that specializes its warps once enters the loop once, but ptxas does not know. With the
loop consumers that have few registers to spare spill, and without it they do not: most likely what a partition works
out at its start goes in front of the loop, and is kept in registers by all of them. So each way back to the loop's
start becomes what a warp does there when it is told to end: it gives registers away, waits at the barrier, and returns.
"""

import re

_LOOP = re.compile(
    r"^(\$\w+):[^\n]*\n(?:[ \t]*//[^\n]*\n)*"
    r"(\tsetmaxnreg\.dec\.sync\.aligned\.u32 \t\d+;\n\tbarrier\.sync \t1;\n)(?=(?:\t[^\n]*\n){0,3}\tld\.shared\.b8)",
    re.MULTILINE,
)


def end_with_partition(ptx: str) -> str:
    """The PTX of a kernel that specializes its warps once, without the loop. ValueError if that is not as expected."""
    loops = list(_LOOP.finditer(ptx))
    if len(loops) != 1:
        raise ValueError(f"one loop of worker warps was expected in the PTX, {len(loops)} are there")
    label, waits = loops[0].groups()
    named = re.compile(re.escape(label) + r"\b")
    before, after = ptx[: loops[0].start()], ptx[loops[0].start() :]
    ending = waits + "\tret;\n"
    ended = after.replace(f"\tbra.uni \t{label};\n", ending)
    entries = len(named.findall(before))
    # Where the loop is entered by a branch, what stands in front of it is the end of a partition, or goes elsewhere.
    if entries == 1 and not re.search(r"\t(bra\.uni|ret)\b[^\n]*\n$", before):
        before += ending
    if entries > 1 or len(named.findall(ended)) != 1:
        raise ValueError(f"the loop of worker warps at {label} is entered in an unexpected way")
    return before + ended
