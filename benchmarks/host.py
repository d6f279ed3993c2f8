"""What a call costs the host, and the first call a process."""

import os
import statistics
import subprocess
import sys

import torch

import gg_runtime

from .timing import Call, interleaved_host_us
from .workload import Workload

GROUPS = 4
FIRST_CALL = """
import time, torch
A = [torch.randn(256, 256, device="cuda").half() for _ in range(4)]
C = [a @ a for a in A]
torch.cuda.synchronize()
start = time.perf_counter()
import gg_runtime
imported = time.perf_counter()
outputs = gg_runtime.group_gemm(A, A)
torch.cuda.synchronize()
print((imported - start) * 1e3, (time.perf_counter() - imported) * 1e3)
"""


def first_call_ms(processes: int = 5) -> dict:
    """Medians over fresh processes that have torch and a CUDA context already."""
    # Not from the checkout, whose sources would hide the installed package.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {"cwd": "/", "env": environment, "stdout": subprocess.PIPE, "text": True, "check": True}
    runs = []
    for _ in range(processes):
        done = subprocess.run([sys.executable, "-c", FIRST_CALL], **options)
        runs.append([float(word) for word in done.stdout.split()])
    imports, calls = zip(*runs)
    return {"import_ms": statistics.median(imports), "first_call_ms": statistics.median(calls)}


def of_grouped_mm() -> dict[str, Call]:
    """One ragged product, bfloat16 as torch's fast path takes: our call and torch's own."""
    A = torch.randn(GROUPS * 256, 256, device="cuda", dtype=torch.bfloat16)
    B = torch.randn(GROUPS, 256, 256, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(1, GROUPS + 1, device="cuda", dtype=torch.int32) * 256
    C = torch.empty_like(A)
    return {
        "grouped_mm_us": lambda: gg_runtime.grouped_mm(A, B, offs=ends),
        "grouped_mm_out_us": lambda: gg_runtime.grouped_mm(A, B, offs=ends, out=C),
        "torch_grouped_mm_us": lambda: torch.nn.functional.grouped_mm(A, B, offs=ends),
    }


def calls_us() -> dict[str, float]:
    """Host times in microseconds at four groups of 256^3, of calls that take turns."""
    copy = Workload([(256, 256, 256)] * GROUPS).copies[0]
    plan = gg_runtime.Plan(copy.A, copy.B["nn"], out=copy.C)
    unlike = Workload([(256, 256, 256), (128, 512, 256), (64, 64, 64), (320, 192, 256)]).copies[0]
    many = Workload([(64, 64, 64)] * 64).copies[0]
    described = Workload([(256, 256, 512)] * 64).copies[0]  # takes `hopper`: descriptors
    calls: dict[str, Call] = {
        "group_gemm_us": lambda: gg_runtime.group_gemm(copy.A, copy.B["nn"]),
        "group_gemm_unlike_sizes_us": lambda: gg_runtime.group_gemm(unlike.A, unlike.B["nn"]),
        "group_gemm_64_groups_us": lambda: gg_runtime.group_gemm(many.A, many.B["nn"]),
        "group_gemm_64_groups_out_us": lambda: gg_runtime.group_gemm(many.A, many.B["nn"], out=many.C),
        "group_gemm_64_descriptors_out_us": lambda: gg_runtime.group_gemm(
            described.A, described.B["nn"], out=described.C
        ),
        "group_gemm_out_us": lambda: gg_runtime.group_gemm(copy.A, copy.B["nn"], out=copy.C),
        "plan_us": lambda: gg_runtime.Plan(copy.A, copy.B["nn"], out=copy.C),
        "plan_run_us": plan.run,
        "torch_empty_kernel_us": lambda: torch.cuda._sleep(0),
        "torch_empty_us": lambda: torch.empty(256, 256, device="cuda", dtype=torch.float16),
        **of_grouped_mm(),
    }
    return dict(zip(calls, interleaved_host_us(list(calls.values()))))


def run() -> dict:
    """Host times, and the first call in milliseconds."""
    return {**calls_us(), **first_call_ms()}
