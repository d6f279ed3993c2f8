"""Instructions that correctness rests on, and no result on one GPU can show to be there."""

import functools
import re
import subprocess

import pytest

from aot.build.toolchain import tool

pytestmark = pytest.mark.compiler


@functools.cache
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


def test_what_may_overlap_ends_behind_the_launch_ahead_which_lets_it_begin(built, generated):
    """`ACQBULK` waits for the launch ahead, on each way out and behind all that is written; `PREEXIT` lets the next one
    begin."""
    overlapping = [name for name, entry in built.items() if entry["launch"]["programmatic"]]
    assert overlapping == of_kernel(built, "quantize") != []
    for name in overlapping:
        found = opcodes(generated / f"images/{name}.cubin")
        waits = [place for place, one in enumerate(found) if one == "ACQBULK"]
        writes_or_ends = [place for place, one in enumerate(found) if one == "EXIT" or one.startswith("STG")]
        assert len(waits) == 1 and writes_or_ends[-1] == found.index("EXIT") > waits[0] > writes_or_ends[-2], name
    for name in of_kernel(built, "route_place"):
        assert opcodes(generated / f"images/{name}.cubin").count("PREEXIT") == 1, name


def of_entry(built, symbol: str) -> list[str]:
    """Artifacts of every kernel that has this entry point."""
    return sorted(name for name, entry in built.items() if entry["symbol"] == symbol and entry["sm"] == 90)


def of_grouped(built) -> list[str]:
    entries = ("hopper_ragged", "hopper_ragged_fitted", "hopper_kept", "hopper_dgated", "hopper_scaled")
    return [name for entry in entries for name in of_entry(built, entry)]


def gathering(built) -> list[str]:
    return [name for name in of_grouped(built) + of_entry(built, "hopper_ragged_k") if built[name]["source"] != "rows"]


def test_descriptors_in_parameters_need_no_fence(built, generated):
    more = ("hopper_stack", "hopper_scaled_stack", "hopper_ragged_k", "hopper_ragged_k_block_scales")
    names = of_grouped(built) + [name for entry in more for name in of_entry(built, entry)]
    assert {built[name]["kernel"] for name in names} == {
        "hopper_ragged", "hopper_ragged_fitted", "hopper_gated", "hopper_gated_pairs", "hopper_gather",
        "hopper_gather_gated", "hopper_gather_gated_pairs", "hopper_gated_kept", "hopper_gather_gated_kept",
        "hopper_gather_dgated", "hopper_stack", "hopper_stack_gated", "hopper_stack_gated_pairs",
        "hopper_ragged_row_scales", "hopper_ragged_block_scales", "hopper_stack_row_scales",
        "hopper_stack_block_scales", "hopper_ragged_k", "hopper_gather_k", "hopper_gather_k_b",
        "hopper_ragged_k_block_scales", "hopper_gather_block_scales", "hopper_gather_quantized",
        "hopper_ragged_tensor_scales", "hopper_stack_tensor_scales",
    }  # fmt: skip
    assert all("UTMACCTL.IV" not in opcodes(generated / f"images/{name}.cubin") for name in names)


def products_without_a_fence(instructions: list[str]) -> int:
    """Products (HGMMA, QGMMA) with no fence between them and the last wait for a barrier."""
    is_fenced, missing = False, 0
    for one in instructions:
        if one.startswith("SYNCS.PHASECHK"):
            is_fenced = False
        is_fenced |= one.startswith("FENCE.VIEW.ASYNC")
        missing += one.startswith(("HGMMA", "QGMMA")) and not is_fenced
    return missing


def test_rows_that_threads_copied_are_multiplied_behind_a_fence(built, generated):
    """cp.async writes shared memory through one proxy and wgmma reads it through another: between the wait for the
    copies and the products stands fence.proxy.async (FENCE.VIEW.ASYNC). A thread arrives when its copies are done."""
    names = gathering(built)
    assert {built[name]["epilogue"] for name in names} == {
        "linear", "gated", "gated_pairs", "gated_kept", "gated_gradient", "gated_quantized",
    }  # fmt: skip
    assert {built[name]["source"] for name in names} == {"indexed", "indexed_b"}
    for name in names:
        found = opcodes(generated / f"images/{name}.cubin")
        assert found.count("ARRIVES.LDGSTSBAR.64.ARVCNT") >= 1 and "LDGSTS.E.BYPASS.128" in found, name
        assert products_without_a_fence(found) == 0, name


def test_the_search_for_fences_finds_that_one_is_missing():
    wait, fence, product = "SYNCS.PHASECHK.TRANS64.TRYWAIT", "FENCE.VIEW.ASYNC.S", "HGMMA.64x128x16.F32.BF16"
    assert products_without_a_fence([wait, fence, product, product, wait, fence, product]) == 0
    assert products_without_a_fence([wait, fence, product, wait, product, product]) == 2


def releases_without_a_fence(instructions: list[str]) -> int:
    """Arrivals on barriers (SYNCS.ARRIVE) with no fence between them and the loads of a subtile, which are many."""
    loads, missing = 0, 0
    for one in instructions:
        loads += one == "LDS.64"
        if one.startswith("FENCE.VIEW.ASYNC"):
            loads = 0
        missing += one.startswith("SYNCS.ARRIVE") and loads >= 8
    return missing


