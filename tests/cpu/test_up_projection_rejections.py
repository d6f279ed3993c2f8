"""Wrong a_index, activation, gate_up and preactivation of grouped_mm: each is refused with its own message."""

import pytest
from activation_formulas import GATED, UNGATED
from refusals import arguments, assert_says, refused

import gg_runtime
from arrays import CPU, array, matrix

try:
    import torch
except ImportError:
    torch = None


def index(rows=20, dtype="int32", **facts):
    return array(rows, dtype=dtype, **facts)


def taken(**given) -> bool:
    return type(gg_runtime._C.grouped_mm(**given)) is gg_runtime._C.OnCpu


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_right_arguments_are_taken(dtype):
    given = arguments(device_type=CPU) | {"a_index": index(dtype=dtype, device_type=CPU)}
    assert taken(**given) and taken(**given, out=matrix(20, 48, device_type=CPU))
    kept = matrix(20, 48, pad=3, device_type=CPU)
    for activation in GATED:
        out = matrix(20, 24, device_type=CPU)
        assert taken(**given, activation=activation, gate_up="interleaved", out=out, preactivation=kept)
    for activation in UNGATED:
        assert taken(**given, activation=activation, out=matrix(20, 48, device_type=CPU), preactivation=kept)


@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16"])
def test_an_index_of_another_dtype(dtype):
    text = refused(TypeError, **arguments(), a_index=index(dtype=dtype))
    assert_says(text, f"a_index has dtype {dtype}", "int32 or int64", "convert")


@pytest.mark.parametrize("shape", [(), (4, 5), (1, 1, 1)])
def test_an_index_of_another_shape(shape):
    given = array(*shape, dtype="int32")
    text = refused(ValueError, **arguments(), a_index=given)
    assert_says(text, f"a_index has shape {list(shape)}", "1 dimension is needed")


def test_an_index_with_gaps_elsewhere_or_between_elements():
    given = index()
    given.strides = (2,)
    assert_says(refused(ValueError, **arguments(), a_index=given), "a_index", "strides [2]", "pass a contiguous copy")
    given = index(device=1)
    assert_says(refused(ValueError, **arguments(), a_index=given), "a_index is on cuda:1", "mat_a is on cuda:0")
    given = index(dtype="int64")
    given.address += 4
    assert_says(refused(ValueError, **arguments(), a_index=given), "a_index", "no multiple of 8 bytes")


@pytest.mark.parametrize("which", ["a_index", "preactivation"])
def test_what_is_no_array(which):
    with pytest.raises(TypeError, match=f"{which} is a str; an array of torch"):
        gg_runtime._C.grouped_mm(**arguments(), activation="silu", **{which: "text"})


def test_an_index_into_e4m3():
    text = refused(ValueError, **arguments(dtype="float8_e4m3fn"), a_index=index())
    assert_says(text, "a_index", "float8_e4m3fn", "float16 and bfloat16", "mat_a[a_index]")


@pytest.mark.parametrize("which", ["activation", "gate_up"])
def test_words_that_nobody_knows(which):
    known = [*GATED, *UNGATED] if which == "activation" else ["gate_first", "up_first", "interleaved"]
    for word in ("SwiGLU", "none", ""):
        text = refused(ValueError, **arguments(), **{"activation": "swiglu", which: word})
        assert_says(text, f"{which} is {word!r}", *known)
    for word, kind in ((3, "an int"), (["swiglu"], "a list"), (b"swiglu", "a bytes")):
        text = refused(TypeError, **arguments(), **{"activation": "swiglu", which: word})
        assert_says(text, f"{which} is {kind}; pass one of", *known)
    assert "none" not in text.split("pass one of")[1].replace("None", "")


def test_a_gate_order_is_read_without_an_activation_too():
    assert_says(refused(ValueError, **arguments(), gate_up="gates"), "gate_up is 'gates'", "interleaved")


@pytest.mark.parametrize("activation", GATED)
def test_an_odd_number_of_columns_has_no_pairs(activation):
    text = refused(ValueError, **arguments(columns=47), activation=activation)
    assert_says(text, f"activation is '{activation}'", "gate and up", "N=47", "even")
    assert taken(**arguments(columns=47, device_type=CPU), activation="relu2")


@pytest.mark.parametrize("out_dtype", ["float32", "float8_e4m3fn"])
def test_an_activation_of_an_output_that_is_not_of_16_bits(out_dtype):
    given = arguments(dtype="float8_e4m3fn", device_type=CPU)
    text = refused(ValueError, **given, activation="silu", out_dtype=out_dtype)
    assert_says(text, "activation is 'silu'", out_dtype, "float16 or bfloat16")
    assert taken(**given, activation="silu") and taken(**given, activation="silu", out_dtype="float16")


