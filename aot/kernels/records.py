"""The records of aot/spec/records.py for kernels.

`from .records import list_pointers`: then `list_pointers.m` is the offset of M in bytes and `list_pointers.size` the
bytes of a record, as constexprs. `list_pointers_in_words` counts words. The compiler lets a kernel read a module's
constexprs, and of other Python objects none: hence a module for each record.
"""

import functools
from types import ModuleType

import triton.language as tl

from ..spec.records import imported_record


@functools.cache
def __getattr__(name: str) -> ModuleType:
    try:
        record, unit = imported_record(name)
    except KeyError:
        raise AttributeError(f"aot/spec/records.py has no record for the name {name}") from None
    module = ModuleType(name)
    for field, word in record.word_offsets().items():
        setattr(module, field, tl.constexpr(word * unit))
    module.size = tl.constexpr(record.words * unit)
    return module
