"""What Python and C++ share: the one source of the dtypes, layouts, properties and arguments.

`aot/emit/abi_header.py` writes it as build/aot/abi.h for csrc and the launchers. Nothing of it is written down a second
time. Records have a file of their own, `records.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type: its name in variants, in frameworks and in Triton, and its codes in DLPack and tensor maps.

    `of_b`: what B has where A has this one; "": the same.
    """

    name: str
    framework: str
    triton: str
    bytes: int
    dlpack_code: int  # DLDataTypeCode
    tensor_map: str  # CU_TENSOR_MAP_DATA_TYPE_...
    of_b: str = ""


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("fp16", "float16", "float16", 2, 2, "FLOAT16"),
        DType("bf16", "bfloat16", "bfloat16", 2, 4, "BFLOAT16"),
        DType("e4m3", "float8_e4m3fn", "float8e4nv", 1, 10, "UINT8"),
        DType("fp32", "float32", "float32", 4, 2, "FLOAT32"),  # outputs of fp8 products and of ragged K only
        DType("e5m2", "float8_e5m2", "float8e5", 1, 12, "UINT8", of_b="e4m3"),  # gradients times weights: A alone
    )
}
FP8 = tuple(name for name, dtype in DTYPES.items() if dtype.bytes == 1)
ANY = "any"  # of a kernel that has no dtype or layout, and in C the value 255

# A with K (n) or M (t) contiguous, then B with N (n) or K (t) contiguous; strided guarantees neither.
LAYOUTS = ("nn", "nt", "tn", "tt", "strided")

# Which problems a kernel solves, and where their sizes come from. list: unlike matrices, sizes on the host. grouped:
# one stack of alike problems, one extent ragged and read on the device. The others multiply nothing: upload brings
# records to the device, route_count and route_place sort tokens by expert, combine sums the rows of a token, gather
# copies rows by an index, activate applies an activation to a product, add_parts adds up the parts of a product,
# activation_gradient goes back through an activation, add_row_sums adds up what gradients of weights are made of,
# quantize makes e4m3 and its scales of rows, activate_quantize of what an activation makes of them.
FORMS = (
    "list", "grouped", "upload", "route_count", "route_place", "combine", "gather", "activate", "add_parts",
    "activation_gradient", "add_row_sums", "quantize", "activate_quantize",
)  # fmt: skip
PRODUCTS = ("list", "grouped")

# Where the sizes of a problem's groups come from. host: all from the host. m_ends, k_ends: the device has int32 ends of
# the groups' shares of M or K, one behind the other in one matrix. m_counts: each group has a matrix of its own, and
# the device has an int32 count of its rows that matter.
EXTENTS = ("host", "m_ends", "k_ends", "m_counts")

# How a kernel reaches matrices: by pointers, or by TMA descriptors that it makes itself or that the host has made.
ADDRESSINGS = ("pointers", "device_descriptors", "host_descriptors")

# What becomes of the sums before they are written. linear: scales, then bias where there is one.
# gated: an activation of two columns each, gate and up, which lie in halves of B's columns or in turns; gated_pairs: in
# turns, with N contiguous; gated_kept: in halves, and gate and up are outputs too.
# gated_gradient: sums are the gradient of such an activation's weighted output; those of gate and up are outputs too.
# gated_quantized: as gated, in halves; the output is e4m3 with a float32 scale for each 128 of a row.
EPILOGUES = ("linear", "gated", "gated_pairs", "gated_kept", "gated_gradient", "gated_quantized")
HALVING_EPILOGUES = ("gated", "gated_pairs", "gated_kept", "gated_quantized")  # an output for two columns of sums

# Which rows of A a product takes, or of a ragged K columns of A. rows: as they lie; indexed: by an index; either: a
# kernel that takes both; indexed_b: those of A as they lie, and rows of B by an index.
SOURCES = ("rows", "indexed", "either", "indexed_b")

# What an activation makes of the sums of a product, which is then rounded once. The gated ones take two columns, gate g
# and up u: swiglu silu(g) * u; geglu gelu(g) * u; geglu_tanh the same with gelu's tanh form; swiglu_oai, of gpt-oss,
# g * sigmoid(1.702 g) * (u + 1). Before, g may be limited from above, and u from both sides: swiglu_oai at 7 if nothing
# else is said. The others take one: relu2 is relu(z)^2.
GATED_ACTIVATIONS = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
ACTIVATIONS = ("none", *GATED_ACTIVATIONS, "silu", "gelu", "gelu_tanh", "relu", "relu2")

# How the columns of gate and up lie in B: as halves [gate; up] or [up; gate], or in turns, gate first.
GATE_ORDERS = ("gate_first", "up_first", "interleaved")

# What sums of fp8 inputs are multiplied by, float32. tensor: scale_a of all of A, scale_b of each group's B. row:
# scale_a of each row of A, scale_b of each column of B. block: scale_a of each 1x128 of A, scale_b of each 128x128 of
# B, which multiply the products of 128 of K before they are summed.
SCALINGS = ("none", "tensor", "row", "block")


@dataclass(frozen=True)
class Argument:
    """A kernel argument, by the name that kernels give it, and a field of gg_arguments. `type`: i64, i32 or pointer.

    What is said of activate goes for activation_gradient and activate_quantize as well, what is said of the first of
    these for add_row_sums, and what is said of gather for quantize.
    """

    name: str
    type: str
    meaning: str