def test_what_tma_loaded_is_released_behind_a_fence(built, generated):
    """Outputs that sums are added to (hopper/addends.py): TMA fills their slot again through another proxy, and without
    fence.proxy.async an arrive orders no loads before it."""
    loading = of_entry(built, "hopper_ragged_k_block_scales") + of_kernel(built, "hopper_ragged_k")
    names = [name for name in loading if "_fp32_" in name and ("_128x192x" in name or "_128x256x64_" in name)]
    assert len(names) == 4
    for name in names:
        found = opcodes(generated / f"images/{name}.cubin")
        assert found.count("LDS.64") >= 2 * 48 and releases_without_a_fence(found) == 0, name


def test_the_search_for_releases_finds_that_a_fence_is_missing():
    loads, fence, arrive = ["LDS.64"] * 8, "FENCE.VIEW.ASYNC.S", "SYNCS.ARRIVE.TRANS64.A1T0"
    assert releases_without_a_fence([*loads, fence, arrive, *loads, "STS.64", fence, arrive]) == 0
    assert releases_without_a_fence([*loads, arrive, *loads, "STS.64", arrive, fence, arrive]) == 2


def offsets(text: str, opcode: str) -> set[int]:
    """What the instruction's addresses add to a register: `STS [R6+0x38000]` -> 0x38000."""
    found = re.findall(rf" {opcode}(?:\.\w+)* (?:URZ, )?\[\w+(?:\+(0x[0-9a-f]+))?\]", text)
    return {int(offset or "0", 16) for offset in found}


@pytest.mark.parametrize(
    "kernel",
    [
        "hopper",
        "hopper_ragged",
        "hopper_ragged_fitted",
        "hopper_kept",
        "hopper_dgated",
        "hopper_ragged_k",
        "hopper_ragged_k_block_scales",
        "hopper_stack",
        "hopper_scaled",
        "hopper_scaled_stack",
    ],
)
def test_nothing_is_stored_where_a_barrier_was(built, generated, kernel):
    """PTX allows it behind mbarrier.inval alone. It showed where two processes shared a GPU: after a context switch
    the barrier was back in the place of what had been stored. A sum over a CTA's warps is 4 bytes a warp, 8 warps."""
    names = of_entry(built, kernel)
    assert names
    for name in names:
        text = disassembly(generated / f"images/{name}.cubin")
        assert "SYNCS.CCTL" not in text
        barriers, stores = offsets(text, "SYNCS.EXCH"), offsets(text, "STS") | offsets(text, "STSM")
        assert len(barriers) >= 4 and stores, name
        hit = [hex(store) for store in stores if any(store - 8 < barrier < store + 32 for barrier in barriers)]
        assert not hit, f"{name} stores to {hit}, barriers are at {sorted(map(hex, barriers))}"


def serialized_products(text: str) -> int:
    """Products that add to sums right behind a wait for all products before: ptxas puts such waits into a batch where
    it cannot prove that nobody reads the sums meanwhile, and says so nowhere but in its log (C7510 to C7514)."""
    waited, found = False, 0
    for line in text.splitlines():
        told = re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@\S+ )?([A-Z0-9.]+) ?(.*)", line)
        if line.startswith(".L_x_") or (told and told[1] == "BRA"):
            waited = False  # another tile's or k-tile's
        elif told and told[1].startswith("WARPGROUP.DEPBAR"):
            waited = "gsb0, 0x0" in told[2]
        elif told and told[1].startswith(("HGMMA", "QGMMA")):
            found += waited and "RZ" not in told[2].split(",")[2]
            waited = False
    return found


@pytest.mark.parametrize("entry", ["hopper", "hopper_ragged", "hopper_ragged_k", "hopper_stack", "hopper_scaled",
                                   "hopper_scaled_stack", "hopper_ragged_k_block_scales", "hopper_dgated",
                                   "hopper_kept", "hopper_ragged_fitted"])  # fmt: skip
def test_the_products_of_a_k_tile_are_in_flight_together(built, generated, entry):
    names = of_entry(built, entry)
    assert names
    for name in names:
        assert serialized_products(disassembly(generated / f"images/{name}.cubin")) == 0, name


def test_the_search_for_serialized_products_finds_them():
    first, wait = (
        "/*2a40*/ QGMMA.64x96x32.F32.E4M3.E4M3 R72, gdesc[UR32], RZ, !UPT{} ;",
        "/*2a50*/ WARPGROUP.DEPBAR.LE gsb0, {} ;",
    )
    more = "/*2a60*/ QGMMA.64x96x32.F32.E4M3.E4M3 R72, gdesc[UR20], R72{} ;"
    together = [first.format(""), more.format(", gsb0"), wait.format("0x0"), ".L_x_1:", first.format(", gsb0")]
    assert serialized_products("\n".join(together)) == 0
    one_by_one = [
        first.format(", gsb0"),
        wait.format("0x0"),
        more.format(", gsb0"),
        wait.format("0x0"),
        more.format(""),
    ]
    assert serialized_products("\n".join(one_by_one)) == 2
    assert serialized_products("\n".join([first.format(", gsb0"), wait.format("0x1"), more.format("")])) == 0
