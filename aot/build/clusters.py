"""Has a kernel run in clusters of CTAs, in PTX. Triton's own (num_ctas) are for one tile that several CTAs share.

- The kernel says how large its clusters are, so that no launch needs to. The grid must be a multiple of that.
- Behind each barrier of all warps, at which the partitions of a specialized kernel begin and end, those of the whole
  cluster meet. So the barriers in shared memory are there before another CTA arrives on them, and none ends before what
  others write to its memory has come.
- Triton takes the number of the CTA out of addresses in shared memory that PTX gets, as it has the first CTA of its own
  clusters wait for the others. Here each CTA means its own memory.
"""

import re

_THREADS = re.compile(r"^(\.reqntid[^\n]*\n)", re.MULTILINE)
_ALL_WARPS = re.compile(r"^\tbarrier\.sync[ \t]+1;\n", re.MULTILINE)
_ADDRESS = re.compile(r"\band\.b32([ \t]+%r\d+, %r\d+), (16777200|16777208);")
_CLUSTER = (
    "\tfence.mbarrier_init.release.cluster;\n\tbarrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;\n"
)


def in_clusters(ptx: str, ctas: int) -> str:
    """The PTX of a kernel that specializes its warps, in clusters of so many CTAs. ValueError if that is not as
    expected."""
    ptx, kernels = _THREADS.subn(rf"\1.explicitcluster\n.reqnctapercluster {ctas}, 1, 1\n", ptx)
    ptx, barriers = _ALL_WARPS.subn(rf"\g<0>{_CLUSTER}", ptx)
    if kernels != 1 or barriers == 0:
        raise ValueError(f"one kernel whose warps part was expected in the PTX: {kernels} with {barriers} barriers")
    ptx = _ADDRESS.sub(r"mov.b32\1;", ptx)
    if left := re.search(r"\band\.b32[ \t]+%r\d+, %r\d+, 1677\d{4};", ptx):
        raise ValueError(f"an address is taken apart in an unexpected way: {left.group()}")
    return ptx
