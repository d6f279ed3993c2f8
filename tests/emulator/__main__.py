"""`python -m emulator [--seed N] PYTEST'S ARGUMENTS`, from the checkout, after `make build`."""

import argparse
import sys

from emulator import ROOT, build_libraries, run_tests

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m emulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the order in which warps run (1)")
    options, rest = parser.parse_known_args()
    sys.path.append(str(ROOT))  # behind the installed gg_runtime
    libraries = ROOT / "build/emulator"
    build_libraries(libraries)
    sys.exit(run_tests(libraries, *rest, seed=options.seed).returncode)
