"""Tests that need two GPUs."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def two_gpus():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip(f"torch sees {torch.cuda.device_count()} CUDA device(s), two are needed")