ARGUMENTS = {
    argument.name: argument
    for argument in (
        Argument("problems", "i64", "the problem list in device memory, or 0"),
        Argument("ends", "pointer", "pack, routing: where ends of groups go; gather, activate: int32 [groups], or 0"),
        Argument("records", "pointer", "pack: where the first group's record goes"),
        Argument("differs", "i64", "pack: bit w is set where word w of a group is not that of all groups"),
        Argument("groups", "i32", "groups of the problem; add_parts: of `out`"),
        Argument("tiles", "i32", "list: output tiles"),
        Argument("record_words", "i32", "pack: words of a record"),
        Argument("rows", "i32", "grouped: M; combine: rows of y; gather, activate: of `out`; add_parts: of a matrix"),
        Argument("columns", "i32", "grouped: N; combine, gather, activate, add_parts: columns of a row of `out`"),
        Argument("depth", "i32", "grouped: K"),
        Argument("ids", "i64", "routing: the experts that a token chose, integers"),
        Argument("expert_map", "i64", "routing: the group of each expert, integers, or 0"),
        Argument(
            "counts",
            "i64",
            "routing: int32 [parts, bins], entries by group; activate: int32, rows of each matrix; or 0",
        ),
        Argument("token", "i64", "routing: where int32 [entries], each place's token, goes"),
        Argument("slot", "i64", "routing: where int32 [entries], each place's entry, goes"),
        Argument("inverse", "i64", "routing: int32 [tokens, top_k], each entry's place; combine: the same"),
        Argument("entries", "i32", "routing, activation_gradient: slots of all tokens"),
        Argument("top_k", "i32", "routing, combine: slots of a token"),
        Argument("id_bytes", "i32", "routing: 4 or 8"),
        Argument("map_bytes", "i32", "routing: 4 or 8"),
        Argument("map_size", "i32", "routing: experts that the map knows"),
        Argument("chunks", "i32", "routing: chunks of a part"),
        Argument("parts", "i32", "routing: CTAs; add_parts: of each group; add_row_sums: of each row"),
        Argument("y", "i64", "add_parts, add_row_sums: float32 sums; the others: the rows to read"),
        Argument("y_row", "i64", "combine, gather, activate, add_parts: the stride of rows of y"),
        Argument("y_col", "i64", "gather, activate: the stride of columns of y"),
        Argument("index", "i64", "gather: integers [rows], the row of y that becomes each row"),
        Argument("index_bytes", "i32", "gather: 4 or 8"),
        Argument("source_rows", "i32", "gather: rows of y"),
        Argument("weights", "i64", "combine, gather, activation_gradient: a factor of each slot, or 0"),
        Argument(
            "weight_index",
            "i64",
            "gather, activation_gradient: int32 [rows], the slot of each row, if there are weights",
        ),
        Argument("weight_kind", "i32", "of `weights`: 0 for float32, 1 for float16, 2 for bfloat16"),
        Argument("activation", "i32", "activate: the place in ACTIVATIONS"),
        Argument("limit_bits", "i32", "activate: a float32 that gate and up are limited to, as its bits"),
        Argument("gate_order", "i32", "activate: the place in GATE_ORDERS"),
        Argument("dh", "i64", "activation_gradient: the gradient of the activation's output"),
        Argument("dh_row", "i64", "activation_gradient: the stride of rows of dh"),
        Argument("dh_col", "i64", "activation_gradient: the stride of columns of dh"),
        Argument("h", "i64", "activation_gradient: where the weighted output of the activation goes, or 0"),
        Argument("h_row", "i64", "activation_gradient: the stride of rows of h"),
        Argument("h_col", "i64", "activation_gradient: the stride of columns of h"),
        Argument("dweights", "i64", "activation_gradient: where float32 [entries], gradients of weights, go, or 0"),
        Argument("scales", "i64", "quantize, activate_quantize: where float32 [rows, blocks], the scales, go"),
        Argument("scale_row", "i64", "quantize, activate_quantize: the stride of rows of `scales`"),
        Argument("scale_col", "i64", "quantize, activate_quantize: the stride of blocks of `scales`"),
        Argument("added", "i64", "combine: rows to add, or 0"),
        Argument("added_row", "i64", "combine: the stride of `added`"),
        Argument("out", "i64", "combine, gather, activate, add_parts: the rows to write"),
        Argument("out_row", "i64", "combine, gather, activate, add_parts: the stride of rows of `out`"),
        Argument("out_col", "i64", "activate, add_parts: the stride of columns of `out`"),
        Argument("out_group", "i64", "activate, add_parts: the stride of matrices of `out`"),
        Argument("y_group", "i64", "activate: the stride of matrices of y"),
        Argument("group_rows", "i32", "activate: rows of each matrix of a stack, or 0: it is one matrix"),
        Argument("alpha_at", "i64", "add_parts: a float32 factor of the sums, or 0: alpha_bits"),
        Argument("beta_at", "i64", "add_parts: a float32 factor of what `out` has, or 0: beta_bits"),
        Argument("alpha_bits", "i32", "add_parts: those of a float32"),
        Argument("beta_bits", "i32", "add_parts: those of a float32; where beta is 0, `out` is not read"),
        Argument("factor_bits", "i32", "combine, activation_gradient: a float32 factor of all, as its bits"),
        Argument("global_scratch", "pointer", "grid x scratch_bytes, or 0 when the kernel needs none"),
    )
}
