"""What Python and C++ share: the one source of the dtypes, layouts, properties and arguments.

`aot/emit/abi_header.py` writes it as build/aot/abi.h for csrc and the launchers. Nothing of it is written down a second
time. Records have a file of their own, `records.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type: its name in variants, in frameworks and in Triton, and its codes in DLPack and tensor maps."""

    name: str
    framework: str
    triton: str
    bytes: int
    dlpack_code: int  # DLDataTypeCode
    tensor_map: str  # CU_TENSOR_MAP_DATA_TYPE_...


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("fp16", "float16", "float16", 2, 2, "FLOAT16"),
        DType("bf16", "bfloat16", "bfloat16", 2, 4, "BFLOAT16"),
        DType("e4m3", "float8_e4m3fn", "float8e4nv", 1, 10, "UINT8"),
        DType("fp32", "float32", "float32", 4, 2, "FLOAT32"),  # outputs of e4m3 products only
    )
}
ANY = "any"  # of a kernel that has no dtype or layout, and in C the value 255

# A with K (n) or M (t) contiguous, then B with N (n) or K (t) contiguous; strided guarantees neither.
LAYOUTS = ("nn", "nt", "tn", "tt", "strided")

# Which problems a kernel solves, and where their sizes come from. list: unlike matrices, sizes on the host. grouped:
# one stack of alike problems, one extent ragged and read on the device. memory: none, the kernel moves words.
FORMS = ("list", "grouped", "memory")

# Where the sizes of a problem's groups come from. host: all from the host. m_ends, k_ends: the device has int32 ends of
# the groups' shares of M or K, one behind the other in one matrix. m_counts: each group has a matrix of its own, and
# the device has an int32 count of its rows that matter.
EXTENTS = ("host", "m_ends", "k_ends", "m_counts")

# How a kernel reaches matrices: by pointers, or by TMA descriptors that it makes itself or that the host has made.
ADDRESSINGS = ("pointers", "device_descriptors", "host_descriptors")

# What becomes of the sums before they are written. linear: scales, then bias where there is one.
EPILOGUES = ("linear",)

# What sums are multiplied by. tensor: scale_a of all of A, scale_b of each group's B, float32.
SCALINGS = ("none", "tensor")


@dataclass(frozen=True)
class Argument:
    """A kernel argument, by the name that kernels give it, and a field of gg_arguments. `type`: i64, i32 or pointer."""

    name: str
    type: str
    meaning: str


ARGUMENTS = {
    argument.name: argument
    for argument in (
        Argument("problems", "i64", "the problem list in device memory, or 0"),
        Argument("ends", "pointer", "pack: where the first group's end goes"),
        Argument("records", "pointer", "pack: where the first group's record goes"),
        Argument("differs", "i64", "pack: bit w is set where word w of a group is not that of all groups"),
        Argument("groups", "i32", "groups of the problem"),
        Argument("tiles", "i32", "list: output tiles"),
        Argument("record_words", "i32", "pack: words of a record"),
        Argument("rows", "i32", "grouped: rows of A and C"),
        Argument("columns", "i32", "grouped: N"),
        Argument("depth", "i32", "grouped: K"),
        Argument("global_scratch", "pointer", "grid x scratch_bytes, or 0 when the kernel needs none"),
    )
}
