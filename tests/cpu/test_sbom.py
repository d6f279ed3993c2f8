"""The bill of materials in the wheel: valid CycloneDX, in its place, of the versions that are pinned and were built."""

import base64
import csv
import hashlib
import io
import json
import platform
import re
import sys
import zipfile

import pytest
from builder_sandbox import ROOT
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import gg_runtime
from aot.emit import sbom

PLACE = f"gg_runtime-{gg_runtime.__version__}.dist-info"
FROM_ZIG = {"libc++", "libc++abi", "compiler_rt"}  # the unwinder is the system's libgcc_s


@pytest.fixture(scope="module")
def wheel():
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    (path,) = (ROOT / "dist").glob(f"gg_runtime-*-{tag}-{tag}{sys.abiflags}-*_{platform.machine()}.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def text(wheel) -> str:
    return wheel.read(f"{PLACE}/sboms/{sbom.NAME}").decode()


@pytest.fixture(scope="module")
def document(text) -> dict:
    return json.loads(text)


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """What requirements/*.txt say, read here and not by the code under test."""
    lines = (ROOT / "requirements/build.txt").read_text() + (ROOT / "requirements/wheel.txt").read_text()
    return dict(re.match(r"([\w.-]+)==([^\s;]+)", line).groups() for line in lines.splitlines() if "==" in line)


def named(components: list[dict]) -> dict[str, str]:
    return {one["name"]: one["version"] for one in components if "version" in one}


def test_it_is_valid_cyclonedx(text):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_validator_tells_what_is_wrong(document):
    broken = json.dumps(document | {"components": [{"name": "of no type"}]})
    assert "'type' is a required property" in str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken))


def test_it_names_what_is_compiled_in_by_the_pinned_versions(document, pins):
    from_zig = dict.fromkeys(FROM_ZIG, pins["ziglang"]) if "ziglang" in pins else {}
    header = (ROOT / "csrc/abi/dlpack/README.md").read_text()
    dlpack = re.search(r"version (\d+\.\d+)", header).group(1)
    assert named(document["components"]) == from_zig | {"pybind11": pins["pybind11"], "dlpack": dlpack}
    assert document["metadata"]["component"]["version"] == gg_runtime.__version__


def test_it_names_the_compilers_that_made_this_wheel(document, pins, wheel):
    (made_by,) = document["formulation"]
    manifest = json.loads(wheel.read("gg_runtime/manifest.json"))
    tools = {"triton", "ziglang", "setuptools", "auditwheel"} & pins.keys()
    assert named(made_by["components"]) == {name: pins[name] for name in tools} | {"ptxas": manifest["ptxas"]}
    assert manifest["triton"] == pins["triton"]


def test_it_leads_to_every_kernel_image(document, wheel):
    (file,) = (one for one in document["components"] if one["type"] == "file")
    digest = hashlib.sha256(wheel.read(file["name"])).hexdigest()
    assert file["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_what_asks_for_its_license_text_has_it_in_the_wheel(document, wheel):
    """The exception of LLVM's license asks for none in compiled form."""
    kept = {name.removeprefix(f"{PLACE}/licenses/") for name in wheel.namelist() if f"{PLACE}/licenses/" in name}
    assert "LICENSE" in kept
    asking = {one.notice for one in sbom.IN_THE_WHEEL if one.license != sbom.LLVM and one.version in sbom.versions()}
    assert None not in asking
    assert asking <= kept, f"copy the license of the component to {asking - kept}, by which license-files finds it"


def test_it_is_the_only_one_and_the_archive_vouches_for_it(wheel, text):
    path = f"{PLACE}/sboms/{sbom.NAME}"
    assert [name for name in wheel.namelist() if "/sboms/" in name and not name.endswith("/")] == [path]
    records = {row[0]: row[1] for row in csv.reader(io.StringIO(wheel.read(f"{PLACE}/RECORD").decode()))}
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    assert records[path] == f"sha256={digest}"


def test_the_same_build_gives_the_same_text(monkeypatch, text):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    assert sbom.sbom_text(gg_runtime.__version__) == text
    assert json.loads(text)["metadata"]["timestamp"] == "2026-01-01T00:00:00+00:00"


def test_another_content_has_another_serial_number_and_no_date_of_the_day(monkeypatch, document):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    other = json.loads(sbom.sbom_text("9.9"))
    assert other["serialNumber"] != document["serialNumber"]
    assert "timestamp" not in other["metadata"]
