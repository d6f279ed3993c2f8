"""aot/build/native.py, the compiler of the extension and of these tests: what it takes, refuses and forgets."""

import ctypes
import os
import subprocess

import pytest

from aot.build import native

THROWING = """
#include <stdexcept>
#include <string>
extern "C" int caught(int length) {
  try {
    throw std::runtime_error(std::string(length, 'x'));
  } catch (const std::exception& error) {
    return static_cast<int>(std::string(error.what()).size());
  }
}
"""


def test_what_assembly_brings_is_read_each_time(tmp_path):
    """zig's cache would give the object of the first image for the second: it does not know of .incbin."""
    source, image, library = tmp_path / "images.S", tmp_path / "image", tmp_path / "images.so"
    source.write_text('.section .rodata\n.globl image\nimage:\n.incbin "image"\n')
    os.utime(source, (0, 0))
    for content in (b"the first image", b"the other image"):
        image.write_bytes(content)
        native.shared_library(library, [source], include=[tmp_path])
        assert content in library.read_bytes()


def test_a_header_that_changes_is_read_again(tmp_path):
    source, header = tmp_path / "source.c", tmp_path / "value.h"
    source.write_text('#include "value.h"\nint value(void) { return VALUE; }\n')
    for value in (1, 22):
        header.write_text(f"#define VALUE {value}\n")
        library = native.shared_library(tmp_path / f"{value}.so", [source], include=[tmp_path])
        assert ctypes.CDLL(str(library)).value() == value


def test_exceptions_cross_frames_by_the_unwinder_of_glibc(tmp_path):
    (tmp_path / "throwing.cpp").write_text(THROWING)
    library = native.shared_library(tmp_path / "throwing.so", [tmp_path / "throwing.cpp"])
    assert ctypes.CDLL(str(library)).caught(1000) == 1000


def test_a_warning_is_an_error_but_in_headers_of_others(tmp_path):
    (tmp_path / "other.h").write_text("static inline int other(void) { int unused; return 1; }\n")
    source = tmp_path / "source.c"
    source.write_text("#include <other.h>\nint one(void) { return other(); }\n")
    native.shared_library(tmp_path / "one.so", [source], system_include=[tmp_path])
    with pytest.raises(subprocess.CalledProcessError):
        native.shared_library(tmp_path / "one.so", [source], include=[tmp_path])


def test_variables_of_the_environment_have_no_say(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/stray.h").write_text("#define STRAY 1\n")
    source = tmp_path / "source.c"
    source.write_text("#if __has_include(<stray.h>)\n#error stray\n#endif\nint one(void) { return 1; }\n")
    for name in ("CPATH", "C_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("CFLAGS", "-DSTRAY")
    native.shared_library(tmp_path / "one.so", [source])


def test_another_machine_gets_its_own_code(tmp_path):
    source = tmp_path / "source.c"
    source.write_text("int one(void) { return 1; }\n")
    for machine, number in {"x86_64": 62, "aarch64": 183}.items():
        library = native.shared_library(tmp_path / f"{machine}.so", [source], machine=machine)
        assert int.from_bytes(library.read_bytes()[18:20], "little") == number
    with pytest.raises(native.ToolchainError, match="riscv64.*aarch64, x86_64"):
        native.shared_library(tmp_path / "no.so", [source], machine="riscv64")
