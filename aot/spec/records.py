"""What kernels read of a problem, as records of named 64-bit fields: the one source of their layouts.

`aot/emit/abi_header.py` writes them as structs for csrc, `aot/kernels/records.py` gives kernels the offsets.
"""

from dataclasses import dataclass

DESCRIPTOR_WORDS = 16  # of 64 bits, on 64 bytes
FIELD_WORDS = {"address": 1, "stride": 1, "size": 1, "descriptor": DESCRIPTOR_WORDS}


@dataclass(frozen=True)
class Field:
    """`count` values of one kind. Addresses are bytes, 0 for what is absent; strides are elements."""

    name: str
    kind: str
    count: int = 1

    @property
    def words(self) -> int:
        return self.count * FIELD_WORDS[self.kind]


@dataclass(frozen=True)
class Record:
    """What a kernel reads of a group or of the whole problem: 64-bit words, in device memory as in parameters."""

    name: str
    about: str
    fields: tuple[Field, ...]

    @property
    def words(self) -> int:
        return sum(field.words for field in self.fields)

    def word_offsets(self) -> dict[str, int]:
        """The first word of each field."""
        offsets, at = {}, 0
        for field in self.fields:
            offsets[field.name] = at
            at += field.words
        return offsets


def _fields(kind: str, names: str) -> tuple[Field, ...]:
    return tuple(Field(name, kind) for name in names.split())


_GROUPED_REST = (
    *_fields("address", "offs bias"),
    *_fields("stride", "bias_row bias_col"),
    *_fields("address", "scale_a scale_b"),
    *_fields("stride", "scale_b_step"),
    *_fields("size", "skips_rest"),  # 1: rows behind the last end are not written; 0: they are zeros
)

# Strides of scales by row and column, or by block: scale_b_step is that of groups, 0 strides are of what has none.
_SCALE_STRIDES = _fields("stride", "scale_a_row scale_a_k scale_b_n scale_b_k")

