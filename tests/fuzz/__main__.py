"""`python -m fuzz`: walks on the GPU for some seconds. `again FILE` or `--only` repeats one, `order` needs no GPU."""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from fuzz import workers
from fuzz.actions import walk
from fuzz.shrink import shrunk

STEPS = 300  # of a walk


def total(counts: dict, more: dict) -> None:
    for what, times in more.items():
        counts[what] = counts.get(what, 0) + times


def table(seeds: list[int], counts: dict, seconds: float) -> str:
    lines = [f"{len(seeds)} walks, seeds {seeds[0]} to {seeds[-1]}, {seconds:.0f} s" if seeds else "no walk was ended"]
    width = max(map(len, counts), default=0)
    lines += [f"  {what:{width}} {times:9,}" for what, times in sorted(counts.items(), key=lambda item: -item[1])]
    return "\n".join(lines)


def run(options) -> int:
    began, seed, counts, seeds = time.monotonic(), options.seed, {}, []
    current = {}
    for message in workers.messages(workers.work, seed, options.steps, began + options.seconds):
        total(counts, message.get("counts", {}))
        if "began" in message:
            current = message
        elif "seed" in message:
            seeds.append(message["seed"])
        elif "failed" in message:
            print(table(seeds, counts, time.monotonic() - began), flush=True)
            return report(message["failed"], current, options)
    print(table(seeds, counts, time.monotonic() - began), flush=True)
    print("nothing was found")
    return 0


def report(failed: str, current: dict, options) -> int:
    """Says what went wrong, makes it small, and how to run it again: the last line."""
    if not current:
        print(f"FAILED before the first walk: {failed}")
        return 1
    seed = current["began"]
    print(f"FAILED in seed {seed}: {failed}", flush=True)
    actions = walk(seed, options.steps, *current["gpus"])
    least = shrunk(actions, lambda part: bool(workers.failure_of(part)), options.shrink_seconds)
    if len(least) == len(actions):
        print(f'not made smaller; run again: make fuzz ARGS="--only --seed {seed} --steps {options.steps}"')
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"seed-{seed}.json"
    path.write_text("[\n" + ",\n".join(json.dumps(action) for action in least) + "\n]\n")
    print(f"{len(least)} of {len(actions)} actions fail as well: {workers.failure_of(least) or 'now and then'}")
    print(path.read_text())
    print(f'run again: make fuzz ARGS="again {path}"')
    return 1


def again(actions: list[dict]) -> int:
    failed = workers.failure_of(actions)
    print(f"FAILED: {failed}" if failed else f"{len(actions)} actions: nothing was found")
    return int(bool(failed))


def order(options) -> int:
    """Walks against tests/faults/fake_cuda.c, which computes nothing: judged is the order of what it was asked."""
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # `aot`, behind the installed package

    from faults.fake_driver import FakeDriver
    from fuzz.order_runs import judged, least_failure, order_again

    with tempfile.TemporaryDirectory() as name:
        folder, counts, seeds = Path(name), {}, []
        fake, began = FakeDriver(folder), time.monotonic()
        for seed in range(options.seed, options.seed + options.walks):
            actions = walk(seed, options.steps, 2, options.sm >= 90)
            failed, more = judged(fake, folder, actions, FAKE_CUDA_SM=options.sm)
            if failed:
                print(f"FAILED in seed {seed}: {failed}", flush=True)
                print(least_failure(fake, folder, actions, options.sm))
                print(order_again(seed, options.steps, options.sm))
                return 1
            total(counts, more)
            seeds.append(seed)
        print(table(seeds, counts, time.monotonic() - began))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["run", "again", "order"], default="run")
    parser.add_argument("file", nargs="?", type=Path, help="for `again`: the actions, as a failure leaves them")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the first walk; the next ones follow")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each walk")
    parser.add_argument("--only", action="store_true", help="the walk of this seed alone")
    parser.add_argument("--walks", type=int, default=10, help="of `order`")
    parser.add_argument("--sm", type=int, default=90, help="of `order`: compute capability of the fake GPU")
    parser.add_argument("--shrink-seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="for the actions of a failure")
    options = parser.parse_args()
    if options.what == "order":
        return order(options)
    workers.import_ahead()
    if options.what == "again":
        return again(workers.load(options.file))
    if options.only:
        return again(walk(options.seed, options.steps, *workers.gpus_of_a_child()))
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
