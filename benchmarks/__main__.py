"""`python -m benchmarks [ceilings] [forms] [fp8] [host] [layer] [lists] [model] [moe] [routing] [train] [unseen]
[--out DIR]`.

All parts by default. The tables come last.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from . import ceilings, forms, fp8_scales, host, layer, lists, moe, report, routing, train, transformers_model, unseen
from .arguments import need_gpu
from .peers import OURS

PARTS = {
    "ceilings": ceilings.run,
    "forms": forms.run,
    "fp8": fp8_scales.run,
    "host": host.run,
    "layer": layer.run,
    "lists": lists.run,
    "model": transformers_model.run,
    "moe": moe.run,
    "routing": routing.run,
    "train": train.run,
    "unseen": unseen.run,
}


def failures(results: dict) -> list[dict]:
    """Of ours; a peer's are results."""
    compared = [row for part in ("lists", "moe", "model") for row in results.get(part, ())]
    ours = [row for row in compared if row["peer"] == OURS]
    layers = [row for row in results.get("layer", ()) if layer.lost(row)]
    broken = [row for row in results.get("forms", ()) if forms.OWN & row.get("failed", {}).keys()]
    broken += [row for row in results.get("train", ()) if {train.OURS, train.OF_PARTS} & row["failed"].keys()]
    broken += [row for row in results.get("fp8", {}).get("rows", ()) if fp8_scales.lost(row)]
    return [*layers, *broken, *(row for row in [*ours, *results.get("unseen", ())] if "failed" in row)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="for results.json, .csv, .md and pictures"
    )
    parser.add_argument("--figures", type=Path, help="for the layer's pictures, SVG, as docs/figures; by default OUT")
    layer.arguments_of(parser)
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    need_gpu(parser)
    wanted = set(arguments.parts) or set(PARTS)
    if wanted & {"moe", "layer"}:
        wanted.add("ceilings")  # the rooflines and copies are of the same run
    results: dict[str, Any] = {"environment": report.environment()}

    def keep_layers(rows: list[dict]) -> None:
        report.keep(results | {"layer": rows}, arguments.out)

    parts = PARTS | {"layer": lambda: layer.run(arguments.quick, arguments.rows, keep_layers)}
    for name, part in parts.items():
        if name in wanted:
            results[name] = part()
            report.keep(results, arguments.out)
    report.write(results, arguments.out, arguments.figures or arguments.out)
    print(report.summary(results))
    return int(bool(failures(results)))


if __name__ == "__main__":
    sys.exit(main())