LIST_POINTERS = Record(
    "list_pointers",
    "a group of a list, for kernels that take pointers and strides",
    (
        *_fields("address", "a b c"),
        *_fields("stride", "a_row a_col b_row b_col c_row c_col"),
        *_fields("size", "m n k"),
        *_fields("address", "scale_a scale_b"),
    ),
)
SCALED_LIST_POINTERS = Record(
    "scaled_list_pointers",
    "as list_pointers, with scales by row and column, or by block",
    (*LIST_POINTERS.fields, *_SCALE_STRIDES),
)
LIST_DESCRIPTORS = Record(
    "list_descriptors",
    "a group of a list, for kernels that take descriptors; filled up to whole 64 bytes",
    (
        *_fields("descriptor", "a b c"),
        *_fields("size", "m n k gap"),
        *_fields("address", "scale_a scale_b"),
        *_fields("stride", "scale_b_step"),  # 0: each group has its own scales
        *_fields("size", "filler"),
    ),
)
# What is said of scales lies where SCALED_DESCRIPTORS has it: kernels/hopper/scale_ring.py reads both.
SCALED_LIST_DESCRIPTORS = Record(
    "scaled_list_descriptors",
    "as list_descriptors, with scales by row and column, or by block",
    (*LIST_DESCRIPTORS.fields, *_SCALE_STRIDES, Field("more_filler", "size", 4)),
)
GROUPED_POINTERS = Record(
    "grouped_pointers",
    "a grouped product, for kernels that take pointers and strides",
    (
        *_fields("address", "a b c"),
        *_fields("stride", "a_row a_col b_group b_row b_col c_row c_col"),
        *_GROUPED_REST,
    ),
)
GROUPED_DESCRIPTORS = Record(
    "grouped_descriptors",
    "a grouped product, for kernels that take descriptors; filled up to whole 64 bytes",
    (*_fields("descriptor", "a b c"), *_GROUPED_REST),
)
SCALED_POINTERS = Record(
    "scaled_pointers",
    "as grouped_pointers, with scales by row and column, or by block",
    (*GROUPED_POINTERS.fields, *_SCALE_STRIDES),
)
SCALED_DESCRIPTORS = Record(
    "scaled_descriptors",
    "as grouped_descriptors, with scales by row and column, or by block",
    (*GROUPED_DESCRIPTORS.fields, *_SCALE_STRIDES),
)
# Of a gated epilogue, and of rows of A by an index: behind the fields of a grouped product. activation: the place in
# ACTIVATIONS, and in the upper 32 bits those of the float32 that gate and up are limited to, infinity for none.
_GATED_REST = (
    *_fields("address", "bias_up"),
    *_fields("size", "activation up_first"),
    *_fields("address", "index"),
    *_fields("size", "a_rows index_bytes"),
)
GATED_DESCRIPTORS = Record(
    "gated_descriptors",
    "as grouped_descriptors, with a gated epilogue: biases are gate's and up's; B is [2, ...]",
    (*GROUPED_DESCRIPTORS.fields, *_GATED_REST, *_fields("address", "a_address"), *_fields("stride", "a_row")),
)
GATHERED_SCALED_DESCRIPTORS = Record(
    "gathered_scaled_descriptors",
    "as gated_descriptors, of rows of A by an index, with scales by block",
    (*GATED_DESCRIPTORS.fields, *_SCALE_STRIDES),
)
QUANTIZED_DESCRIPTORS = Record(
    "quantized_descriptors",
    "as gathered_scaled_descriptors, and where scales of the output go",
    (
        *GATHERED_SCALED_DESCRIPTORS.fields,
        *_fields("address", "out_scales"),
        *_fields("stride", "out_scale_row out_scale_k"),
    ),
)
KEPT_DESCRIPTORS = Record(
    "kept_descriptors",
    "as gated_descriptors, with the pre-activation: gate's half of it and up's",
    (*GATED_DESCRIPTORS.fields, *_fields("descriptor", "kept kept_up")),
)
# The descriptors a, b and c are those of the incoming gradient, the matrix and the weighted output of the activation.
GRADIENT_DESCRIPTORS = Record(
    "gradient_descriptors",
    "as gated_descriptors, back through the activation: gate's half of z and of its gradient, and up's",
    (
        *GATED_DESCRIPTORS.fields,
        *_fields("descriptor", "z z_up dz dz_up"),
        *_fields("address", "slot weights"),
        *_fields("size", "entries weight_kind factor_bits writes_h"),
        *_fields("address", "row_sums"),  # float32 [tiles of columns, rows], or the weights' gradients
    ),
)
GATED_POINTERS = Record(
    "gated_pointers",
    "as grouped_pointers, with a gated epilogue: b and b_up are gate's and up's",
    (*GROUPED_POINTERS.fields, *_GATED_REST, *_fields("address", "b_up")),
)
# Of products with ragged K. `splits`: parts of each group's K, whose sums are matrices of their own.
_GROUPED_K_REST = (
    *_fields("address", "offs alpha_at"),
    *_fields("size", "alpha_bits splits"),  # alpha: the float32 at alpha_at, or where that is 0 the one with these bits
)
GROUPED_K_POINTERS = Record(
    "grouped_k_pointers",
    "a grouped product with ragged K, for kernels that take pointers and strides",
    (
        *_fields("address", "a b c"),
        *_fields("stride", "a_row a_col b_row b_col c_group c_row c_col"),
        *_GROUPED_K_REST,
    ),
)
GROUPED_K_DESCRIPTORS = Record(
    "grouped_k_descriptors",
    "a grouped product with ragged K, for kernels that take descriptors",
    (*_fields("descriptor", "a b c"), *_GROUPED_K_REST, *_fields("size", "accumulates")),  # 1: sums are added to c
)
GATHER_K_DESCRIPTORS = Record(
    "gather_k_descriptors",
    "as grouped_k_descriptors, where the rows of A^T or of B come by an index",
    (
        *GROUPED_K_DESCRIPTORS.fields,
        *_fields("address", "index gathered"),
        *_fields("size", "gathered_rows index_bytes"),
        *_fields("stride", "gathered_row"),
    ),
)
# Of blocks along K: scales of rows of A and of columns of B, and how many blocks there are of all groups.
_K_SCALES = (
    *_fields("address", "scale_a scale_b"),
    *_fields("stride", "scale_a_row scale_a_k scale_b_k scale_b_n"),  # 0: one scale for all
    *_fields("size", "scale_blocks"),
)
SCALED_K_POINTERS = Record(
    "scaled_k_pointers",
    "as grouped_k_pointers, with scales; ends count as the next multiple of k_alignment",
    (*GROUPED_K_POINTERS.fields, *_K_SCALES, *_fields("size", "k_alignment")),
)
SCALED_K_DESCRIPTORS = Record(
    "scaled_k_descriptors",
    "as grouped_k_descriptors, with scales",
    (*GROUPED_K_DESCRIPTORS.fields, *_K_SCALES),
)
STACK_POINTERS = Record(
    "stack_pointers",
    "a product of stacks, for kernels that take pointers and strides; counts: rows of each group that matter, or 0",
    (
        *_fields("address", "a b c"),
        *_fields("stride", "a_group a_row a_col b_group b_row b_col c_group c_row c_col"),
        *_fields("address", "counts bias"),
        *_fields("stride", "bias_row bias_col"),
        *_fields("address", "scale_a scale_b"),
        *_fields("stride", "scale_b_step"),
    ),
)
SCALED_STACK_POINTERS = Record(
    "scaled_stack_pointers",
    "as stack_pointers, with scales by row and column, or by block",
    (*STACK_POINTERS.fields, *_SCALE_STRIDES, *_fields("stride", "scale_a_group")),
)
SCALED_STACK_DESCRIPTORS = Record(
    "scaled_stack_descriptors",
    "as scaled_descriptors, of stacks",
    (*SCALED_DESCRIPTORS.fields, *_fields("stride", "scale_a_group")),
)
RECORDS = {
    record.name: record
    for record in (
        LIST_POINTERS,
        SCALED_LIST_POINTERS,
        LIST_DESCRIPTORS,
        SCALED_LIST_DESCRIPTORS,
        GROUPED_POINTERS,
        GROUPED_DESCRIPTORS,
        SCALED_POINTERS,
        SCALED_DESCRIPTORS,
        GATED_POINTERS,
        GATED_DESCRIPTORS,
        GATHERED_SCALED_DESCRIPTORS,
        QUANTIZED_DESCRIPTORS,
        KEPT_DESCRIPTORS,
        GRADIENT_DESCRIPTORS,
        GROUPED_K_POINTERS,
        GROUPED_K_DESCRIPTORS,
        GATHER_K_DESCRIPTORS,
        SCALED_K_POINTERS,
        SCALED_K_DESCRIPTORS,
        STACK_POINTERS,
        SCALED_STACK_POINTERS,
        SCALED_STACK_DESCRIPTORS,
    )
}
IN_WORDS = "_in_words"


def imported_record(name: str) -> tuple[Record, int]:
    """What a kernel means by `from ..records import name`: the record, and the units of a word that its offsets count.

    `list_pointers`: bytes, hence 8. `list_pointers_in_words`: words, hence 1. Raises KeyError for another name.
    """
    return RECORDS[name.removesuffix(IN_WORDS)], 1 if name.endswith(IN_WORDS) else 8
