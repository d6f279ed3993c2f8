"""Shared by all tests: what they import, the markers, and a driver that records instead of running."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
# The installed package is what is tested, so the checkout, which has `aot`, comes after it.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT] + [str(ROOT)]
sys.path.insert(0, str(ROOT / "tests"))

# A shell starts its background jobs with SIGINT ignored, and children inherit that: a build could not be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run; a slow, shared machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU with its driver, and torch for CUDA")


def pytest_collection_modifyitems(items):
    for item in items:
        if {"gpu", "multi_gpu"} & set(item.path.relative_to(ROOT / "tests").parts):
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory):
    """A driver that runs nothing, for code in processes of its own (tests/faults/fake_driver.py)."""
    from faults.fake_driver import FakeDriver

    return FakeDriver(tmp_path_factory.mktemp("fake_cuda"))
