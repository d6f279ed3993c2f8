"""What scripts in a process of their own start with: `from faults.child_prelude import *`."""

import json
import sys
import threading
import time
from pathlib import Path

import gg_runtime
from arrays import (
    CPU,
    FULL_NAMES,
    ROCM,
    Array,
    CapsuleArray,
    ExchangeArray,
    InterfaceArray,
    fresh_address,
    matrix,
    operands,
    ragged,
    stacks,
)
from gg_runtime import Plan, explain, group_gemm, grouped_mm

sys.path.insert(0, str(Path(__file__).with_name("stand_ins")))

__all__ = [
    "CPU", "FULL_NAMES", "ROCM", "Array", "CapsuleArray", "ExchangeArray", "InterfaceArray", "Plan", "explain",
    "failure", "fresh_address", "gg_runtime", "group_gemm", "grouped_mm", "matrix", "operands", "ragged", "report",
    "stacks", "sys", "ticks_during",
]  # fmt: skip


def report(value) -> None:
    """Hands a JSON value to the test."""
    print(json.dumps(value), flush=True)


def ticks_during(call) -> int:
    """How often this thread got a turn while another was in the call, about 100 times a second."""
    thread = threading.Thread(target=call)
    ticks = 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.01)
        ticks += 1
    return ticks


def failure(function, *arguments, **keywords) -> dict:
    """What the call raised: {"type", "text"}, and for a CudaError its "call", "code" and "name"."""
    try:
        function(*arguments, **keywords)
    except Exception as error:
        facts = {name: getattr(error, name) for name in ("call", "code", "name") if hasattr(error, name)}
        return {"type": type(error).__name__, "text": str(error), **facts}
    return {"type": None, "text": "nothing was raised"}
