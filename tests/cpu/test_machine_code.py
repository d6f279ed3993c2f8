"""Instructions that correctness rests on, and no result on one GPU can show to be there."""

import re
import subprocess

import pytest

from aot.build.toolchain import tool

pytestmark = pytest.mark.compiler


def disassembly(path) -> str:
    return subprocess.run([tool("nvdisasm"), "-c", path], check=True, capture_output=True, text=True).stdout


def opcodes(path) -> list[str]:
    """The machine code's instructions in order, predicates left out: "UTMACCTL.IV"."""
    text = disassembly(path)
    lines = (line.partition("*/")[2].split() for line in text.splitlines() if "/*" in line and ";" in line)
    return [words[1] if words[0].startswith("@") else words[0] for words in lines if words]


def of_kernel(built, kernel: str) -> list[str]:
    return sorted(name for name in built if name.startswith(f"{kernel}_sm90"))


def test_hopper_reads_each_descriptor_in_memory_behind_a_fence(built, generated):
    """A, B and C of a CTA's first group, and those of each group after it: `UTMACCTL.IV` is the fence."""
    names = of_kernel(built, "hopper")
    assert names
    for name in names:
        fences = opcodes(generated / f"images/{name}.cubin").count("UTMACCTL.IV")
        assert fences == 6, f"{name} has {fences} fences"


def test_tma_reads_the_descriptors_that_it_makes_behind_a_fence(built, generated):
    for name in of_kernel(built, "tma"):
        assert opcodes(generated / f"images/{name}.cubin").count("UTMACCTL.IV") >= 2, name


def test_descriptors_in_parameters_need_no_fence(built, generated):
    names = of_kernel(built, "hopper_ragged")
    assert names
    assert all("UTMACCTL.IV" not in opcodes(generated / f"images/{name}.cubin") for name in names)


def offsets(text: str, opcode: str) -> set[int]:
    """What the instruction's addresses add to a register: `STS [R6+0x38000]` -> 0x38000."""
    found = re.findall(rf" {opcode}(?:\.\w+)* (?:URZ, )?\[\w+(?:\+(0x[0-9a-f]+))?\]", text)
    return {int(offset or "0", 16) for offset in found}


@pytest.mark.parametrize("kernel", ["hopper", "hopper_ragged"])
def test_nothing_is_stored_where_a_barrier_was(built, generated, kernel):
    """PTX allows it behind mbarrier.inval alone. It showed where two processes shared a GPU: after a context switch
    the barrier was back in the place of what had been stored. A sum over a CTA's warps is 4 bytes a warp, 8 warps."""
    names = of_kernel(built, kernel)
    assert names
    for name in names:
        text = disassembly(generated / f"images/{name}.cubin")
        assert "SYNCS.CCTL" not in text
        barriers, stores = offsets(text, "SYNCS.EXCH"), offsets(text, "STS") | offsets(text, "STSM")
        assert len(barriers) >= 4 and stores, name
        hit = [hex(store) for store in stores if any(store - 8 < barrier < store + 32 for barrier in barriers)]
        assert not hit, f"{name} stores to {hit}, barriers are at {sorted(map(hex, barriers))}"
