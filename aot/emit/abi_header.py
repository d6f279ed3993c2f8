"""build/aot/abi.h: what aot/spec/abi.py says, in C."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template

from ..spec.abi import (
    ACTIVATIONS,
    ADDRESSINGS,
    ARGUMENTS,
    DTYPES,
    EPILOGUES,
    EXTENTS,
    FORMS,
    GATE_ORDERS,
    LAYOUTS,
    SCALINGS,
    SOURCES,
)
from ..spec.records import DESCRIPTOR_WORDS, RECORDS, Field, Record

TEMPLATE = Path(__file__).with_name("templates") / "abi.h"
ARGUMENT_TYPES = {"i64": "uint64_t", "i32": "int32_t", "pointer": "CUdeviceptr"}
FIELD_TYPES = {"address": "uint64_t", "stride": "int64_t", "size": "int64_t", "descriptor": "gg_descriptor"}


def abi_header() -> str:
    return Template(TEMPLATE.read_text()).substitute(
        dtypes=_enum("dtype", DTYPES, has_any=True),
        dtype_facts="\n".join(
            f'    {{"{d.framework}", {d.bytes}, {d.dlpack_code}, CU_TENSOR_MAP_DATA_TYPE_{d.tensor_map}, '
            f"{enumerator(d.of_b or d.name)}}},"
            for d in DTYPES.values()
        ),
        layouts=_enum("layout", LAYOUTS, has_any=True),
        forms=_enum("form", FORMS),
        extents=_enum("extents", EXTENTS),
        addressings=_enum("addressing", ADDRESSINGS),
        epilogues=_enum("epilogue", EPILOGUES),
        activations=_enum("activation", ACTIVATIONS, prefix="ACTIVATION_"),
        gate_orders=_enum("gate_order", GATE_ORDERS),
        sources=_enum("source", SOURCES, prefix="SOURCE_"),
        scalings=_enum("scaling", SCALINGS, prefix="SCALING_"),
        arguments="\n".join(
            f"  {ARGUMENT_TYPES[argument.type]} {argument.name}; /* {argument.meaning} */"
            for argument in ARGUMENTS.values()
        ),
        descriptor_words=DESCRIPTOR_WORDS,
        records="\n\n".join(_record(record) for record in RECORDS.values()),
        record_words=", ".join(f"GG_{record.name.upper()}_WORDS = {record.words}" for record in RECORDS.values()),
    )


def enumerator(value: str, prefix: str = "") -> str:
    return f"GG_{prefix}{value.upper()}"


def _enum(name: str, values: Iterable[str], has_any: bool = False, prefix: str = "") -> str:
    """The enum gg_NAME, GG_NAME_COUNT, and gg_NAME_names in the same order."""
    values = tuple(values)
    members = [f"  {enumerator(value, prefix)} = {number}," for number, value in enumerate(values)]
    members += [f"  GG_ANY_{name.upper()} = 255,"] if has_any else []
    names = ", ".join(f'"{value}"' for value in values)
    return "\n".join(
        [
            f"typedef enum gg_{name} {{",
            *members,
            f"}} gg_{name};",
            f"enum {{ GG_{name.upper()}_COUNT = {len(values)} }};",
            f"static const char *const gg_{name}_names[] = {{{names}}};",
        ]
    )


def _record(record: Record) -> str:
    return "\n".join(
        [
            f"/* {record.about[0].upper()}{record.about[1:]}. */",
            f"typedef struct gg_{record.name} {{",
            *_fields(record.fields),
            f"}} gg_{record.name};",
        ]
    )


def _fields(fields: Iterable[Field]) -> Iterator[str]:
    for field in fields:
        count = f"[{field.count}]" if field.count > 1 else ""
        yield f"  {FIELD_TYPES[field.kind]} {field.name}{count};"
