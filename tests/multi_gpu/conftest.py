"""Tests that need two GPUs."""

from pathlib import Path

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("gpu")


@pytest.fixture(scope="session", autouse=True)
def two_gpus():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip(f"torch sees {torch.cuda.device_count()} CUDA device(s), two are needed")
