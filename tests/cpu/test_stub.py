"""gg_runtime/_C.pyi and facts.py against the extension: names, arguments, and what the dicts have in them."""

import ast
import json
import re
import types
import typing

import pytest
from builder_sandbox import ROOT

import gg_runtime
from arrays import operands
from gg_runtime import _C, facts
from processes import run_python

STUB = ast.parse((ROOT / "gg_runtime/_C.pyi").read_text())
H200 = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}
# What pybind11 says of an argument's type, by what the stub says.
DOCUMENTED = {"Any": "object", "int": "typing.SupportsInt | typing.SupportsIndex", "str": "str", "bool": "bool"}
DOCUMENTED["float"] = DOCUMENTED["int"].replace("SupportsInt", "SupportsFloat")


def public(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def defined(body: list[ast.stmt]) -> set[str]:
    """The names that a stub defines; those of imports are not its own."""
    functions = {one.name for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
    variables = {one.target.id for one in body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    return {name for name in functions | variables if not name.startswith("_")}


def definitions(body: list[ast.stmt], name: str) -> list[ast.FunctionDef]:
    return [one for one in body if isinstance(one, ast.FunctionDef) and one.name == name]


def argument_types(function: ast.FunctionDef) -> list[str]:
    """Of the positional arguments, as pybind11 writes them; `self` is none."""
    assert not function.args.kwonlyargs and not function.args.args, f"{function.name}: arguments have no names"
    given = [one for one in function.args.posonlyargs if one.arg != "self"]
    return [DOCUMENTED[ast.unparse(one.annotation)] for one in given]


def documented_types(doc: str) -> list[list[str]]:
    """Of each signature in a docstring: "name(self: X, arg0: object, arg1: str) -> None"."""
    signatures = re.findall(r"^(?:\d+\. )?\w+\((.*)\) -> ", doc, re.M)
    return [[one.split(": ", 1)[1] for one in text.split(", ") if one.startswith("arg")] for text in signatures]


CLASSES = {one.name: one for one in STUB.body if isinstance(one, ast.ClassDef)}
FUNCTIONS = [one for one in STUB.body if isinstance(one, ast.FunctionDef)]


def test_the_stub_has_the_names_of_the_extension_and_no_others():
    assert defined(STUB.body) == public(_C)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_members_of_the_extensions(name):
    assert defined(CLASSES[name].body) == public(getattr(_C, name))
    for member in public(getattr(_C, name)):
        (stub,) = definitions(CLASSES[name].body, member)
        is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in stub.decorator_list)
        assert is_property == isinstance(vars(getattr(_C, name))[member], property), member


PAST_PYBIND11 = ("grouped_mm", "fused_experts", "keep_product")  # functions of the C API, which document nothing


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.name not in PAST_PYBIND11], ids=lambda one: one.name)
def test_a_function_has_the_arguments_that_pybind11_documents(function):
    assert [argument_types(function)] == documented_types(getattr(_C, function.name).__doc__)


def test_a_plan_is_made_from_the_arguments_that_pybind11_documents():
    made = [argument_types(one) for one in definitions(CLASSES["Plan"].body, "__init__")]
    assert len(made) == 2
    assert made == documented_types(_C.Plan.__init__.__doc__)


def test_grouped_mm_knows_the_names_of_the_stub_in_their_order():
    """It documents nothing, as it is no function of pybind11's; but it counts its arguments and knows their names."""
    (function,) = definitions(STUB.body, "grouped_mm")
    names = [one.arg for one in function.args.args]
    with pytest.raises(TypeError, match=f"takes {len(names)} arguments"):
        _C.grouped_mm(*[None] * (len(names) + 1))
    for name in names:
        with pytest.raises(TypeError) as caught:
            _C.grouped_mm(**{name: None})
        assert "has no argument" not in str(caught.value), name
    with pytest.raises(TypeError, match="has no argument 'group_A'"):
        _C.grouped_mm(group_A=None)
    source = (ROOT / "csrc/api/bindings.cpp").read_text()
    (listed,) = re.findall(r"grouped_mm_names\[\] = \{(.*?)\};", source, re.S)
    assert re.findall(r'"(\w+)"', listed) == names


