"""requirements/*.lock against the lists that they pin: exact versions with hashes, for all platforms and Pythons."""

import importlib.metadata
import re

import pytest
from builder_sandbox import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings it under its old name
    import tomli as tomllib

FOLDER = ROOT / "requirements"
LOCKS = sorted(FOLDER.glob("*.lock"))
ADVICE = "run `make lock`"


def named(path) -> list[Requirement]:
    """What a list asks for, with what it includes."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found += named(path.parent / line[3:])
        elif line and not line.startswith("#"):
            found.append(Requirement(line))
    return found


def locked(path) -> dict[str, list[tuple[Requirement, list[str]]]]:
    """Name -> what the lock pins it to, and the hashes of each pin; more than one where Pythons need different ones."""
    found = {}
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    for line in text.splitlines():
        requirement, *hashes = line.split(" --hash=")
        pin = Requirement(requirement)
        found.setdefault(canonicalize_name(pin.name), []).append((pin, [one.split()[0] for one in hashes]))
    return found


def pins(requirements) -> dict[str, str]:
    """Name -> version of those that this interpreter installs."""
    here = [one for one in requirements if one.marker is None or one.marker.evaluate()]
    return {canonicalize_name(one.name): re.fullmatch(r"==([^,*]+)", str(one.specifier)).group(1) for one in here}


def pinned(path) -> dict[str, str]:
    return pins(pin for entries in locked(path).values() for pin, _ in entries)


def test_every_list_that_builds_or_lints_has_its_lock():
    assert [path.stem for path in LOCKS] == ["build", "lint"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_what_its_list_names(path):
    there = locked(path)
    for wanted in named(path.with_suffix(".txt")):
        entries = there.get(canonicalize_name(wanted.name), [])
        versions = [str(pin.specifier) for pin, _ in entries]
        assert str(wanted.specifier) in versions, f"{path.name} has {wanted.name} {versions}, not {wanted}: {ADVICE}"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_pin_of_a_lock_is_exact_and_has_hashes(path):
    for name, entries in locked(path).items():
        for pin, hashes in entries:
            assert re.fullmatch(r"==[^,*]+", str(pin.specifier)), f"{path.name}: {pin}"
            assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), f"{path.name}: {name}"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_place_to_take_packages_from(path):
    """Whoever installs says where from; a hash says what."""
    text = path.read_text()
    assert "://" not in text, path.name
    assert re.findall(r"^-\S+|--(?!hash=)\S+", text, re.MULTILINE) == [], path.name


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_locks_agree_on_versions(path):
    build = pinned(FOLDER / "build.lock")
    both = {name: (version, build[name]) for name, version in pinned(path).items() if name in build}
    assert {name: pair for name, pair in both.items() if len(set(pair)) > 1} == {}, ADVICE


def test_this_environment_has_the_versions_of_the_lock():
    wanted = pinned(FOLDER / "build.lock")
    found = {name: importlib.metadata.version(name) for name in wanted}
    assert found == wanted, "the environment is of other versions: run `make build`"


def test_what_builds_the_wheel_is_pinned_alike_for_those_who_use_pip_alone():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    wheel = pins(named(FOLDER / "wheel.txt"))
    asked = pins(map(Requirement, requires))
    assert asked == {name: wheel[name] for name in asked}, "pyproject.toml and requirements/wheel.txt differ"
    assert asked.keys() >= {"setuptools", "pybind11"}


def test_lists_agree_on_versions():
    """Of everything, tests and tuner included, one version for one interpreter."""
    versions = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for name, version in pins(named(path)).items():
            versions.setdefault(name, {}).setdefault(version, []).append(path.name)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
