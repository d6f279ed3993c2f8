"""Many threads: at the first use in a process, and from then on."""

import threading

import pytest

torch = pytest.importorskip("torch")

import child  # noqa: E402
import gg_runtime  # noqa: E402
from oracle import exact_products, fill_sparse_integers  # noqa: E402

THREADS = 8

FIRST_USE = """
import threading, torch, gg_runtime
barrier, wrong = threading.Barrier(8), []

def work(seed):
    try:
        rows, columns = 30 + seed, 64 if seed % 2 else 57
        with torch.cuda.stream(torch.cuda.Stream()):
            A = torch.randint(-2, 3, (rows, 72), device="cuda").half()
            B = torch.randint(-2, 3, (72, columns), device="cuda").half()
            torch.cuda.current_stream().synchronize()
            barrier.wait()
            (C,) = gg_runtime.group_gemm([A], [B])
            if not torch.equal(C, A @ B):
                wrong.append(seed)
    except BaseException as error:
        wrong.append(repr(error))
        raise

torch.ones(1, device="cuda")
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
"""


def test_first_use_in_eight_threads_at_once():
    child.run(FIRST_USE)


def test_steady_use_in_eight_threads():
    failures = []

    def work(seed):
        try:
            sizes = [(20 + seed, 40, 60), (64, 8 * seed + 8, 96)] * (1 if seed % 2 else 20)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                A = [torch.empty(m, k, device="cuda", dtype=torch.float16) for m, n, k in sizes]
                B = [torch.empty(k, n, device="cuda", dtype=torch.float16) for m, n, k in sizes]
                fill_sparse_integers([*A, *B], seed)
                expected = exact_products(A, B)
                plan = gg_runtime.Plan(A, B)
                for _ in range(50):
                    results = [*gg_runtime.group_gemm(A, B), *plan.run()]
                    assert all(torch.equal(c, e) for c, e in zip(results, expected * 2))
        except BaseException as error:
            failures.append((seed, repr(error)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_one_plan_shared_by_eight_threads():
    A = [torch.empty(100, 80, device="cuda", dtype=torch.float16) for _ in range(40)]
    B = [torch.empty(80, 60, device="cuda", dtype=torch.float16) for _ in range(40)]
    fill_sparse_integers([*A, *B])
    expected = exact_products(A, B)
    plan = gg_runtime.Plan(A, B)
    torch.cuda.synchronize()
    threads = [threading.Thread(target=lambda: [plan.run() for _ in range(100)]) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(torch.equal(c, e) for c, e in zip(plan.out, expected))
