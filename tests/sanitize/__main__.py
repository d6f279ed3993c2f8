"""`make sanitize`: walks, faults and threads under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

A sanitizer counts only if it reports the mistakes that were planted for it.
"""

import argparse
import os
import subprocess
import sys
import time

from faults.fake_driver import build_driver, parameter_table
from sanitize.building import ADDRESS, ROOT, THREAD, build_package, build_planted, build_races, copy_python, manifest

WALKS = ["tests/fuzz/test_order.py"]
FAULTS = [f"tests/faults/test_{name}.py" for name in ("ingress", "launch", "ragged_launch", "driver_faults")]
REJECTIONS = ["tests/cpu/test_rejections.py", "tests/cpu/test_grouped_mm_rejections.py"]
REPORTS = ("AddressSanitizer", "runtime error:", "ThreadSanitizer", "LeakSanitizer")
THREADED_WALK = """
import sys, sysconfig
sys.path[:0] = {paths!r}
from fuzz.actions import walk
from fuzz.machine import Machine
from fuzz.order_backend import ThreadedBackend, run
for seed in range({walks}):
    inner = [walk(2 * seed + number, 60, 2) for number in range(2)]
    walks = [[action for action in actions if action["do"] != "together"] for actions in inner]
    print(seed, run([{{"do": "together", "walks": walks}}], ThreadedBackend(devices=2)), flush=True)
"""


class Report:
    """Runs commands and keeps what came of them."""

    def __init__(self):
        self.rows, self.failed = [], False

    def run(self, what: str, command: list, environment: dict, *, must_report: str | None = None) -> None:
        began = time.monotonic()
        environment = os.environ | {name: str(value) for name, value in environment.items()}
        done = subprocess.run(list(map(str, command)), env=environment, cwd=ROOT, capture_output=True, text=True)
        output = done.stdout + done.stderr
        found = any(word in output for word in REPORTS)
        right = done.returncode == 0 and not found
        if must_report:
            right = done.returncode != 0 and must_report in output
        self.failed |= not right
        last = (done.stdout.strip().splitlines() or ["-"])[-1]
        said = f"reported: {must_report}" if must_report else last
        self.rows.append(f"{'pass' if right else 'FAIL'}  {time.monotonic() - began:5.0f} s  {what}: {said}")
        print(self.rows[-1] if right else f"{self.rows[-1]}\n{output[-20000:]}", flush=True)


def addresses(report: Report) -> None:
    package, planted = build_package(ADDRESS), build_planted(ADDRESS)
    environment = {
        "LD_PRELOAD": ADDRESS.preloaded(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # the interpreter leaves memory at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{package}:{ROOT / 'tests'}",
    }
    for function, words in {
        "read_past_the_end": "heap-buffer-overflow",
        "read_after_free": "heap-use-after-free",
        "overflow": "signed integer overflow",
    }.items():
        value = 2**31 - 1 if function == "overflow" else 4
        script = f"import ctypes; print(ctypes.CDLL({str(planted)!r}).{function}({value}))"
        report.run(f"planted, {function}", [sys.executable, "-c", script], environment, must_report=words)
    check = "import gg_runtime; assert 'sanitize' in gg_runtime.__file__; print(gg_runtime.__file__)"
    report.run("the package", [sys.executable, "-c", check], environment)
    for what, tests in {"walks": WALKS, "faults": FAULTS, "rejections": REJECTIONS}.items():
        report.run(f"address, undefined: {what}", [sys.executable, "-m", "pytest", "-q", "-x", *tests], environment)


def threads(report: Report) -> None:
    program = build_races(THREAD)
    driver = build_driver(THREAD.folder / "driver")
    parameters = THREAD.folder / "parameters"
    parameters.write_text(parameter_table(manifest()))
    environment = {
        "LD_LIBRARY_PATH": driver,
        "FAKE_CUDA_PARAMETERS": parameters,
        "FAKE_CUDA_SLEEP_MS": 1,
        "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
    }
    report.run("planted, a race", [program, "planted"], environment, must_report="data race")
    some_fail = environment | {"FAKE_CUDA_FAIL": "cuLibraryLoadData:2:40"}
    report.run("threads: driver, modules, catalogs, cached choices", [program, "hammer"], some_fail)
    script = THREAD.folder / "walk.py"
    paths = [ROOT / "tests/faults/stand_ins", ROOT / "tests", copy_python(THREAD)]
    script.write_text(THREADED_WALK.format(paths=list(map(str, paths)), walks=4))
    report.run("threads: walks", [program, "walk", script], environment)


def main() -> int:
    argparse.ArgumentParser(prog="make sanitize", description=__doc__).parse_args()
    report = Report()
    manifest()
    addresses(report)
    threads(report)
    print("FAIL" if report.failed else "pass: nothing was reported but what was planted")
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
