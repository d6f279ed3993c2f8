"""docs/aotinductor/prototype.c: an op in torch's dispatcher from a library that links no part of torch."""

import pytest
from builder_sandbox import ROOT
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

pytest.importorskip("torch")

from processes import run_python

USE = """
    import ctypes
    register = ctypes.CDLL({library!r}).gg_prototype_register
    register.restype = ctypes.c_char_p
    assert register() == b"libtorch_cpu.so is not loaded in this process"
    import torch
    assert register() is None
    op = torch.ops.gg_prototype.ragged_rows

    @torch.library.register_fake("gg_prototype::ragged_rows")
    def _(a, b, offs):
        return a.new_empty((a.shape[0], b.shape[2]))

    a, w = torch.randn(10, 6), torch.randn(3, 4, 6)
    offs = torch.tensor([3, 3, 8], dtype=torch.int32)
    expected = torch.cat([a[:3] @ w[0].mT, a[3:8] @ w[2].mT, torch.zeros(2, 4)])
    for multiply in (op, torch.compile(lambda *given: op(*given), fullgraph=True, backend="aot_eager")):
        for _ in range(3):
            torch.testing.assert_close(multiply(a, w.mT, offs), expected)
    program = torch.export.export(type("Product", (torch.nn.Module,), {{"forward": lambda self, *given: op(*given)}})(),
                                  (a, w.mT, offs))
    torch.testing.assert_close(program.module()(a, w.mT, offs), expected)
    print("multiplied")
"""


def test_the_prototype_registers_an_op_without_linking_torch(tmp_path):
    from aot.build import native

    library = native.shared_library(
        tmp_path / "libprototype.so", [ROOT / "docs/aotinductor/prototype.c"], link_flags=["-ldl"]
    )
    with library.open("rb") as file:
        sections = [section for section in ELFFile(file).iter_sections() if isinstance(section, DynamicSection)]
        needed = [tag.needed for section in sections for tag in section.iter_tags("DT_NEEDED")]
    assert needed and not [name for name in needed if "torch" in name or "python" in name]
    assert "multiplied" in run_python(USE.format(library=str(library)), tmp_path)
