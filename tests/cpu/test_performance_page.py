"""README's summary of figures spans what the tables of docs/performance.md say, row by row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Row = dict[str, str]

TRAINED = "layer|`fused_experts`, µs|torch, backward of gathers"
# By what a row of the summary is about: how the head of its table begins, and the columns of its figures, rested and
# hot; of several the least counts. One column for both holds "rested, hot".
TABLES = {
    "8 layers of experts, bf16": ("layer|tokens × k, E|H, I|up", "× torch", "hot × torch"),
    "8 layers of experts, bf16, H100, 2026-11-28": ("layer|`fused_experts`, µs|× torch|vLLM", "× vLLM", "× vLLM"),
    "5 layers, forward and backward, H100, 2026-11-28": (TRAINED, "× torch", "× torch"),
    "the same 5 layers": (TRAINED, "× ScatterMoE", "× ScatterMoE"),
    "13 products by ragged rows, bf16, prefill": ("layer|E|rows|an expert|µs|TFLOP/s", "× best", ""),
    "5 products in decoding, bf16": ("layer|E|rows|an expert|µs|TB/s", "× best", ""),
    "11 products of few experts with some hundred rows, bf16, nine of them on 2026-11-29": (
        "experts x rows",
        "loop",
        "loop, hot",
    ),
    "6 weight gradients, bf16": ("weight gradient", "torch | cuBLAS loop", "torch | cuBLAS loop"),
    "8 products in e4m3, scales of blocks, 2026-11-28 and 30": ("product|block, µs", "DeepGEMM", "DeepGEMM"),
    "3 products in decoding, e4m3, scales of blocks, 2026-11-30": (
        "product in decoding|block, µs",
        "DeepGEMM masked",
        "DeepGEMM masked",
    ),
    "8 products in e4m3, scales of rows, 2026-11-28": ("product|block, µs", "torch, exact sums", "torch, exact sums"),
    "the same 8 products, kernels of later that day": ("product|row, µs|torch", "torch, fast sums", "torch, fast sums"),
    "3 layers with fp8 weights, 2026-11-28": ("layer with fp8 weights", "H200", "H200, hot"),
}
LISTS = "12 lists, fp16, both layouts of B"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def table(page: str, head: str) -> list[Row]:
    """The first whose head begins so."""
    for block in re.findall(r"(?:^\|.*\n)+", (ROOT / page).read_text(), re.MULTILINE):
        first, _, *rows = block.splitlines()
        if "|".join(cells(first)).startswith(head):
            return [dict(zip(cells(first), cells(row))) for row in rows]
    raise AssertionError(f"{page} has no table that begins with {head}")


def span(figures: list[str]) -> str:
    ordered = sorted(figures, key=float)
    return f"{ordered[0]}–{ordered[-1]}"


def least(row: Row, columns: str, place: int) -> str:
    """Of what these columns have in the place, to hundredths."""
    return f"{min(float(row[column].split(', ')[place]) for column in columns.split(' | ')):.2f}"


SUMMARY = {row["what"]: row for row in table("README.md", "what|beside|× rested")}


@pytest.mark.parametrize("what", TABLES)
def test_a_row_of_the_summary_spans_its_table(what):
    head, rested, hot = TABLES[what]
    rows = [row for row in table("docs/performance.md", head) if " e4m3, " not in row.get("layer", "")]  # beside bf16
    assert len(rows) == int(re.search(r"\d+", what)[0])
    assert SUMMARY[what]["× rested"] == span([least(row, rested, 0) for row in rows])
    assert SUMMARY[what]["× hot"] == (span([least(row, hot, -1) for row in rows]) if hot else "")


def test_the_row_of_lists_spans_both_layouts():
    rows = table("docs/performance.md", "list|best peer")
    assert len(rows) == int(LISTS.split()[0])
    ratios = [f"{float(row['its µs']) / float(row[layout]):.2f}" for row in rows for layout in ("NN", "NT")]
    assert SUMMARY[LISTS]["× rested"] == span(ratios)


def test_every_row_of_the_summary_is_compared():
    assert [*SUMMARY] == [*TABLES, LISTS]
