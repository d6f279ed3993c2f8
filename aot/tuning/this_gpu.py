"""The GPU at hand and the wheel that is measured on it."""

import datetime
import subprocess

import click
import torch

import gg_runtime

from ..spec.gpus import Gpu, row_named
from .store import Run


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


def this_run() -> Run:
    """Of torch's current device; says what is not known of it."""
    if not torch.cuda.is_available():
        raise click.ClickException("tune needs a CUDA device, and torch sees none")
    facts, driver = gg_runtime.inventory.device_facts(torch.cuda.current_device()), driver_version()
    gpu = Gpu(
        facts["name"],
        sm=facts["sm"],
        kernels_sm=facts["kernels_sm"],
        multiprocessors=facts["multiprocessors"],
        clock_mhz=facts["clock_mhz"],
        memory_gb_s=facts["memory_gb_s"],
        source=f"driver {driver}",
    )
    if row_named(gpu.gpu) is None:
        click.echo(
            f"gpus.json has no row for {gpu.gpu}: its figures rest on what the driver tells, {gpu.multiprocessors} "
            f"multiprocessors, {gpu.clock_mhz:.0f} MHz and {gpu.memory_gb_s:.0f} GB/s; a row with its tensor rate "
            "makes predictions for other GPUs better"
        )
    return Run(gpu, driver, datetime.date.today().isoformat(), gg_runtime.inventory.build_id())


def cubins() -> dict[str, str]:
    """The installed wheel's kernels: sha256 of the cubin by name."""
    artifacts = gg_runtime.manifest()["artifacts"]
    return {name: entry["cubin"]["sha256"] for name, entry in artifacts.items()}
