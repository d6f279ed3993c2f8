"""The first thing to run: is the package whole, and does it answer? A few seconds, no GPU, no torch."""

import numpy as np

import gg_runtime

H200 = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}


def test_the_package_is_whole():
    kernels = gg_runtime.kernels()
    assert {"basic", "pack"} <= {kernel["kernel"] for kernel in kernels}
    assert gg_runtime.verify() >= len(kernels)
    assert sorted(gg_runtime.manifest()["artifacts"]) == [kernel["name"] for kernel in kernels]


def test_it_multiplies_and_tells_what_a_gpu_would_run():
    random = np.random.default_rng(0)
    sizes = [(64, 48, 32), (5, 7, 3), (0, 4, 8), (4, 4, 0)]
    A = [random.integers(-2, 3, (m, k)).astype(np.float16) for m, n, k in sizes]
    B = [random.integers(-2, 3, (k, n)).astype(np.float16) for m, n, k in sizes]
    for a, b, c in zip(A, B, gg_runtime.group_gemm(A, B)):
        np.testing.assert_array_equal(c, a @ b)
    chosen = gg_runtime.explain(A, B, device=H200)
    assert chosen.variant in {kernel["name"] for kernel in gg_runtime.kernels()}
    assert chosen.launches == 1
