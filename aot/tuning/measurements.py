"""What the tuner measured, in the file that keeps it."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import sweep_layers
from .sweep import Measurement
from .sweep_ragged import RaggedMeasurement

PARTS = ("lists", "ragged", "layers")


@dataclass(frozen=True)
class Measurements:
    """`measured`: GPU, driver, date and build of each part that there is."""

    measured: dict[str, dict] = field(default_factory=dict)
    lists: list[Measurement] = field(default_factory=list)
    ragged: list[RaggedMeasurement] = field(default_factory=list)
    layers: list[RaggedMeasurement] = field(default_factory=list)

    def count(self) -> int:
        return len(self.lists) + len(self.ragged) + len(self.layers)

    def renewed(self, about: dict, parts: dict[str, list]) -> "Measurements":
        """With these parts instead of its own."""
        return dataclasses.replace(self, measured=self.measured | dict.fromkeys(parts, about), **parts)

    def only(self, keep: Callable) -> "Measurements":
        return dataclasses.replace(self, **{part: [m for m in getattr(self, part) if keep(m)] for part in PARTS})

    def write(self, path: Path) -> None:
        rows = {
            "lists": [m.to_json() for m in self.lists],
            "ragged": [m.to_json() for m in self.ragged],
            "layers": sweep_layers.to_json(self.layers),
        }
        data = {part: {"measured": about, "rows": rows[part]} for part, about in self.measured.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> "Measurements":
        data = json.loads(path.read_text())
        rows = {part: [] for part in PARTS} | {part: kept["rows"] for part, kept in data.items()}
        return cls(
            {part: kept["measured"] for part, kept in data.items()},
            [Measurement.from_json(row) for row in rows["lists"]],
            [RaggedMeasurement.from_json(row) for row in rows["ragged"]],
            sweep_layers.from_json(rows["layers"]),
        )
