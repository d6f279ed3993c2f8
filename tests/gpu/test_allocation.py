"""Calls that repeat neither keep nor leak memory, on the device or on the host."""

import gc
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402

CALLS = 2000
HOST_SLACK = 4 << 20  # a leak of 2 KiB a call would show


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used() -> tuple[int, int, int]:
    torch.cuda.synchronize()
    gc.collect()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident_bytes()


@pytest.mark.parametrize("count", [4, 64])
@pytest.mark.parametrize(
    "call",
    [
        "group_gemm",
        "group_gemm(out=)",
        "Plan",
        "Plan.run",
        "explain",
        "refusal",
        "grouped_mm",
        "grouped_mm(out=)",
        "grouped_mm refusal",
    ],
)
def test_nothing_grows(call, count):
    A = [torch.ones(64, 72, device="cuda", dtype=torch.float16) for _ in range(count)]
    B = [torch.ones(72, 80, device="cuda", dtype=torch.float16) for _ in range(count)]
    out = [torch.empty(64, 80, device="cuda", dtype=torch.float16) for _ in range(count)]

    rows, weights, products = torch.cat(A), torch.stack(B), torch.cat(out)
    offs = torch.arange(64, 64 * count + 1, 64, device="cuda", dtype=torch.int32)

    def grouped_mm_refusal():
        with pytest.raises(ValueError):
            gg_runtime.grouped_mm(rows, weights, offs=offs, out=products[1:])

    def refusal():
        with pytest.raises(ValueError):
            gg_runtime.group_gemm(A, B, out=out[1:])

    run = {
        "group_gemm": lambda: gg_runtime.group_gemm(A, B),
        "group_gemm(out=)": lambda: gg_runtime.group_gemm(A, B, out=out),
        "Plan": lambda: gg_runtime.Plan(A, B, out=out),
        "Plan.run": gg_runtime.Plan(A, B, out=out).run,
        "explain": lambda: gg_runtime.explain(A, B),
        "refusal": refusal,
        "grouped_mm": lambda: gg_runtime.grouped_mm(rows, weights, offs=offs),
        "grouped_mm(out=)": lambda: gg_runtime.grouped_mm(rows, weights, offs=offs, out=products),
        "grouped_mm refusal": grouped_mm_refusal,
    }[call]
    for _ in range(CALLS // 4):  # the allocators of Python, torch and the driver settle
        run()
    allocated, reserved, resident = used()
    for _ in range(CALLS):
        run()
    after = used()
    assert after[:2] == (allocated, reserved)
    assert after[2] <= resident + HOST_SLACK


def test_a_plan_keeps_no_input_alive_after_its_end():
    before = used()[0]
    for count in (4, 64):
        A = [torch.ones(64, 64, device="cuda", dtype=torch.float16) for _ in range(count)]
        plan = gg_runtime.Plan(A, A)
        plan.run()
        del A, plan
    assert used()[0] == before
