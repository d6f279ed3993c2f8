"""Measurements in a file that only grows: a line each, written as soon as a product is measured.

{"run": {...}} says on which GPU, by which driver, when and with which build what follows was measured. {"kernel":
[name, sha256 of its cubin, slots]} numbers a kernel of that run, from 0. {"family", "product", "us": {number: time}}
are the times of a product. A process that is killed while it writes leaves half a line: the next one removes it.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..spec.gpus import Gpu


@dataclass(frozen=True)
class Run:
    """Where figures come from."""

    gpu: Gpu
    driver: str
    date: str
    gg_build_id: str

    @property
    def about(self) -> dict:
        """As tables say it."""
        return {"gpu": self.gpu.gpu, "driver": self.driver, "date": self.date, "gg_build_id": self.gg_build_id}

    def is_on(self, gpu: Gpu) -> bool:
        return (self.gpu.gpu, self.gpu.multiprocessors) == (gpu.gpu, gpu.multiprocessors)


@dataclass(frozen=True)
class Time:
    """Of a product on a kernel, which is known by its name and its machine code; None where it could not be timed."""

    run: Run
    family: str
    product: str  # its JSON
    variant: str
    cubin: str
    slots: int
    us: float | None


@dataclass
class Store:
    path: Path
    _run: Run | None = None
    _numbers: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def start(self, run: Run) -> None:
        """What is added from now on is of this run."""
        self._cut_half_a_line()
        self._run = run
        self._numbers.clear()
        self._append({"run": asdict(run)})

    def add(self, family: str, product: list, times: dict[tuple[str, str, int], float | None]) -> None:
        """`times`: microseconds by a kernel's name, cubin and slots; None where it could not be timed."""
        for kernel in times:
            if kernel not in self._numbers:
                self._numbers[kernel] = len(self._numbers)
                self._append({"kernel": kernel})
        us = {self._numbers[kernel]: us if us is None else float(f"{us:.5g}") for kernel, us in times.items()}
        self._append({"family": family, "product": product, "us": us})

    def times(self) -> Iterator[Time]:
        """All of them, in the order in which they were measured."""
        run: Run | None = None
        kernels: list[tuple[str, str, int]] = []
        for line in self._lines():
            if "run" in line:
                run, kernels = Run(**line["run"] | {"gpu": Gpu(**line["run"]["gpu"])}), []
            elif "kernel" in line:
                kernels.append(line["kernel"])
            else:
                assert run, f"{self.path} begins with no run"
                product = json.dumps(line["product"])
                for number, us in line["us"].items():
                    yield Time(run, line["family"], product, *kernels[int(number)], us)

    def _lines(self) -> Iterator[dict]:
        if self.path.exists():
            for text in self.path.read_text().split("\n")[:-1]:
                yield json.loads(text)

    def _append(self, line: dict) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _cut_half_a_line(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            data = self.path.read_bytes()
            if not data.endswith(b"\n"):
                with self.path.open("r+b") as file:
                    file.truncate(data.rfind(b"\n") + 1)
