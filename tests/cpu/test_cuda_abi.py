"""csrc/abi/cuda_abi.h and the functions of csrc/driver/driver.hpp against NVIDIA's cuda.h, which Triton's wheel has.

One source is compiled twice, with ours and with theirs, and tells values, sizes, offsets and signatures.
"""

import ctypes
import re
from dataclasses import dataclass, field

import pytest
from builder_sandbox import ROOT

from aot.build import native
from aot.build.toolchain import triton_folder

ABI = ROOT / "csrc/abi/cuda_abi.h"
DRIVER = ROOT / "csrc/driver/driver.hpp"
OURS = '#include "driver/driver.hpp"\nusing gg::Driver;\n'
# Their names are macros for the newest version of a function; the driver exports, and we ask for, each by its own.
THEIRS = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"

# `shape` is what a caller's machine code depends on. Enums are integers; const says nothing; structs behind pointers
# are not looked into.
PROBE = """
#include <stddef.h>
#include <stdint.h>
#include <string>
#include <type_traits>
{include}
template <class T> struct Signature;
template <class T> std::string shape() {{
  using Plain = std::remove_cv_t<std::remove_all_extents_t<T>>;
  constexpr bool integer = std::is_integral_v<Plain> || std::is_enum_v<Plain>;
  if constexpr (std::is_void_v<Plain>) return "void";
  else if constexpr (std::is_pointer_v<Plain>) return shape<std::remove_pointer_t<Plain>>() + "*";
  else if constexpr (std::is_function_v<Plain>) return Signature<Plain>::text();
  else if constexpr (integer) return "integer" + std::to_string(8 * sizeof(Plain));
  else if constexpr (std::is_floating_point_v<Plain>) return "float" + std::to_string(8 * sizeof(Plain));
  else return "struct";
}}
template <class Result, class... Arguments> struct Signature<Result(Arguments...)> {{
  static std::string text() {{ return shape<Result>() + " (" + ((shape<Arguments>() + ", ") + ...) + ")"; }}
}};
extern "C" const char* facts() {{
  static std::string text;
  const auto tell = [](std::string name, std::string value) {{ text += name + "=" + value + "\\n"; }};
{statements}
  return text.c_str();
}}
"""


@dataclass
class Declared:
    """What a header declares, by kind."""

    constants: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    records: dict[str, list[str]] = field(default_factory=dict)  # name -> fields
    rest: str = ""  # what was not understood


def declared(text: str) -> Declared:
    found = Declared()

    def enumerators(match):
        found.constants += re.findall(r"(\w+)\s*=", match[1])
        return ""

    def record(match):
        found.records[match[1]] = re.findall(r"(\w+)(?:\[\d+\])?\s*[,;]", match[2])
        return ""

    def macro(match):
        found.constants.append(match[1])
        return ""

    def plain(match):
        found.types.append(match[1])
        return ""

    for pattern, read in (
        (r"/\*.*?\*/", ""),
        (r"^#(?:include .*|ifndef GG_CUDA_ABI_H|define GG_CUDA_ABI_H|endif)$", ""),
        (r"^#define (\w+) .*$", macro),
        (r"\benum \{(.*?)\};", enumerators),
        (r"\btypedef (?:struct|union) (\w+) \{(.*?)\} \1;", record),
        (r"\btypedef [^;{]*?\(\*(\w+)\)\([^;{]*?\);", plain),
        (r"\btypedef [^;{()]*?(\w+);", plain),
    ):
        text = re.sub(pattern, read, text, flags=re.DOTALL if "#" not in pattern else re.MULTILINE)
    found.rest = text.strip()
    return found


HEADER = declared(ABI.read_text())
FUNCTIONS = re.findall(r"CUresult \(\*(cu\w+)\)\(", DRIVER.read_text())


def statements(signature: str) -> str:
    """Of the probe; `signature` is how the type of a driver's function is written."""
    lines = [f'tell("{name}", std::to_string((intptr_t){name}));' for name in HEADER.constants]
    lines += [f'tell("{name}", shape<{name}>());' for name in HEADER.types if not name.startswith("gg_")]
    for name, fields in HEADER.records.items():
        lines.append(f'tell("{name}", std::to_string(sizeof({name})) + " on " + std::to_string(alignof({name})));')
        for one in fields:
            member = f"{name}::{one}"
            place = f'std::to_string(offsetof({name}, {one})) + " " + std::to_string(sizeof({member}))'
            kind = '"padding"' if one == "pad" else f"shape<decltype({member})>()"
            lines.append(f'tell("{name}.{one}", {place} + " " + {kind});')
    for name in [*FUNCTIONS, "cuLaunchKernelEx"]:
        lines.append(f'tell("{name}()", shape<{signature.format(name)}>());')
    return "\n".join(f"  {line}" for line in lines)


def facts(folder, include: str, signature: str) -> dict[str, str]:
    folder.mkdir()
    source, library = folder / "probe.cpp", folder / "probe.so"
    source.write_text(PROBE.format(include=include, statements=statements(signature)))
    cuda = triton_folder() / "backends/nvidia/include"
    native.shared_library(library, [source], include=[ROOT / "csrc", ROOT / "build/aot"], system_include=[cuda])
    probe = ctypes.CDLL(str(library))
    probe.facts.restype = ctypes.c_char_p
    return dict(line.split("=") for line in probe.facts().decode().splitlines())


@pytest.fixture(scope="module")
def ours(tmp_path_factory, generated):
    return facts(tmp_path_factory.mktemp("abi") / "ours", OURS, "std::remove_pointer_t<decltype(Driver::{})>")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, generated):
    return facts(tmp_path_factory.mktemp("abi") / "theirs", THEIRS, "decltype({})")


def fits(mine: str, real: str) -> bool:
    """Equal, but for what we pass as void* and NVIDIA has a struct for."""
    pairs = list(zip(parts(mine), parts(real)))
    same_count = len(parts(mine)) == len(parts(real))
    return same_count and all(one == other or (one == "void*" and other.endswith("*")) for one, other in pairs)


def parts(signature: str) -> list[str]:
    result, _, arguments = signature.removesuffix(", )").partition(" (")
    return [result, *arguments.split(", ")]


def test_every_declaration_is_understood():
    assert HEADER.rest == "", "this test reads less of cuda_abi.h than there is"
    assert len(HEADER.constants) > 40 and len(HEADER.types) > 10 and len(HEADER.records) == 3


@pytest.mark.compiler
def test_every_function_of_the_driver_is_compared(ours):
    text = DRIVER.read_text()
    struct = re.sub(r"//.*", "", text[text.index("struct Driver {") : text.index("int version;")])
    assert struct.count(";") == len(FUNCTIONS) + 1  # cuLaunchKernelEx, by gg_cuLaunchKernelEx
    assert sum(name.endswith("()") for name in ours) == len(FUNCTIONS) + 1


@pytest.mark.compiler
def test_constants_sizes_offsets_and_types_are_those_of_cuda(ours, theirs):
    different = {
        name: (ours[name], theirs[name]) for name in ours if not name.endswith("()") and ours[name] != theirs[name]
    }
    assert different == {}, "cuda_abi.h has the first, NVIDIA's cuda.h the second"


@pytest.mark.compiler
def test_functions_take_and_return_what_those_of_cuda_do(ours, theirs):
    names = [name for name in ours if name.endswith("()")]
    different = {name: (ours[name], theirs[name]) for name in names if not fits(ours[name], theirs[name])}
    assert different == {}, "driver.hpp has the first, NVIDIA's cuda.h the second"
