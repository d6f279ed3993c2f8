"""What the builder's tests share: the folder that `make build` left, its manifest, and who needs the compiler."""

import json
from importlib.util import find_spec

import pytest
from builder_sandbox import ROOT

GENERATED = ROOT / "build/aot"


def pytest_configure(config):
    config.addinivalue_line("markers", "compiler: needs Triton, or a program that it carries")


def pytest_collection_modifyitems(items):
    if find_spec("triton") is None:
        reason = "Triton 3.9 has no wheel for this Python: another interpreter compiled the kernels"
        for item in items:
            if item.get_closest_marker("compiler"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def generated():
    assert (GENERATED / "manifest.json").exists(), "these tests look at what `make build` made: run it first"
    return GENERATED


@pytest.fixture(scope="session")
def built(generated):
    """The entries of the manifest, by artifact name."""
    return json.loads((generated / "manifest.json").read_text())["artifacts"]
