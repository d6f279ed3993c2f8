"""GPUs: those that tables were measured on, and what datasheets say of them and of others.

aot/tables/gpus.json has a row for each GPU whose datasheet was read: its name as drivers tell it, without "NVIDIA";
multiprocessors; the rate of its tensor cores in 16-bit products without sparsity, and where that is from. Each GPU that
was measured has a folder beside it, aot/tables/<gpu>: `gpu.json` are the facts that its driver told, the other files
are its tables (spec/tables.py). A new GPU is a new folder, which the tuner makes, and nothing else: a row in gpus.json
makes the cost model better where it is scaled from that GPU to another.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .tables import UnknownGpuError, read_table
from .variants import TABLES

GPUS = TABLES / "gpus.json"
FACTS = "gpu.json"


@dataclass(frozen=True)
class Gpu:
    """A GPU that tables were measured on, as its driver told of it; a part of one that MIG made is a GPU of its own.

    `kernels_sm`: the architecture of the kernels that it took: 80 on an sm_86 whose wheel had none of its own.
    `reference`: predictions for other GPUs of the architecture are scaled from this one.
    """

    gpu: str  # its name
    sm: int
    kernels_sm: int
    multiprocessors: int
    clock_mhz: float  # 0 where the driver does not tell
    memory_gb_s: float  # likewise
    reference: bool = False
    source: str = ""

    @property
    def tensor_tflop_s(self) -> float:
        """Of its multiprocessors, by the rate of its row in gpus.json; 0 where that has none."""
        row = row_named(self.gpu)
        return row["tensor_tflop_s"] * (self.multiprocessors / row["multiprocessors"]) if row else 0.0

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def gpu_rows() -> list[dict]:
    """{"name", "sm", "multiprocessors", "tensor_tflop_s", "source"}"""
    return read_table(GPUS)["gpus"]


def row_named(name: str) -> dict | None:
    """The row with the longest name that `name` has as whole words; csrc/driver/gpus.cpp finds the same."""
    rows = (row for row in gpu_rows() if re.search(rf"(?<![0-9A-Za-z]){re.escape(row['name'])}(?![0-9A-Za-z])", name))
    return max(rows, key=lambda row: len(row["name"]), default=None)


def folder_name(gpu: str) -> str:
    """H100_80GB_HBM3 of "NVIDIA H100 80GB HBM3"."""
    return re.sub(r"[^0-9A-Za-z.-]+", "_", gpu.removeprefix("NVIDIA ")).strip("_")


def read_gpu(folder: Path) -> Gpu:
    try:
        return Gpu(**json.loads((folder / FACTS).read_text()))
    except TypeError as error:
        raise UnknownGpuError(f"{folder.name}/{FACTS} are not the facts of a GPU: {error}") from error


def measured_gpus(tables: Path = TABLES) -> dict[Path, Gpu]:
    """The GPUs with tables of their own, by their folders, sorted by name; no two of one name and size."""
    found = {path.parent: read_gpu(path.parent) for path in sorted(tables.glob(f"*/{FACTS}"))}
    folders: dict[tuple, Path] = {}
    for folder, gpu in found.items():
        other = folders.setdefault((gpu.gpu, gpu.sm, gpu.multiprocessors), folder)
        if other != folder:
            raise UnknownGpuError(f"{other.name} and {folder.name} are both of {gpu.gpu}: put their rows into one")
    return dict(sorted(found.items(), key=lambda item: (item[1].gpu, item[1].multiprocessors)))


def reference_gpu(sm: int, tables: Path = TABLES) -> Gpu | None:
    """The GPU whose costs the model scales to others of the architecture: the marked one, else the first by name.

    Code of another generation runs on later GPUs too, from PTX; none of them says how fast a GPU of its own is.
    """
    own = [gpu for gpu in measured_gpus(tables).values() if gpu.kernels_sm == sm and gpu.sm // 10 == sm // 10]
    return min(own, key=lambda gpu: not gpu.reference, default=None)
