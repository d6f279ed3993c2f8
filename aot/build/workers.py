"""A pool of compiler processes in which one job can be killed without the others noticing."""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ..spec.variants import Variant
from .artifact import Artifact
from .compile import compile_variant, isolate

REASON_LINES = 6


class Worker:
    """One process that compiles what it is sent, in a process group of its own so that its ptxas dies with it."""

    def __init__(self, context, ptxas: Path, scratch: Path):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, ptxas, scratch), daemon=True)
        self.process.start()
        theirs.close()
        self.variant: Variant | None = None
        self.deadline = 0.0

    def start(self, variant: Variant, timeout: float) -> None:
        self.variant, self.deadline = variant, time.monotonic() + timeout
        with contextlib.suppress(BrokenPipeError):  # it died while idle: receiving from it says so
            self.connection.send(variant)

    def kill(self) -> None:
        # The group exists once the worker has run its first line; before that only the process does.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


def compile_all(
    variants: list[Variant], ptxas: Path, jobs: int, timeout: float
) -> Generator[tuple[Variant, Artifact | None, str], None, None]:
    """Yields (variant, artifact, "") or (variant, None, reason) as they finish. Leaves no process behind."""
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(variants))
    with tempfile.TemporaryDirectory(prefix="aot-", ignore_cleanup_errors=True) as scratch:
        workers: list[Worker] = []
        try:
            while waiting or any(worker.variant for worker in workers):
                while len(workers) < min(jobs, len(waiting) + sum(worker.variant is not None for worker in workers)):
                    workers.append(Worker(context, ptxas, Path(scratch)))
                for worker in workers:
                    if waiting and worker.variant is None:
                        worker.start(waiting.pop(), timeout)
                for worker, variant, artifact, reason in _finished(workers, timeout):
                    yield variant, artifact, reason
                    worker.variant = None
                workers = [worker for worker in workers if not worker.connection.closed]
        finally:
            for worker in workers:
                if not worker.connection.closed:
                    worker.kill()


def _finished(workers: list[Worker], timeout: float) -> Iterator[tuple[Worker, Variant, Artifact | None, str]]:
    """Waits for the next event. A worker that died or ran out of time is killed, its connection closed."""
    busy = [(worker, worker.variant) for worker in workers if worker.variant]
    patience = min(worker.deadline for worker, _ in busy) - time.monotonic()
    ready = wait([worker.connection for worker, _ in busy], max(0.0, patience))
    for worker, variant in busy:
        if worker.connection in ready:
            try:
                artifact, reason = worker.connection.recv()
            except (EOFError, OSError):  # it ended, or ended within an answer
                worker.process.join()
                artifact, reason = None, f"the compiler process died (exit code {worker.process.exitcode})"
                worker.kill()
            yield worker, variant, artifact, reason
        elif time.monotonic() > worker.deadline:
            worker.kill()
            yield worker, variant, None, f"timed out: not compiled within {timeout:g} s"


def _serve(jobs: Connection, ptxas: Path, scratch: Path) -> None:
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    isolate(ptxas, scratch)
    # Triton prints the whole PTX of a failed variant, partly from C++: the descriptors themselves are redirected.
    with tempfile.TemporaryFile(dir=scratch) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        while True:
            try:
                variant = jobs.recv()
            except EOFError:
                return
            output.truncate(0)
            output.seek(0)
            try:
                answer = compile_variant(variant), ""
            except Exception as error:  # whatever Triton raises is the variant's reason, not the build's end
                sys.stdout.flush()
                output.seek(0)
                answer = None, reason(error, output.read().decode(errors="replace"))
            jobs.send(answer)


def reason(error: BaseException, output: str) -> str:
    """The last lines that mean something, of what was raised and, where that is short, of what was printed.

    Triton raises anew for each function that calls the one that is wrong: what was raised first is told, and where.
    """
    chain = [error]
    while cause := chain[-1].__cause__:
        chain.append(cause)
    raised = "\n".join(f"{type(one).__name__}: {one}" for one in chain[-2:]).splitlines()
    printed = [line for line in output.splitlines() if re.search(r"\b(error|fatal|assert\w*|failed)\b", line, re.I)]
    lines = [line.rstrip() for line in [*printed[-2:], *raised] if line.strip() and "Repro command" not in line]
    return "\n".join(line[:300] for line in lines[-REASON_LINES:])
