"""`python -m benchmarks [lists] [host] [ceilings] [--out DIR]`: all parts by default; the table comes last."""

import argparse
import sys
from pathlib import Path

from . import host, lists, report
from .peers import OURS

PARTS = {"ceilings": lists.ceilings, "host": host.run, "lists": lists.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="for results.json, .csv and .png")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results = {"environment": report.environment()}
    for name, part in PARTS.items():
        if not arguments.parts or name in arguments.parts:
            results[name] = part()
    report.write(results, arguments.out)
    print(report.summary(results))
    return int(any(row["peer"] == OURS and "failed" in row for row in results.get("lists", ())))


if __name__ == "__main__":
    sys.exit(main())
