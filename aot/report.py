"""What the builder says: every artifact in a table, totals, or every failure with its reason."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from gg_runtime.facts import Manifest

WIDTH = 144  # what the table of artifacts needs; a terminal that is narrower wraps, instead of losing text


def console() -> Console:
    found = Console()
    return found if found.width >= WIDTH else Console(width=WIDTH)


def report_artifacts(manifest: "Manifest", out: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("kernel", "arch", "dtype", "layout", "align", "config"):
        table.add_column(name, no_wrap=True)
    for name in ("cubin B", "registers", "spill B", "shared B"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    for entry in manifest["artifacts"].values():
        table.add_row(
            entry["kernel"],
            f"sm_{entry['sm']}",
            entry["dtype"] if entry["out_dtype"] == entry["dtype"] else f"{entry['dtype']}→{entry['out_dtype']}",
            entry["layout"],
            f"{entry['alignment']}",
            entry["config"],
            f"{entry['cubin']['bytes']}",
            f"{entry['registers']}",
            f"[red]{entry['spill_bytes']}[/]" if entry["spill_bytes"] else "0",
            f"{entry['launch']['shared_bytes']}",
            entry["cubin"]["sha256"][:12],
        )
    out.print(table)


def report_totals(manifest: "Manifest", out: Console) -> None:
    entries = manifest["artifacts"].values()
    cubins = sum(entry["cubin"]["bytes"] for entry in entries)
    ptx = sum(entry["ptx"]["bytes"] for entry in entries if "ptx" in entry)
    out.print(
        f"{len(entries)} artifacts, {cubins / 1e6:.2f} MB of cubins, {ptx / 1e6:.2f} MB of PTX, "
        f"Triton {manifest['triton']}, ptxas {manifest['ptxas']}"
    )
    for sm, arch in sorted(manifest["archs"].items(), key=lambda item: int(item[0])):
        if not arch["ran_on_hardware"]:
            out.print(f"[yellow]sm_{sm}, {arch['generation']}: not run on hardware[/]")


def report_failures(reasons: dict[str, str], out: Console) -> None:
    table = Table(title=f"{len(reasons)} variants could not be built", title_style="bold red", show_lines=True)
    table.add_column("variant", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for name in sorted(reasons):
        table.add_row(name, escape(reasons[name]))
    out.print(table)