def test_outputs_of_another_shape():
    text = refused(ValueError, **arguments(), activation="swiglu", out=matrix(64, 48))
    assert_says(text, "out has shape [64, 48]", "the product has [64, 24]")
    text = refused(ValueError, **arguments(), a_index=index(), out=matrix(64, 48))
    assert_says(text, "out has shape [64, 48]", "the product has [20, 48]")


def kept(**given) -> dict:
    return {**arguments(), "activation": "swiglu", **given}


def test_preactivations_of_another_shape_dtype_or_place():
    text = refused(ValueError, **kept(preactivation=matrix(64, 24)))
    assert_says(text, "preactivation has shape [64, 24]", "the pre-activation has [64, 48]")
    text = refused(ValueError, **kept(a_index=index(), preactivation=matrix(64, 48)))
    assert_says(text, "preactivation has shape [64, 48]", "[20, 48]")
    text = refused(TypeError, **kept(preactivation=matrix(64, 48, dtype="float32")))
    assert_says(text, "preactivation has dtype float32", "float16", "pass an array of that dtype")
    text = refused(ValueError, **kept(preactivation=matrix(64, 48, device=1)))
    assert_says(text, "preactivation is on cuda:1", "mat_a is on cuda:0")
    text = refused(ValueError, **kept(preactivation=index(64, dtype="float16")))
    assert_says(text, "preactivation has 1 dimension;", "reshape")


def test_preactivations_whose_rows_are_not_in_one_piece():
    text = refused(ValueError, **kept(preactivation=matrix(64, 48, order="t")))
    assert_says(text, "preactivation has stride 64 between columns", "row-major")
    given = matrix(64, 48)
    given.strides = (0, 1)
    assert_says(refused(ValueError, **kept(preactivation=given)), "preactivation has elements that share memory")


def test_a_preactivation_needs_an_activation():
    text = refused(ValueError, **arguments(), preactivation=matrix(64, 48))
    assert_says(text, "preactivation", "without an activation", "leave it out")


@pytest.mark.parametrize("written", ["out", "preactivation"])
@pytest.mark.parametrize("which", ["mat_a", "mat_b", "offs", "bias", "a_index"])
def test_what_is_written_shares_no_memory_with_what_is_read(written, which):
    given = kept(bias=matrix(3, 48), a_index=index(), out=matrix(20, 24), preactivation=matrix(20, 48))
    given[written].address = given[which].address
    assert_says(refused(ValueError, **given), f"{written} shares memory with {which}", "separate tensor")


def test_the_output_and_the_preactivation_are_apart():
    given = kept(out=matrix(64, 24), preactivation=matrix(64, 48))
    given["out"].address = given["preactivation"].address + 2 * (64 * 48 - 1)
    assert_says(refused(ValueError, **given), "preactivation shares memory with out", "both are written")
    facts = {"device_type": CPU}
    given = {**arguments(**facts), "activation": "swiglu", "preactivation": matrix(64, 48, pad=24, **facts)}
    out = matrix(64, 24, pad=48, **facts)
    out.address = given["preactivation"].address + 2 * 48
    assert taken(**given, out=out), "columns of one buffer, side by side"


@pytest.mark.skipif(torch is None, reason="torch, which records gradients, is not installed")
def test_gradients_that_would_be_lost():
    a, b = torch.zeros(4, 8).half(), torch.zeros(2, 8, 6).half()
    offs = torch.tensor([1, 4], dtype=torch.int32)
    wanted = torch.zeros(4, 6).half().requires_grad_()
    with pytest.raises(ValueError, match=r"preactivation requires grad .*preactivation\.detach"):
        gg_runtime.grouped_mm(a, b, offs=offs, activation="swiglu", preactivation=wanted)
    with pytest.raises(RuntimeError, match="mat_a requires grad"):
        gg_runtime.grouped_mm(a.requires_grad_(), b, offs=offs, activation="swiglu")
    with torch.no_grad():
        gg_runtime.grouped_mm(a, b, offs=offs, activation="swiglu", preactivation=wanted)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_frameworks_are_not_mixed_on_the_cpu():
    a, b = torch.zeros(4, 8).half(), torch.zeros(2, 8, 6).half()
    offs = torch.tensor([1, 4], dtype=torch.int32)
    with pytest.raises(TypeError, match="must be of one"):
        gg_runtime.grouped_mm(a, b, offs=offs, a_index=offs.numpy())
    with pytest.raises(TypeError, match="must be of one"):
        gg_runtime.grouped_mm(a, b, offs=offs, activation="silu", preactivation=torch.zeros(4, 6).half().numpy())
