"""What is asked of e4m3 products with scales, of made-up figures; and the rows that they are checked against."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks import fp8_calls, fp8_scales  # noqa: E402
from benchmarks.fp8_calls import BLOCK, CONTIGUOUS, MASKED, ROW, TORCH, TORCH_FAST  # noqa: E402

US = {BLOCK: 1000.0, ROW: 1100.0, CONTIGUOUS: 1040.0, MASKED: 990.0, TORCH: 1250.0, TORCH_FAST: 1090.0}


def row(kind, **more):
    shape = fp8_scales.SHAPES["Qwen3-30B gate-up"]
    about = {"row": "Qwen3-30B gate-up", "kind": kind, "flop": shape.flop, "bytes": shape.bytes, "failed": {}}
    return about | {"us": US, "hot_us": US, "error": dict.fromkeys(US, 1.7e-3), "variant": {}} | more


def test_block_scales_are_held_to_the_better_of_deep_gemms_layouts_and_row_scales_to_both_of_torchs():
    met = {must.name: (round(must.figure, 3), must.bound, must.met) for must in fp8_scales.musts(row("ragged"))}
    once = {
        "block × DeepGEMM": (0.99, 1.0, False),
        "row × torch row": (1.136, 1.1, True),
        "row × torch row, fast sums": (0.991, 1.0, False),
    }
    assert met == once | {f"hot {name}": figures for name, figures in once.items()}


def test_decoding_is_held_to_a_copy_of_as_many_bytes():
    met = {
        must.name: (round(must.figure, 3), must.bound, must.met)
        for must in fp8_scales.musts(row("decode", copy_us=981.0))
    }
    assert met["block, of a copy"] == (0.981, 0.98, True)
    assert met["block × DeepGEMM"] == (0.99, 1.07, False)
    assert not any(name.startswith("row") for name in met)


def test_what_failed_is_told_and_asks_for_nothing():
    failed = {"row": "Qwen3-30B down", "kind": "ragged", "failed": {BLOCK: "no memory"}}
    assert fp8_scales.musts(failed) == [] and fp8_scales.lost(failed)
    assert f"{BLOCK} FAILED: no memory" in fp8_scales.table([failed])
    assert not fp8_scales.lost(row("ragged") | {"failed": {CONTIGUOUS: "not built"}})
    told = fp8_scales.summary({"rows": [failed, row("ragged")], "dense": {"fast sums": 1520.0}})
    assert "fast sums 1520" in told and "2 of 6 musts met" in told


def test_rows_are_expected_with_their_scales():
    shape = fp8_scales.RaggedShape("ragged", (2, 0, 3), 144, 256, "e4m3")
    x, w = torch.randn(5, 256).to(torch.float8_e4m3fn), torch.randn(3, 144, 256).to(torch.float8_e4m3fn)
    product = object.__new__(fp8_calls.Product)
    product.shape, product.ends = shape, [2, 2, 5]
    product.copies = [fp8_calls.RaggedCopy(x, w, torch.empty(5, 144), torch.tensor([2, 2, 5]), shape)]
    of_a, of_b = torch.rand(5, 2), torch.rand(3, 2, 2)
    by_row, one = (torch.rand(5), torch.rand(3, 144)), (torch.rand(1), torch.rand(3))
    product.scales = fp8_calls.Scales(row=by_row, block=(of_a, of_b), one=one)
    for row_index, group in ((1, 0), (4, 2)):
        a, b = x[row_index].double(), w[group].double()
        blocks = a * of_a[row_index].double().repeat_interleave(128)
        weights = b * of_b[group].double().repeat_interleave(128, 0)[:144].repeat_interleave(128, 1)
        assert torch.equal(product.expected(BLOCK, row_index), weights @ blocks)
        torch.testing.assert_close(product.expected(ROW, row_index), (b @ a) * by_row[0][row_index] * by_row[1][group],
                                   check_dtype=False)  # fmt: skip
        torch.testing.assert_close(product.expected(fp8_calls.ONE, row_index), (b @ a) * one[0] * one[1][group],
                                   check_dtype=False)  # fmt: skip
