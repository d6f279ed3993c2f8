"""Walks on the GPU, in processes of their own: a fault there ends the process, not the run."""

import json
import multiprocessing
import time
import traceback
from collections.abc import Iterator

from fuzz.actions import walk

PATIENCE = 120  # seconds that one walk may take
TRIES = 2  # whether a failure shows may depend on timing


def carry_out(actions: list[dict], counts: dict) -> None:
    """One walk from clean to clean. What it says is wrong is raised."""
    import gc

    import torch

    from fuzz.cuda_backend import CudaBackend
    from fuzz.machine import Machine

    machine = Machine(CudaBackend.lanes.get(0) or CudaBackend(0))
    try:
        for number, action in enumerate(actions):
            machine.step(number, action)
            counts["steps"] = counts.get("steps", 0) + 1
        machine.close()
    finally:
        for what, times in machine.counts.items():
            counts[what] = counts.get(what, 0) + times
    del machine
    gc.collect()
    torch.cuda.empty_cache()


def prepare() -> tuple[int, bool]:
    """How many GPUs there are and whether they take fp8; torch's own products are then as exact as they can be."""
    import torch

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return min(torch.cuda.device_count(), 2), torch.cuda.get_device_capability() == (9, 0)


def import_ahead() -> None:
    """So that no child spends its time on it; CUDA stays untouched, as it does not survive a fork."""
    import torch

    import gg_runtime.torch

    assert gg_runtime.torch and not torch.cuda.is_initialized()


def tell_gpus(pipe) -> None:
    pipe.send({"gpus": prepare()})
    pipe.send({"ended": True})


def gpus_of_a_child() -> tuple[int, bool]:
    return next(messages(tell_gpus))["gpus"]


def work(pipe, seed: int, steps: int, end: float) -> None:
    """Walks of seed after seed until the end; tells of each before and after."""
    try:
        gpus = prepare()
        while time.monotonic() < end:
            counts: dict[str, int] = {}
            pipe.send({"began": seed, "gpus": gpus})
            carry_out(walk(seed, steps, *gpus), counts)
            pipe.send({"seed": seed, "counts": counts})
            seed += 1
        pipe.send({"ended": True})
    except BaseException as error:
        pipe.send({"failed": told(error), "counts": counts})


def work_one(pipe, actions: list[dict]) -> None:
    try:
        prepare()
        carry_out(actions, {})
        pipe.send({"ended": True})
    except BaseException as error:
        pipe.send({"failed": told(error)})


def told(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} ({place.name}, line {place.lineno})"


def messages(target, *arguments) -> Iterator[dict]:
    """What a process tells; last of all "failed" where it died, hung or said so."""
    context = multiprocessing.get_context("fork")  # CUDA must not be in use here: the child starts it
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    try:
        while here.poll(PATIENCE):
            message = here.recv()
            yield message
            if "failed" in message or "ended" in message:
                return
        yield {"failed": f"nothing was heard for {PATIENCE} s"}
    except EOFError:
        process.join()
        yield {"failed": f"the process died, exit status {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def failure_of(actions: list[dict]) -> str | None:
    """What goes wrong when a fresh process carries the actions out; None if nothing does, in a few tries."""
    for _ in range(TRIES):
        for message in messages(work_one, actions):
            if "failed" in message:
                return message["failed"]
    return None


def load(path) -> list[dict]:
    return json.loads(path.read_text())
