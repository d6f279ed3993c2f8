"""The policies of the `hopper` kernels: each answers all that the pipeline asks, so one can take another's place."""

import ast
import importlib

import pytest
from builder_sandbox import ROOT

from aot.spec.abi import EPILOGUES, SCALINGS

pytestmark = pytest.mark.compiler
KERNELS = ROOT / "aot/kernels"
PIPELINE = [*(KERNELS / "hopper").glob("*.py"), *(KERNELS / "epilogues").glob("*.py")]
BIAS = {"has_bias", "bias_row", "bias_stride"}


def policies(module: str) -> list:
    """The aggregates that a module of aot/kernels defines."""
    found = vars(importlib.import_module(f"aot.kernels.{module}")).values()
    return [each for each in found if getattr(each, "__triton_aggregate__", False) and each.__module__.endswith(module)]


def schedules() -> list:
    files = (KERNELS / "hopper/schedules").glob("[!_]*.py")
    found = [policy for file in files for policy in policies(f"hopper.schedules.{file.stem}")]
    return [policy for policy in found if policy.__name__.endswith("Schedule")]


def asked_of(policy: str) -> set[str]:
    """The names after `work.<policy>.` in the pipeline."""
    nodes = [node for path in PIPELINE for node in ast.walk(ast.parse(path.read_text()))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)]
    return {node.attr for node in attributes if node.value.attr == policy}


def answers(policy) -> set[str]:
    return {*policy.__aggregate_fields__, *vars(policy)}


def test_every_schedule_answers_the_pipeline():
    asked = asked_of("schedule")
    assert {"first", "next", "load_a", "load_b", "store", "HAS_BIAS"} <= asked and len(schedules()) == 2
    for schedule in schedules():
        optional = set() if schedule.__aggregate_defaults__["HAS_BIAS"] else BIAS
        assert asked - optional <= answers(schedule), schedule.__name__


def test_every_scale_mode_answers_the_pipeline():
    asked = asked_of("scaling")
    found = policies("hopper.scaling")
    assert {"PROMOTES", "promote", "apply"} <= asked and len(found) == len(SCALINGS)
    for scaling in found:
        assert asked <= answers(scaling), scaling.__name__


def test_every_epilogue_has_a_file_and_answers_the_pipeline():
    asked = asked_of("epilogue") | {"SUMS_PER_OUTPUT"}
    assert {"apply", "zeros"} <= asked
    for name in EPILOGUES:
        (epilogue,) = policies(f"epilogues.{name}")
        assert asked <= answers(epilogue), name
