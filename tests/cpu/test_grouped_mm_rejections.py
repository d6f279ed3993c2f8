"""Wrong arguments of grouped_mm: each is refused with its own message, before any driver is asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import arguments, assert_says, check, refused

import gg_runtime
from arrays import CPU, ROCM, ExchangeArray, array, matrix
from devices import A100, B200, H200


def test_right_arguments_are_taken_and_the_dtype_of_the_output_is_told():
    assert check(**arguments(device_type=CPU)) == "float16"
    assert check(**arguments(device_type=CPU, dtype="bfloat16")) == "bfloat16"
    assert check(**arguments(device_type=CPU, dtype="float8_e4m3fn")) == "bfloat16"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((32,), (3, 32, 48)),
        ((64, 32), (32,)),
        ((2, 2), (1,) * 4),
        ((1,) * 4, (3, 32, 48)),
    ],
)
def test_other_forms_name_the_shapes_and_the_way(a, b):
    mat_a, mat_b = (array(*shape) for shape in (a, b))
    text = refused(ValueError, mat_a=mat_a, mat_b=mat_b, offs=array(3, dtype="int32"))
    told = [str(list(shape)) if len(shape) < 4 else "[1, 1, 1, ...]" for shape in (a, b)]
    assert_says(text, *told, "mat_a [rows, K] and mat_b [E, K, N]", "[E, M, K] and [K, columns]", "group_gemm")


def test_offs_that_are_missing():
    given = arguments()
    del given["offs"]
    assert_says(refused(ValueError, **given), "offs is missing", "int32 [3]", "group_gemm")


@pytest.mark.parametrize("which", ["mat_a", "mat_b", "offs", "bias", "out", "scale_a", "scale_b"])
def test_things_that_are_no_arrays(which):
    dtype = "float8_e4m3fn" if which.startswith("scale") else "float16"
    with pytest.raises(TypeError, match=f"{which} is a str; an array of torch"):
        check(**arguments(dtype=dtype) | {which: "text"})


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_are_sent_to_the_other_function(kind):
    given = arguments()
    with pytest.raises(TypeError, match=f"mat_a is a {kind.__name__}; .*group_gemm"):
        check(**given | {"mat_a": kind([given["mat_a"]])})


def test_a_stack_of_n_by_k_is_told_to_be_turned():
    given = arguments(columns=32, depth=48)
    turned = arguments(columns=48, depth=32)
    assert_says(refused(ValueError, **given | {"mat_b": turned["mat_b"]}), "K=32 rows", "K=48", "mat_b.mT")


@pytest.mark.parametrize("which", ["mat_a", "mat_b"])
def test_matrices_that_are_missing(which):
    with pytest.raises(TypeError, match=f"{which} is None"):
        check(**arguments() | {which: None})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_dtypes_without_kernels(dtype):
    assert_says(refused(TypeError, **arguments(dtype=dtype)), "mat_a", dtype, "float8_e4m3fn is needed", "convert")


def test_mixed_dtypes():
    given = arguments() | {"mat_b": arguments(dtype="bfloat16")["mat_b"]}
    assert_says(refused(TypeError, **given), "mat_b has dtype bfloat16", "mat_a of float16", "convert")


def test_inner_sizes_that_differ():
    given = arguments() | {"mat_b": arguments(depth=40)["mat_b"]}
    assert_says(refused(ValueError, **given), "mat_b has K=40", "mat_a has K=32", "equal")


@pytest.mark.parametrize("shape", [(2,), (4,), (), (3, 1), (0,)])
def test_offs_of_another_shape(shape):
    offs = array(*shape, dtype="int32")
    assert_says(
        refused(ValueError, **arguments() | {"offs": offs}), f"offs has shape {list(shape)}", "3 matrices", "[3]"
    )


@pytest.mark.parametrize("dtype", ["int64", "int8", "float32"])
def test_offs_of_another_dtype(dtype):
    assert_says(
        refused(TypeError, **arguments() | {"offs": array(3, dtype=dtype)}),
        f"offs has dtype {dtype}",
        "int32",
        "convert",
    )


def test_offs_that_are_strided():
    given = arguments()
    given["offs"].strides = (2,)
    assert_says(refused(ValueError, **given), "offs has stride 2", "one behind the other", "copy")


def test_offs_between_elements():
    given = arguments()
    given["offs"].address += 2
    assert_says(refused(ValueError, **given), "offs", "no multiple of 4 bytes", "copy")


@pytest.mark.parametrize("which", ["mat_b", "offs", "bias", "out", "scale_a", "scale_b"])
@pytest.mark.parametrize(("place", "name"), [({"device": 1}, "cuda:1"), ({"device_type": CPU}, "the CPU")])
def test_mixed_devices(which, place, name):
    given, elsewhere = everything(), everything(**place)
    assert_says(refused(ValueError, **given | {which: elsewhere[which]}), f"{which} is on {name}", "cuda:0", "move")


def everything(**facts) -> dict:
    others = {
        "bias": matrix(3, 48, dtype="bfloat16", **facts), "out": matrix(64, 48, dtype="bfloat16", **facts),
        "scale_a": array(1, dtype="float32", **facts), "scale_b": array(3, dtype="float32", **facts),
    }  # fmt: skip
    return arguments(dtype="float8_e4m3fn", **facts) | others


def test_devices_that_are_neither_cpu_nor_cuda():
    assert_says(refused(ValueError, **arguments(device_type=ROCM)), "mat_a is on a device that is neither", "move")


@pytest.mark.parametrize("shape", [(2, 48), (3, 40), (48,), (3, 1, 48)])
def test_biases_of_another_shape(shape):
    bias = array(*shape)
    assert_says(
        refused(ValueError, **arguments() | {"bias": bias}), f"bias has shape {list(shape)}", "[3, 48] is needed"
    )


def test_biases_of_another_dtype():
    bias = matrix(3, 48, dtype="float32")
    assert_says(refused(TypeError, **arguments() | {"bias": bias}), "bias has dtype float32", "float16", "convert")
    given = arguments(dtype="float8_e4m3fn") | {"bias": bias}
    assert_says(refused(TypeError, **given), "bias has dtype float32", "bfloat16")


@pytest.mark.parametrize("which", ["scale_a", "scale_b"])
def test_scales_of_16_bit_products(which):
    given = arguments() | {which: array(1, dtype="float32")}
    assert_says(refused(ValueError, **given), which, "float16", "float8_e4m3fn", "leave it out")


@pytest.mark.parametrize("which", ["scale_a", "scale_b"])
def test_scales_of_another_dtype(which):
    given = everything() | {which: array(1, dtype="bfloat16")}
    assert_says(refused(TypeError, **given), f"{which} has dtype bfloat16", "float32", "convert")


def scale(*shape):
    return array(*shape, dtype="float32")


# Of 64 rows in 3 groups, with N = 48 and K = 32.
PAIRS_OF_SCALES = (
    "scale_a of 1 element goes with scale_b of 1 element or [3]", "scale_a [64] with scale_b [3, 48]",
    "scale_a [64, 1] with scale_b [3, 1, 1]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("which", "shape", "needed"),
    [
        ("scale_a", (3,), "1 element is needed"), ("scale_a", (0,), "1 element is needed"),
        ("scale_b", (2,), "1 element, or [3], one for each group"), ("scale_b", (3, 1), "[3, 48] is needed"),
        ("scale_b", (2, 48), "[3, 48] is needed"), ("scale_b", (3, 2, 1), "[3, 1, 1] is needed"),
        ("scale_b", (3, 1, 2), "[3, 1, 1] is needed"),
    ],
)  # fmt: skip
def test_scales_of_another_shape(which, shape, needed):
    given = everything() | {which: scale(*shape)}
    assert_says(refused(ValueError, **given), f"{which} has shape {list(shape)}", needed, *PAIRS_OF_SCALES)


@pytest.mark.parametrize(
    ("of_a", "of_b", "needed"),
    [
        ((1,), (3, 48), "scale_a has shape [1]; [64] is needed"),
        (None, (3, 48), "scale_a is missing; [64] is needed"),
        ((64, 1), (3, 48), "scale_a has shape [64, 1]; [64] is needed"),
        ((64,), (3, 1, 1), "scale_a has shape [64]; [64, 1] is needed"),
        (None, (3, 1, 1), "scale_a is missing; [64, 1] is needed"),
        ((64,), None, "scale_a has shape [64]; 1 element is needed"),
        ((64,), (3,), "scale_a has shape [64]; 1 element is needed"),
    ],
)
def test_scales_that_do_not_go_together(of_a, of_b, needed):
    given = everything() | {"scale_a": of_a and scale(*of_a), "scale_b": of_b and scale(*of_b)}
    assert_says(refused(ValueError, **given), needed, *PAIRS_OF_SCALES)


@pytest.mark.parametrize("out_dtype", ["int8", "float64", "half", np.float64, "", 3])
def test_output_dtypes_that_do_not_exist(out_dtype):
    assert_says(refused(ValueError, **arguments(), out_dtype=out_dtype), "out_dtype is", "float16, bfloat16, float32")


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", np.float32, np.dtype("float32")])
def test_output_dtypes_of_16_bit_products(out_dtype):
    assert_says(
        refused(ValueError, **arguments(), out_dtype=out_dtype), "out_dtype is", "inputs are float16", "convert"
    )


class Named:
    """A dtype as torch prints it."""

    def __str__(self):
        return "torch.float16"


@pytest.mark.parametrize(
    "out_dtype", ["float16", np.float16, np.dtype("float16"), Named(), type("float16", (), {}), None]
)
def test_every_way_to_say_a_dtype(out_dtype):
    assert check(**arguments(device_type=CPU), out_dtype=out_dtype) == "float16"
    assert check(**arguments(device_type=CPU, dtype="float8_e4m3fn"), out_dtype=out_dtype) == (
        "bfloat16" if out_dtype is None else "float16"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_the_output_given_says_the_dtype_of_an_fp8_product(dtype):
    given = arguments(device_type=CPU, dtype="float8_e4m3fn") | {"out": matrix(64, 48, dtype=dtype, device_type=CPU)}
    assert check(**given) == dtype


def test_outputs_of_another_shape_or_dtype():
    assert_says(
        refused(ValueError, **arguments(), out=matrix(48, 64)), "out has shape [48, 64]", "the product has [64, 48]"
    )
    assert_says(refused(ValueError, **arguments(), out=array(64)), "out has 1 dimension;", "reshape")
    given = arguments() | {"out": matrix(64, 48, dtype="bfloat16")}
    assert_says(refused(TypeError, **given), "out has dtype bfloat16", "float16", "convert")
    given = arguments(dtype="float8_e4m3fn") | {"out": matrix(64, 48, dtype="int8")}
    assert_says(refused(TypeError, **given), "out has dtype int8")


@pytest.mark.parametrize("which", ["mat_a", "mat_b", "offs", "bias", "scale_a", "scale_b"])
def test_outputs_that_share_memory(which):
    given = everything()
    given["out"].address = given[which].address
    assert_says(refused(ValueError, **given), f"out shares memory with {which}", "separate")


def test_an_output_that_overlaps_the_last_element_of_the_last_matrix():
    given = arguments(device_type=CPU) | {"out": matrix(64, 48, device_type=CPU)}
    given["out"].address = given["mat_b"].address + 2 * (3 * 32 * 48 - 1)
    assert_says(refused(ValueError, **given), "out shares memory with mat_b")
    given["out"].address += 2
    check(**given)


def test_columns_of_one_buffer_may_be_read_and_written():
    given = arguments(device_type=CPU) | {"out": matrix(64, 48, device_type=CPU)}
    given["mat_a"].strides = given["out"].strides = (80, 1)
    given["out"].address = given["mat_a"].address + 2 * 32
    check(**given)
    given["out"].address -= 2
    assert_says(refused(ValueError, **given), "out shares memory with mat_a")


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (47, 1), (1, 63)])
def test_an_output_whose_elements_share_memory(strides):
    out = matrix(64, 48)
    out.strides = strides
    assert_says(refused(ValueError, **arguments(), out=out), "out has elements that share memory", str(list(strides)))


@pytest.mark.parametrize("size", ["rows", "columns", "depth", "groups"])
def test_dimensions_beyond_32_bits(size):
    sizes = {"rows": 1, "columns": 1, "depth": 1, "groups": 1, size: 2**31}
    assert_says(refused(ValueError, **arguments(**sizes)), "2147483648", "2147483647", "split")


def test_arrays_without_memory():
    given = arguments()
    given["mat_b"].address = 0
    with pytest.raises(TypeError, match="mat_b.* has elements but no memory"):
        check(**given)


def test_an_empty_array_of_four_dimensions():
    given = arguments() | {"mat_b": ExchangeArray(3, 32, 48, 0, address=0)}
    assert_says(
        refused(ValueError, **given), "mat_b has shape [3, 32, 48, ...]; mat_a [rows, K] and mat_b [E, K, N] are needed"
    )


sizes = st.integers(0, 3)


@given(sizes, sizes, sizes, sizes)
def test_any_size_may_be_0(rows, columns, depth, groups):
    given = arguments(rows, columns, depth, groups, device_type=CPU)
    for one in given.values():
        one.address *= 0 not in one.shape
    assert check(**given) == "float16"


@pytest.mark.parametrize(("device", "words"), [(A100, ["compute capability 9.0", "sm_80"]), (B200, ["PTX", "no fp8"])])
def test_fp8_on_gpus_without_kernels_for_it(device, words):
    mat_a, mat_b, offs = arguments(dtype="float8_e4m3fn", layout="nt").values()
    with pytest.raises(gg_runtime.UnsupportedError) as caught:
        gg_runtime.explain(mat_a, mat_b, offs=offs, device=device)
    assert_says(str(caught.value), "float8_e4m3fn", "bfloat16", *words)
    assert "e4m3" in gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200).variant
