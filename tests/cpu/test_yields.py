"""The control bits that aot/build/yields.py sets: by hand, and in what `make build` made."""

import struct
import subprocess

import pytest

from aot.build.elf import read_sections
from aot.build.toolchain import tool
from aot.build.yields import EACH, LONG, LONG_OF_A_HALF, spread
from aot.build.yields import _spread as spread_code
from aot.spec.kernels import KERNELS
from aot.spec.variants import multiplied_in_halves, variants

pytestmark = pytest.mark.compiler

FFMA = 0x00000083_18D37223  # FFMA R211, R24, R131, R211
ISSUED_NEXT, STAYS, KEEPS_B = 1 << 41, 1 << 45, 2 << 58


def code(*uppers: int, opcode: int = FFMA) -> bytes:
    return b"".join(struct.pack("<QQ", opcode, upper) for upper in uppers)


def uppers(text: bytes) -> list[int]:
    return [upper for _, upper in struct.iter_unpack("<QQ", text)]


def test_each_fourth_of_a_long_run_yields_and_keeps_no_operand():
    before = ISSUED_NEXT | STAYS | KEEPS_B | 211
    after = uppers(spread_code(code(*[before] * LONG)))
    assert [upper for place, upper in enumerate(after) if place % EACH == 0] == [ISSUED_NEXT | 211] * (LONG // EACH)
    assert [upper for place, upper in enumerate(after) if place % EACH] == [before] * (LONG - LONG // EACH)


@pytest.mark.parametrize(
    ("run", "opcode"),
    [
        ([ISSUED_NEXT | STAYS] * (LONG - 1), FFMA),
        ([ISSUED_NEXT, ISSUED_NEXT | STAYS] * LONG, FFMA),  # as ptxas has them yield
        ([2 * ISSUED_NEXT | STAYS] * LONG, FFMA),  # two cycles each
        ([ISSUED_NEXT | STAYS] * LONG, FFMA ^ 1),  # of another operation
    ],
    ids=["short", "yields", "slow", "another"],
)
def test_other_runs_are_left_alone(run, opcode):
    text = code(*run, opcode=opcode)
    assert spread_code(text) == text


FMUL, LDS = FFMA ^ 3, 0x984
STAYING = ISSUED_NEXT | STAYS


def promotion(pairs: int, between: int) -> list[tuple[int, int]]:
    """As many products of scales, each with its sum behind it, and a few loads of scales in the middle."""
    found = [(FMUL, STAYING), (FFMA, STAYING)] * pairs
    return found[:pairs] + [(LDS, STAYING)] * between + found[pairs:]


def code_of(instructions: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack("<QQ", *instruction) for instruction in instructions)


def yields(text: bytes) -> list[bool]:
    return [not upper & STAYS for upper in uppers(text)]


def test_products_and_loads_of_scales_belong_to_a_run_of_sums():
    found = yields(spread_code(code_of(promotion(LONG, between=4))))
    assert not any(found[LONG : LONG + 4])  # the loads
    assert [place for place, one in enumerate(found[:LONG] + found[LONG + 4 :]) if one] == [*range(0, 2 * LONG, EACH)]


@pytest.mark.parametrize(
    "instructions",
    [
        promotion(LONG - 1, between=0),
        promotion(LONG, between=5),
        [(FMUL, STAYING)] * 2 * LONG,
        ([(FFMA, STAYING)] * 8 + [(LDS, STAYING)]) * LONG,
        [(FMUL, STAYING), (FFMA, ISSUED_NEXT)] * LONG,
    ],
    ids=["short", "parted", "products alone", "sums alone", "yields"],
)
def test_other_runs_with_products_are_left_alone(instructions):
    text = code_of(instructions)
    assert spread_code(text) == text


def disassembly(path) -> str:
    found = subprocess.run([tool("nvdisasm"), "-c", path], check=True, capture_output=True, text=True)
    return found.stdout.replace(".reuse", "")


def text_of(image: bytes) -> bytes:
    return next(content for name, content in read_sections(image) if name.startswith(".text."))


def without_yields(text: bytes) -> bytes:
    """As ptxas made it: no FFMA, FADD or FMUL of a cycle yields."""
    words = []
    for low, upper in struct.iter_unpack("<QQ", text):
        runs = low & 0xFFF in (0x223, 0x221, 0x220) and upper >> 41 & 15 == 1
        words.append(struct.pack("<QQ", low, upper | STAYS if runs else upper))
    return b"".join(words)


def of_a_batch(built) -> list[str]:
    return [name for name, one in built.items() if one["sm"] == 90 and "x192x128" in name and "scales" in name]


def in_halves(built) -> list[str]:
    found = variants([90], [name for name, kernel in KERNELS.items() if kernel.scales])
    return [variant.name for variant in found if multiplied_in_halves(variant) and variant.name in built]


def test_nothing_is_computed_otherwise(built, generated, tmp_path):
    """Main loops in PTX, with and without the bits, as nvdisasm reads them."""
    names = [*of_a_batch(built), *in_halves(built)]
    assert {built[name]["kernel"] for name in names} == {
        "hopper_ragged_block_scales", "hopper_ragged_row_scales", "hopper_ragged_k_block_scales",
        "hopper_gather_block_scales", "hopper_gather_quantized", "hopper_stack_block_scales", "hopper_stack_row_scales",
        "hopper_block_scales", "hopper_row_scales",
    }  # fmt: skip
    for name in names:
        image = (generated / f"images/{name}.cubin").read_bytes()
        text = text_of(image)
        before = without_yields(text)
        changed = sum(one != other for one, other in zip(uppers(before), uppers(text)))
        assert changed >= 4 * 96 // EACH - 8, f"{name}: promotions of two groups, in the loop and behind it"
        (tmp_path / "before.cubin").write_bytes(image.replace(text, before))
        assert disassembly(tmp_path / "before.cubin") == disassembly(generated / f"images/{name}.cubin")


def test_no_promotion_of_the_wheel_keeps_the_register_file(built, generated):
    for name in (name for name, entry in built.items() if entry["sm"] == 90):
        image = (generated / f"images/{name}.cubin").read_bytes()
        assert spread(image) == image, name
    halves = in_halves(built)
    assert halves
    for name in halves:
        image = (generated / f"images/{name}.cubin").read_bytes()
        assert spread(image, LONG_OF_A_HALF) == image, name


def test_shorter_runs_yield_where_a_half_is_promoted_at_a_time():
    text = code(*[STAYING] * LONG_OF_A_HALF)
    assert spread_code(text) == text
    assert sum(yields(spread_code(text, LONG_OF_A_HALF))) == -(-LONG_OF_A_HALF // EACH)
    short = code(*[STAYING] * (LONG_OF_A_HALF - 1))
    assert spread_code(short, LONG_OF_A_HALF) == short
