"""Every test here runs on a GPU, with triton blocked; none of them may make the device unusable for the next."""

import functools
import gc
import sys

import pytest

import fresh_process
import no_triton

ARENA_BYTES = 256 << 20


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu_gib(needed): skipped where less GPU memory is free")


@pytest.fixture(scope="module", autouse=True)
def triton_cannot_be_imported():
    present = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "triton"}
    no_triton.install()
    yield
    del sys.modules["triton"]
    sys.modules.update(present)


@pytest.fixture(scope="session", autouse=True)
def cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    # A reference that rounds partial sums to 16 bits would widen the tolerance that is derived from it.
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return torch.cuda


@pytest.fixture(autouse=True)
def seeded_and_healthy(cuda):
    cuda.manual_seed_all(0)
    yield
    cuda.synchronize()  # a fault of an earlier launch belongs to the test that made it


@pytest.fixture(autouse=True)
def enough_memory(request, cuda):
    mark = request.node.get_closest_marker("gpu_gib")
    if mark is None:
        yield
        return
    (needed,) = mark.args
    gc.collect()
    cuda.empty_cache()
    free, _ = cuda.mem_get_info()
    if free < needed << 30:
        pytest.skip(f"{free >> 30} GiB of GPU memory are free, {needed} are needed")
    yield
    gc.collect()
    cuda.empty_cache()


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="session")
def run_with_jax():
    """Runs a script in a fresh process, where JAX leaves memory to others."""
    pytest.importorskip("jax")
    run = functools.partial(fresh_process.run, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if run("import jax; print(jax.default_backend())").split()[-1] != "gpu":
        pytest.skip("this JAX sees no GPU")
    return run


@pytest.fixture(scope="session")
def all_arenas(cuda):
    from guarded_buffer import Arena

    return Arena(ARENA_BYTES, Arena.NAN), Arena(ARENA_BYTES, Arena.CANARY)


@pytest.fixture
def arenas(all_arenas):
    """An arena for inputs, whose padding is NaN, and one for outputs, whose padding is a canary."""
    for arena in all_arenas:
        arena.reset()
    return all_arenas
