"""`python -m benchmarks [ceilings] [host] [lists] [moe] [routing] [unseen] [--out DIR]`: all by default; tables come last."""

import argparse
import sys
from pathlib import Path

from . import ceilings, host, lists, moe, report, routing, unseen
from .peers import OURS

PARTS = {
    "ceilings": ceilings.run,
    "host": host.run,
    "lists": lists.run,
    "moe": moe.run,
    "routing": routing.run,
    "unseen": unseen.run,
}


def failures(results: dict) -> list[dict]:
    """Of ours; a peer's are results."""
    compared = [*results.get("lists", ()), *results.get("moe", ())]
    ours = [row for row in compared if row["peer"] == OURS]
    return [row for row in [*ours, *results.get("unseen", ())] if "failed" in row]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="for results.json, .csv, .md and pictures"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    wanted = set(arguments.parts) or set(PARTS)
    if "moe" in wanted:
        wanted.add("ceilings")  # the roofline is of the same run
    results = {"environment": report.environment()}
    for name, part in PARTS.items():
        if name in wanted:
            results[name] = part()
            report.keep(results, arguments.out)
    report.write(results, arguments.out)
    print(report.summary(results))
    return int(bool(failures(results)))


if __name__ == "__main__":
    sys.exit(main())