def test_fused_experts_takes_as_many_arguments_as_the_stub_has():
    (function,) = definitions(STUB.body, "fused_experts")
    count = len(function.args.posonlyargs)
    with pytest.raises(TypeError, match=f"takes {count} arguments, 1 were given"):
        _C.fused_experts(None)
    with pytest.raises(TypeError, match=f"takes {count} arguments, {count + 1} were given"):
        _C.fused_experts(*[None] * (count + 1))


def misfits(value: object, kind: object, where: str) -> list[str]:
    """Where a value is not what an annotation says, one sentence each."""
    origin = typing.get_origin(kind)
    if typing.is_typeddict(kind):
        told = typing.get_type_hints(kind)
        missing, unknown = kind.__required_keys__ - value.keys(), value.keys() - told.keys()
        found = [f"{where} lacks {name}" for name in sorted(missing)]
        found += [f"{where} has {name}, which {kind.__name__} does not know" for name in sorted(unknown)]
        both = value.keys() & told.keys()
        return found + [one for name in sorted(both) for one in misfits(value[name], told[name], f"{where}.{name}")]
    if origin is dict:
        key, each = typing.get_args(kind)
        keys = [one for name in value for one in misfits(name, key, f"{where}'s key")]
        return keys + [one for name in value for one in misfits(value[name], each, f"{where}.{name}")]
    if origin is list:
        (each,) = typing.get_args(kind)
        return [one for index, item in enumerate(value) for one in misfits(item, each, f"{where}[{index}]")]
    if origin in (typing.Union, types.UnionType):
        return [] if not all(misfits(value, one, where) for one in typing.get_args(kind)) else [f"{where} is {value!r}"]
    return [] if type(value) is kind else [f"{where} is {value!r}, no {kind}"]


def test_kernels_are_what_the_facts_say():
    assert misfits(gg_runtime.kernels(), list[facts.Kernel], "kernels") == []


def test_the_manifest_is_what_the_facts_say():
    assert misfits(gg_runtime.manifest(), facts.Manifest, "manifest") == []


def test_every_key_that_an_entry_of_the_manifest_may_have_occurs():
    entries = list(gg_runtime.manifest()["artifacts"].values())
    assert facts.ManifestEntry.__annotations__.keys() <= {name for entry in entries for name in entry}
    guaranteed = {name for entry in entries for name in entry["guarantees"]}
    assert typing.get_type_hints(facts.Guarantees).keys() == guaranteed


@pytest.mark.parametrize("shapes", [[(64, 64, 64)], [(1000, 1000, 1000), (64, 64, 63)], []])
def test_an_explanation_is_what_the_facts_say(shapes):
    A, B, out = operands(shapes)
    assert misfits(_C.explain_list(A, B, out, None, None, None, H200), facts.ExplanationFields, "explained") == []


def test_an_explanation_has_the_fields_that_the_extension_fills():
    assert typing.get_type_hints(gg_runtime.Explanation) == typing.get_type_hints(facts.ExplanationFields)


def test_a_device_and_a_loaded_kernel_are_what_the_facts_say(fake_cuda, tmp_path):
    settings = {"LD_LIBRARY_PATH": fake_cuda.current, "FAKE_CUDA_PARAMETERS": fake_cuda.parameters, "FAKE_CUDA_SM": 90}
    printed = run_python("""
from faults.child_prelude import *
from gg_runtime import _C
name = next(kernel["name"] for kernel in _C.kernels() if kernel["sm"] == 90)
report([_C.device(0), _C.load(name, 0)])
""", tmp_path, **settings)  # fmt: skip
    device, loaded = json.loads(printed)
    assert misfits(device, facts.DeviceFacts, "device") + misfits(loaded, facts.LoadedKernel, "loaded") == []


def test_a_misfit_is_found():
    kernel = gg_runtime.kernels()[0]
    assert misfits({**kernel, "sm": "90", "tile": 1}, facts.Kernel, "k") == [
        "k has tile, which Kernel does not know", "k.sm is '90', no <class 'int'>",
    ]  # fmt: skip
    assert misfits({name: kernel[name] for name in kernel if name != "sm"}, facts.Kernel, "k") == ["k lacks sm"]
