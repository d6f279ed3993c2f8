"""What one pass measures: kernels of one form on the products of a family, one after the other."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from ..spec.kernels import KERNELS
from ..spec.variants import Variant, variants
from .measurement import ProductT
from .store import Run, Store

Times = dict[str, tuple[int, float]]  # slots and microseconds, by the kernel's name


class Family(ABC, Generic[ProductT]):
    """A name, and units of work: products that are measured together, with the kernels that could multiply them."""

    name: str

    @abstractmethod
    def units(self) -> list[list[ProductT]]:
        """All of them, in the order in which they are measured; the same each time."""

    @abstractmethod
    def candidates(self, embedded: list[Variant], product: ProductT) -> list[Variant]:
        """The kernels to time on it."""

    @abstractmethod
    def measure(self, unit: list[ProductT], kernels: list[str], say: Callable[[str], None]) -> dict[ProductT, Times]:
        """The times of each product; without kernels whose results are wrong, of which `say` tells."""


def embedded(sm: int, names: set[str]) -> list[Variant]:
    """The kernels that the installed wheel holds, as aot/tables describes them."""
    return [variant for variant in variants([sm]) if variant.name in names and KERNELS[variant.kernel].multiplies]


@dataclass(frozen=True)
class Left:
    """Units of a family, and how many of them some kernel is not timed on yet."""

    total: int
    left: int

    def __str__(self) -> str:
        return f"{self.left} of {self.total} left" if self.left else f"all {self.total} measured"


class Pass(Generic[ProductT]):
    """A family's work on a GPU, and how far it is: by what the store has of the same GPU and the same machine code."""

    def __init__(self, family: Family[ProductT], run: Run, store: Store, cubins: dict[str, str]):
        self.family, self.run, self.store, self.cubins = family, run, store, cubins
        self.kernels = embedded(run.gpu.kernels_sm, set(cubins))
        self.timed: dict[str, dict[str, float | None]] = {}  # by product and kernel; None where it could not be
        for time_ in store.times():
            if time_.family == family.name and time_.run.is_on(run.gpu) and cubins.get(time_.variant) == time_.cubin:
                self.timed.setdefault(time_.product, {})[time_.variant] = time_.us

    def wanted(self, unit: list[ProductT]) -> list[str]:
        """The kernels to time on a unit: none where all were. Where only some are new, the best of the others is timed
        beside them again, so that both find the same GPU."""
        names = [variant.name for variant in self.family.candidates(self.kernels, unit[0])]
        known = [self.timed.get(json.dumps(product.to_json()), {}) for product in unit]
        new = [name for name in names if any(name not in times for times in known)]
        others = {name: us for name, us in known[0].items() if us and name in names and name not in new}
        return new + ([min(others, key=lambda name: others[name])] if new and others else [])

    def left(self) -> Left:
        units = self.family.units()
        return Left(len(units), sum(bool(self.wanted(unit)) for unit in units))

    def measure(self, seconds: float, say: Callable[[str], None]) -> None:
        """Until all is measured or the time is up; what is measured is in the store at once."""
        deadline = time.monotonic() + seconds
        for unit in self.family.units():
            if not (kernels := self.wanted(unit)):
                continue
            if time.monotonic() > deadline:
                return
            found = self.family.measure(unit, kernels, say)
            for product in unit:
                self._keep(product, kernels, found.get(product, {}))

    def _keep(self, product: ProductT, kernels: list[str], times: Times) -> None:
        """A kernel that was wrong, or found no memory, is not tried again."""
        found = {name: times.get(name, (0, None)) for name in kernels}
        kept = {(name, self.cubins[name], slots): us for name, (slots, us) in found.items()}
        self.store.add(self.family.name, product.to_json(), kept)
        known = self.timed.setdefault(json.dumps(product.to_json()), {})
        known.update({name: us for name, (_, us) in found.items()})
