"""What the builder's tests share: the folder that `make build` left, and its manifest."""

import json

import pytest
from trees import ROOT

GENERATED = ROOT / "build/aot"


@pytest.fixture(scope="session")
def generated():
    assert (GENERATED / "manifest.json").exists(), "these tests look at what `make build` made: run it first"
    return GENERATED


@pytest.fixture(scope="session")
def built(generated):
    """The entries of the manifest, by artifact name."""
    return json.loads((generated / "manifest.json").read_text())["artifacts"]
