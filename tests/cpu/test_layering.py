"""csrc in floors: each folder includes its own headers and those of the floors below it, and none above."""

import re

import pytest
from builder_sandbox import ROOT

FLOORS = ["abi", "driver", "arrays", "forms", "select", "launch", "api"]  # from the ground up
CSRC = ROOT / "csrc"
FILES = sorted(path.relative_to(CSRC) for path in CSRC.rglob("*.[ch]*"))


def test_every_file_is_on_a_floor():
    assert {path.parts[0] for path in FILES} == set(FLOORS)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_include_goes_up(path):
    text = (CSRC / path).read_text()
    own = FLOORS.index(path.parts[0])
    for included in re.findall(r'#include "([^"]+)"', text):
        if included == "abi.h":  # generated, for the ground floor
            continue
        assert (CSRC / included).is_file(), f"{included} is no path from csrc"
        assert FLOORS.index(included.split("/")[0]) <= own, f"{path} includes {included}"
