"""Whole layers of experts: our parts and `fused_experts` beside the layer that torch compiles and vLLM's in Triton.

Rows are measured in a process of their own, which prints each as a line of JSON. If one kills it, another process goes
on with the next row.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from . import launches, layer_calls, layer_kernels, layer_torch
from .arguments import parsed
from .layer_calls import DOWN, GATHERED, LAYER, UP, VLLM, VLLM_PRODUCTS, Part
from .layer_shapes import LAYERS, LayerShape, layer_named
from .layer_torch import best_torch
from .layer_workload import LayerWorkload
from .measured import checked
from .peers import reason
from .timing import HOT_SECONDS, REPEATS, REPLAY_US, REST_SECONDS, Graph, interleaved_hot_us, interleaved_us

HOST_ROWS = ("Qwen3-30B", "Qwen3-30B decode")  # the host does not see sizes


@dataclass(frozen=True)
class Effort:
    repeats: int = REPEATS
    rest_seconds: float = REST_SECONDS
    replay_us: float = REPLAY_US
    hot_seconds: float = HOT_SECONDS
    torch_layers: tuple[str, ...] = tuple(layer_torch.COMBINES)


QUICK = Effort(repeats=3, rest_seconds=0.06, replay_us=12_000, hot_seconds=0.1, torch_layers=layer_torch.BEST_OF)


def measure(name: str, shape: LayerShape, effort: Effort) -> Iterator[dict]:
    """The row, and the row again once the profiler was at it, which might not survive that.

    What fails has its reason in "failed" and no figure; the others still count.
    """
    row: dict = {"layer": name, "us": {}, "hot_us": {}, "errors": {}, "kernels": {}, "failed": {}}
    timed: dict[str, Graph] = {}

    def attempt(what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            row["failed"][what] = reason(error)
            print(f"{name}, {what}: {reason(error)}", file=sys.stderr, flush=True)

    def prepared(part: str, make: Callable[[], Part]) -> None:
        made = make()
        timed[part], row["errors"][part] = checked([made.call], made.outputs, made.check, effort.replay_us)

    def rested() -> None:
        found = interleaved_us(list(timed.values()), effort.repeats, effort.rest_seconds)
        row["us"] = dict(zip(timed, found))

    def hot() -> None:
        named = (UP, DOWN, GATHERED, LAYER, *effort.torch_layers, VLLM, VLLM_PRODUCTS)
        parts = [part for part in named if part in timed]
        row["hot_us"] = dict(zip(parts, interleaved_hot_us([timed[part] for part in parts], effort.hot_seconds)))

    def kernels(part: str) -> None:
        row["kernels"][part] = layer_kernels.parts_us(timed[part])

    workload = LayerWorkload(shape)
    row["used"] = workload.used
    for part, make in layer_calls.parts(workload, effort.torch_layers).items():
        attempt(part, lambda part=part, make=make: prepared(part, make))
    attempt("rested", rested)
    attempt("hot", hot)
    yield row
    for part in filter(None, (LAYER, best_torch(row["us"]))):
        if part in timed:
            attempt(f"{part}, kernels", lambda part=part: kernels(part))
    yield row


def host(shape: LayerShape) -> dict:
    try:
        return {"host": launches.host_figures(layer_calls.fused(LayerWorkload(shape)).call)}
    except Exception as error:  # the rows still count
        print(f"host: {reason(error)}", file=sys.stderr, flush=True)
        return {}


def measure_all(names: list[str], effort: Effort) -> int:
    """Prints rows, each twice. Ends with 1 behind the first one that leaves the GPU's context broken."""
    hosts = {name: host(layer_named(name)) for name in names if name in HOST_ROWS}  # before a profiler slows launches
    for name in names:
        start = time.perf_counter()
        try:
            for row in measure(name, layer_named(name), effort):
                row |= hosts.get(name, {}) | {"seconds": time.perf_counter() - start}
                print(json.dumps(row), flush=True)
        except Exception as error:  # no workload, no memory
            print(json.dumps({"layer": name, "failed": {"all": reason(error)}}), flush=True)
        torch._dynamo.reset()  # else the next row's sizes would count as recompilations
        gc.collect()
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            return 1
    return 0


def rows_of_process(names: list[str], quick: bool) -> Iterator[dict]:
    command = [sys.executable, "-m", "benchmarks.layer", *(["--quick"] if quick else []), "--rows", *names]
    # A profiler that is taken down and set up again does not work well with CUDA graphs.
    environment = {**os.environ, "TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                sys.stdout.write(line)


def run(
    quick: bool = False, names: list[str] | None = None, keep: Callable[[list[dict]], None] | None = None
) -> list[dict]:
    """A row for each layer; `keep` gets those that are there, after each."""
    torch.cuda.empty_cache()  # the memory is the other process's
    left, rows = list(names or LAYERS), {}
    while left:
        begun = left[0]
        for row in rows_of_process(left, quick):
            name = row["layer"]
            if name in left:
                left.remove(name)
                print(progress(row), flush=True)
            rows[name] = row  # the last one has the most
            if keep:
                keep(list(rows.values()))
        if left and left[0] == begun:  # its process died without a row
            rows[begun] = {"layer": left.pop(0), "failed": {"all": "the process ended: see its messages"}}
    return list(rows.values())


def lost(row: dict) -> list[str]:
    """What failed of ours. A profile that failed costs a picture's bar alone."""
    peers = (VLLM, VLLM_PRODUCTS)
    return [
        what for what in row["failed"] if not (what.startswith("torch") or what.endswith("kernels") or what in peers)
    ]


def progress(row: dict) -> str:
    us = row.get("us", {})
    theirs = best_torch(us)
    told = f"{us[LAYER]:.1f} us" if LAYER in us else "not timed"
    told += "".join(f", {name} {us[name]:.1f} us" for name in (theirs, VLLM, VLLM_PRODUCTS) if name in us)
    failed = "".join(f"; {what} failed: {why}" for what, why in row["failed"].items())
    return f"{row['layer']}: {told} ({row.get('seconds', 0):.0f} s){failed}"


def known(name: str) -> str:
    try:
        layer_named(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def arguments_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="of layer: fewer repeats, no index_add_")
    rows = f"of layer: {', '.join(LAYERS)}; or ROW@TOKENS"
    parser.add_argument("--rows", nargs="+", type=known, metavar="ROW", help=rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer", description="Prints rows as JSON.")
    arguments_of(parser)
    given = parsed(parser)
    return measure_all(given.rows or list(LAYERS), QUICK if given.quick else Effort())


if __name__ == "__main__":
    sys.exit(main())
