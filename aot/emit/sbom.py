"""The wheel's bill of materials: what is in it that others wrote, and what made it. CycloneDX, placed as PEP 770 says.

setup.py writes it into the wheel. Standard library alone: whoever links a wheel has nothing else of `aot`.
"""

import hashlib
import json
import os
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "build/aot/manifest.json"
PINS = ROOT / "requirements/wheel.txt"
DLPACK = ROOT / "csrc/abi/dlpack/dlpack.h"
NAME = "gg_runtime.cdx.json"  # in the wheel's .dist-info/sboms
SPEC = "1.6"
LLVM = "Apache-2.0 WITH LLVM-exception"


@dataclass(frozen=True)
class Component:
    """`version`: its name in `versions()`; a component that has none there took no part."""

    name: str
    version: str
    license: str  # an SPDX expression, or the name of a license that has none
    purl: str  # with {version}
    what: str
    notice: str | None = None  # its license's text in the wheel, where it asks for that
    file: Path | None = None  # of what is kept here: goes in by its hash


WHEEL = Component("gg_runtime", "gg_runtime", "MIT", "pkg:pypi/gg-runtime@{version}", "this wheel")
IN_THE_WHEEL = (
    Component(
        "pybind11", "pybind11", "BSD-3-Clause", "pkg:pypi/pybind11@{version}", "headers compiled into _C",
        notice="LICENSES/pybind11.txt",
    ),
    Component(
        "dlpack", "dlpack", "Apache-2.0", "pkg:github/dmlc/dlpack@v{version}", "header compiled into _C",
        notice="csrc/abi/dlpack/LICENSE", file=DLPACK,
    ),
    Component("libc++", "ziglang", LLVM, "pkg:pypi/ziglang@{version}#ziglang/lib/libcxx", "linked into _C"),
    Component("libc++abi", "ziglang", LLVM, "pkg:pypi/ziglang@{version}#ziglang/lib/libcxxabi", "linked into _C"),
    Component(
        "compiler_rt", "ziglang", "MIT", "pkg:pypi/ziglang@{version}#ziglang/lib/compiler_rt", "linked into _C",
        notice="LICENSES/ziglang.txt",
    ),
)  # fmt: skip
MADE_BY = (
    Component("triton", "triton", "MIT", "pkg:pypi/triton@{version}", "compiles the kernels to PTX"),
    Component(
        "ptxas", "ptxas", "NVIDIA CUDA Toolkit End User License Agreement", "pkg:generic/nvidia/ptxas@{version}",
        "assembles PTX to machine code; Triton's wheel carries it",
    ),
    Component("ziglang", "ziglang", "MIT", "pkg:pypi/ziglang@{version}", "compiles and links _C"),
    Component("setuptools", "setuptools", "MIT", "pkg:pypi/setuptools@{version}", "makes the wheel"),
    Component("auditwheel", "auditwheel", "MIT", "pkg:pypi/auditwheel@{version}", "gives the wheel its platform tag"),
)  # fmt: skip


def versions() -> dict[str, str]:
    """By name: the pins of the wheel's requirements, the compilers of the kernels, the headers kept here."""
    found = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", PINS.read_text(), re.MULTILINE))
    manifest = json.loads(MANIFEST.read_text())
    found |= {compiler: manifest[compiler] for compiler in ("triton", "ptxas")}
    numbers = re.findall(r"^#define DLPACK_(?:MAJOR|MINOR)_VERSION (\d+)$", DLPACK.read_text(), re.MULTILINE)
    return found | {"dlpack": ".".join(numbers)}


def sbom_text(version: str) -> str:
    """For the wheel of that version, from build/aot and the pins: the same for the same inputs, on every machine."""
    found = versions()
    wheel = _entry(WHEEL, version, "library")
    parts = [_entry(one, found[one.version], "library") for one in IN_THE_WHEEL if one.version in found]
    tools = [_entry(one, found[one.version], "application") for one in MADE_BY if one.version in found]
    kernels = {
        "type": "file",
        "bom-ref": "gg_runtime/manifest.json",
        "name": "gg_runtime/manifest.json",
        "description": "names every kernel image in the wheel with its sha256",
        "hashes": [_sha256(MANIFEST)],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": _time() | {"lifecycles": [{"phase": "build"}], "component": wheel},
        "components": [kernels, *parts],
        "dependencies": [
            {"ref": wheel["bom-ref"], "dependsOn": sorted(one["bom-ref"] for one in [kernels, *parts])},
            *({"ref": one["bom-ref"]} for one in [kernels, *parts]),
        ],
        "formulation": [{"components": tools}],
    }
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'gg_runtime:{content}')}"
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _entry(component: Component, version: str, kind: str) -> dict:
    purl = component.purl.format(version=version)
    spdx = re.fullmatch(r"[\w.-]+( WITH [\w.-]+)?", component.license)
    entry = {
        "type": kind,
        "bom-ref": purl if kind == "library" else f"made by {purl}",
        "name": component.name,
        "version": version,
        "description": component.what,
        "licenses": [{"expression": component.license} if spdx else {"license": {"name": component.license}}],
        "purl": purl,
    }
    return entry | ({"hashes": [_sha256(component.file)]} if component.file else {})


def _sha256(path: Path) -> dict:
    return {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}


def _time() -> dict:
    """The date that the build was told, as the wheel's files have it; none otherwise."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return {"timestamp": datetime.fromtimestamp(int(epoch), timezone.utc).isoformat()} if epoch else {}
