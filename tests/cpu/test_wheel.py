"""The wheel of this interpreter, as a file: what is in it and what is not."""

import email
import platform
import re
import sys
import zipfile

import pytest
from builder_sandbox import ROOT


@pytest.fixture(scope="module")
def wheel():
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    (path,) = (ROOT / "dist").glob(f"gg_runtime-*-{tag}-{tag}{sys.abiflags}-*_{platform.machine()}.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def extension(wheel):
    (name,) = (name for name in wheel.namelist() if re.fullmatch(r"gg_runtime/_C\..*\.so", name))
    return wheel.read(name)


def test_it_holds_the_package_its_extension_and_its_manifest_and_nothing_else(wheel):
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "gg_runtime").rglob("*.py")}
    types = {"gg_runtime/py.typed", "gg_runtime/_C.pyi"}  # without these a checker takes all of the package for Any
    names = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    (shared_object,) = (name for name in names if re.fullmatch(r"gg_runtime/_C\..*\.so", name))
    assert names == sources | types | {"gg_runtime/manifest.json", shared_object}


def test_its_manifest_is_that_of_the_build(wheel, generated):
    assert wheel.read("gg_runtime/manifest.json") == (generated / "manifest.json").read_bytes()


def test_its_extension_holds_every_image(wheel, built, generated):
    shared_object = extension(wheel)
    for path in generated.glob("images/*"):
        assert path.read_bytes() in shared_object, path.name


def test_its_extension_names_no_folder_of_the_machine_that_made_it(wheel):
    shared_object = extension(wheel)
    for folder in (str(ROOT), sys.prefix, sys.base_prefix, "/home/", "/tmp/", "site-packages"):
        assert folder.encode() not in shared_object, folder


def test_it_installs_on_systems_since_glibc_2_17(wheel):
    """As README says. The tag is what auditwheel found true of the extension."""
    versions = re.findall(r"manylinux_2_(\d+)_", wheel.filename)
    assert versions and max(map(int, versions)) <= 17, wheel.filename


def test_it_asks_for_nothing_but_python(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata.get_all("Requires-Dist") is None
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("MIT", ">=3.10")
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_it_is_at_most_13_5_mb(wheel):
    wheel.fp.seek(0, 2)
    assert wheel.fp.tell() <= 13.5e6


def test_its_dates_are_those_of_the_release_not_of_the_day(wheel):
    assert {entry.date_time for entry in wheel.infolist()} == {(2026, 1, 1, 0, 0, 0)}
