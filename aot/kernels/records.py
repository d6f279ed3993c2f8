"""The records of aot/spec/records.py for kernels: `list_pointers.m` is the offset of M in bytes, as a constexpr.

The compiler lets a kernel read a module's constexprs, and of other Python objects none: hence the modules.
"""

from types import ModuleType

import triton.language as tl

from ..spec.records import GROUPED_DESCRIPTORS, GROUPED_POINTERS, LIST_DESCRIPTORS, LIST_POINTERS, Record


def _offsets(record: Record, unit: int) -> ModuleType:
    """Each field's offset in units of a word's eighth: 8 for bytes, 1 for words."""
    module = ModuleType(record.name)
    for name, word in record.word_offsets().items():
        setattr(module, name, tl.constexpr(word * unit))
    module.size = tl.constexpr(record.words * unit)
    return module


list_pointers = _offsets(LIST_POINTERS, 8)
list_descriptors = _offsets(LIST_DESCRIPTORS, 8)
grouped_descriptors = _offsets(GROUPED_DESCRIPTORS, 8)
grouped_words = _offsets(GROUPED_POINTERS, 1)  # words: this record is always a tuple of parameters
