"""Wrong arguments of grouped_mm with ragged columns, ragged K and stacks: each is refused with its own message."""

import numpy as np
import pytest
from refusals import assert_refused, check

import gg_runtime
from arrays import CPU, array
from devices import H200

E, M, N, K, TOTAL = 3, 40, 48, 32, 64
SHAPES = {
    "ragged rows": ((TOTAL, K), (E, K, N), (TOTAL, N)),
    "ragged columns": ((E, M, K), (K, TOTAL), (M, TOTAL)),
    "ragged K": ((M, TOTAL), (TOTAL, N), (E, M, N)),
    "stacks": ((E, M, K), (E, K, N), (E, M, N)),
}
NEW = [form for form in SHAPES if form != "ragged rows"]
WITH_OFFS = [form for form in SHAPES if form != "stacks"]


def call(form: str, dtype="float16", **facts) -> dict:
    a, b, _ = SHAPES[form]
    given = {"mat_a": array(*a, dtype=dtype, **facts), "mat_b": array(*b, dtype=dtype, **facts)}
    if form in WITH_OFFS:
        given["offs"] = array(E, dtype="int32", **facts)
    return given


def out_of(form: str, dtype="float16", **facts):
    return array(*SHAPES[form][2], dtype=dtype, **facts)


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_each_form_is_taken_with_an_output_and_without(form, dtype):
    given = call(form, dtype, device_type=CPU)
    assert check(**given) == check(**given, out=out_of(form, dtype, device_type=CPU)) == dtype


# Which argument goes with which form; what it would be.
ARGUMENTS = {
    "offs": (WITH_OFFS, lambda: array(E, dtype="int32")),
    "counts": (["stacks"], lambda: array(E, dtype="int32")),
    "bias": (["ragged rows", "stacks"], lambda: array(E, N)),
    "a_index": (["ragged rows", "ragged K"], lambda: array(TOTAL, dtype="int32")),
    "b_index": (["ragged K"], lambda: array(TOTAL, dtype="int32")),
    "activation": (["ragged rows", "stacks"], lambda: "silu"),
    "preactivation": (["ragged rows"], lambda: array(TOTAL, N)),
    "batch_invariant": (["ragged rows", "ragged columns", "stacks"], lambda: True),
    "alpha": (["ragged K"], lambda: 2.0),
    "beta": (["ragged K"], lambda: 1.0),
    "k_alignment": (["ragged K"], lambda: 128),
}


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_means_nothing_to_a_form_is_told_where_it_belongs(form, name):
    forms, make = ARGUMENTS[name]
    if form in forms:
        return
    assert_refused(call(form) | {name: make()}, f"{name} goes with", *forms, f"is one of {form}", "leave it out")


@pytest.mark.parametrize("form", ["ragged columns"])
def test_fp8_goes_with_all_forms_but_ragged_columns(form):
    words = (
        "float8_e4m3fn inputs go with ragged rows (a 2-D mat_a and a 3-D mat_b) and ragged K",
        "and stacks of matrices (a 3-D mat_a and a 3-D mat_b); convert both to bfloat16",
    )
    assert_refused(call(form, "float8_e4m3fn"), *words, kind=TypeError)


def scale(*shape):
    return array(*shape, dtype="float32")


@pytest.mark.parametrize(
    ("of_a", "of_b", "needed"),
    [
        ((E,), (E, N), "scale_a has shape [3]; [3, 40] is needed"),
        ((E * M,), (E, N), "scale_a has shape [120]; [3, 40] is needed"),
        (None, (E, N), "scale_a is missing; [3, 40] is needed"),
        ((E, M), (E, 1, 1), "scale_a has shape [3, 40]; [3, 40, 1] is needed"),
        ((E, M, 1), (E, 1, 2), "scale_b has shape [3, 1, 2]; [3, 1, 1] is needed"),
        ((E, M), (M,), "scale_a has shape [3, 40]; 1 element is needed"),
        ((1,), (2,), "scale_b has shape [2]; 1 element, or [3], one for each group, is needed"),
    ],
)
def test_scales_of_stacks_that_do_not_go_together(of_a, of_b, needed):
    given = call("stacks", "float8_e4m3fn") | {"scale_a": of_a and scale(*of_a), "scale_b": of_b and scale(*of_b)}
    listed = (
        "scale_a of 1 element goes with scale_b of 1 element or [3]", "scale_a [3, 40] with scale_b [3, 48]",
        "scale_a [3, 40, 1] with scale_b [3, 1, 1] (blocks of 128)",
    )  # fmt: skip
    assert_refused(given, needed, *listed)


@pytest.mark.parametrize("form", NEW)
def test_scales_are_for_fp8(form):
    assert_refused(call(form) | {"scale_a": array(1, dtype="float32")}, "scale_a is given, but the inputs are float16")


@pytest.mark.parametrize(
    ("form", "words"),
    [("ragged columns", ["int32 [3]", "the column of mat_b"]), ("ragged K", ["int32 [E]", "column of mat_a, and row"])],
)
def test_offs_that_are_missing(form, words):
    given = call(form)
    del given["offs"]
    assert_refused(given, "offs is missing", *words, "group_gemm, as lists")


@pytest.mark.parametrize(("form", "name"), [("ragged columns", "offs"), ("ragged K", "offs"), ("stacks", "counts")])
def test_offs_and_counts_of_another_kind(form, name):
    given = call(form)
    assert_refused(given | {name: array(E, dtype="int64")}, f"{name} has dtype int64; int32", kind=TypeError)
    needed = "[E]" if form == "ragged K" else "[3]"
    assert_refused(given | {name: array(E, 1, dtype="int32")}, f"{name} has shape [3, 1]", f"is needed, {needed}")
    assert_refused(given | {name: array(E, dtype="int32", strides=(2,))}, f"{name} has stride 2", "copy")
    assert_refused(given | {name: array(E, dtype="int32", device=1)}, f"{name} is on cuda:1 but mat_a is on cuda:0")


@pytest.mark.parametrize(
    ("form", "name", "matrix"), [("ragged columns", "offs", "mat_a"), ("stacks", "counts", "mat_b")]
)
def test_offs_and_counts_of_another_number_of_groups(form, name, matrix):
    assert_refused(call(form) | {name: array(4, dtype="int32")}, f"{name} has shape [4] but {matrix} has 3 matrices")


def test_any_number_of_groups_may_be_summed_by():
    given = call("ragged K", device_type=CPU)
    for groups in (0, 1, 5000):
        assert check(**given | {"offs": array(groups, dtype="int32", device_type=CPU)}) == "float16"


@pytest.mark.parametrize(
    ("form", "a", "b", "words"),
    [
        ("ragged columns", (E, M, K), (K + 8, TOTAL), ["mat_b has K=40 rows", "mat_a has K=32 columns in each matrix"]),
        ("ragged K", (M, TOTAL), (TOTAL - 1, N), ["mat_b has K=63 rows", "mat_a has K=64 columns; they"]),
        ("stacks", (E, M, K), (E, K + 8, N), ["mat_b has K=40 rows in each matrix", "mat_a has K=32 columns in each"]),
        ("stacks", (E, M, K), (E, N, K), ["mat_b has K=48", "mat_b.mT"]),
        ("stacks", (E, M, K), (E + 1, K, N), ["mat_b has E=4 matrices", "mat_a has E=3", "equal"]),
    ],
    ids=str,
)
def test_sizes_that_differ(form, a, b, words):
    assert_refused(call(form) | {"mat_a": array(*a), "mat_b": array(*b)}, *words)


def test_indices_give_k_its_size():
    given = call("ragged K") | {"a_index": array(50, dtype="int32")}
    assert_refused(given, "mat_b has K=64 rows but a_index has 50 elements; they need to be equal")
    given = call("ragged K") | {"b_index": array(50, dtype="int64")}
    assert_refused(given, "b_index has 50 elements but mat_a has K=64 columns")
    given["a_index"] = array(50, dtype="int32", device=1)
    assert_refused(given, "a_index is on cuda:1")
    given = call("ragged K", device_type=CPU)
    given |= {name: array(50, dtype="int32", device_type=CPU) for name in ("a_index", "b_index")}
    assert check(**given) == "float16"


@pytest.mark.parametrize("form", SHAPES)
def test_float32_from_16_bit_inputs_is_for_ragged_k(form):
    given = call(form, device_type=CPU)
    wanted = out_of(form, "float32", device_type=CPU)
    if form == "ragged K":
        assert check(**given, out_dtype="float32") == check(**given, out=wanted) == "float32"
        assert_refused(given | {"out_dtype": "bfloat16"}, "out_dtype is bfloat16 but the inputs are float16")
        given |= {"out_dtype": "float16", "out": wanted}
        assert_refused(given, "out has dtype float32 but the product has float16", kind=TypeError)
        return
    assert_refused(given | {"out_dtype": "float32"}, "out_dtype is float32 but the inputs are float16", "convert")
    assert_refused(given | {"out": wanted}, "out has dtype float32 but the product has float16", kind=TypeError)


@pytest.mark.parametrize("form", SHAPES)
def test_outputs_of_another_shape(form):
    shape = SHAPES[form][2]
    other = (*shape[:-1], shape[-1] + 1)
    words = f"out has shape {list(other)}, the product has {list(shape)}"
    assert_refused(call(form) | {"out": array(*other)}, words)
    ranks = ["a matrix for each group is needed, 3 dimensions"] if len(shape) == 3 else ["reshape it to 2"]
    assert_refused(call(form) | {"out": array(*shape, 1) if len(shape) == 2 else array(*shape[1:])}, *ranks)


@pytest.mark.parametrize("strides", [(0, N, 1), (M * N, 0, 1), (M * N, N, 0), (M * N - 1, N, 1), (M * N, N - 1, 1)])
@pytest.mark.parametrize("form", ["ragged K", "stacks"])
def test_a_stack_whose_elements_share_memory(form, strides):
    out = array(E, M, N, strides=strides)
    assert_refused(call(form) | {"out": out}, "out has elements that share memory", str(list(strides)))


@pytest.mark.parametrize("strides", [(M * N, N, 1), (1, E, E * M), (N, E * N, 1), (-M * N, -N, -1)], ids=str)
def test_stacks_in_any_order_are_written(strides):
    given = call("stacks", device_type=CPU)
    out = array(E, M, N, strides=strides, device_type=CPU)
    out.address += 2 * 3 * M * N
    assert check(**given, out=out) == "float16"


@pytest.mark.parametrize("form", NEW)
@pytest.mark.parametrize("which", ["mat_a", "mat_b", "offs", "counts", "a_index", "b_index", "alpha", "beta"])
def test_outputs_that_share_memory(form, which):
    given = call(form) | {"out": out_of(form)}
    if which not in given:
        if form not in ARGUMENTS[which][0]:
            return
        given[which] = array(1, dtype="float32") if which in ("alpha", "beta") else ARGUMENTS[which][1]()
    given["out"].address = given[which].address
    assert_refused(given, f"out shares memory with {which}", "separate")


def test_a_scale_without_dimensions_that_is_a_part_of_the_output():
    one = array(1, dtype="float32", device_type=CPU)
    one.shape, one.strides = (), ()
    a, b = (
        array(4, 32, dtype="float8_e4m3fn", device_type=CPU),
        array(2, 32, 16, strides=(512, 1, 32), dtype="float8_e4m3fn", device_type=CPU),
    )
    given = {"mat_a": a, "mat_b": b, "offs": array(2, dtype="int32", device_type=CPU), "scale_a": one}
    out = array(4, 16, dtype="float32", device_type=CPU)
    assert check(**given, out=out, out_dtype="float32") == "float32"
    one.address = out.address + 4
    assert_refused(given | {"out": out, "out_dtype": "float32"}, "out shares memory with scale_a")


def test_columns_of_one_buffer_of_stacks_may_be_read_and_written():
    """[E, M, 160], of which 32 columns are read and 48 behind them written."""
    given = call("stacks", device_type=CPU) | {"out": out_of("stacks", device_type=CPU)}
    given["mat_a"].strides = given["out"].strides = (M * 160, 160, 1)
    given["out"].address = given["mat_a"].address + 2 * 32
    assert check(**given) == "float16"
    given["out"].address -= 2
    assert_refused(given, "out shares memory with mat_a")
    given["out"].address += 2
    given["out"].strides = (M * 160 + 8, 160, 1)  # no whole rows apart: nothing is known of where they meet
    assert_refused(given, "out shares memory with mat_a")


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_factors_of_another_kind(name):
    given = call("ragged K") | {"out": out_of("ragged K", "float32")}
    assert_refused(
        given | {name: array(1)}, f"{name} has dtype float16; float32 is needed, or a number", kind=TypeError
    )
    assert_refused(given | {name: array(2, dtype="float32")}, f"{name} has shape [2]; 1 element is needed")
    assert_refused(given | {name: array(1, dtype="float32", device=1)}, f"{name} is on cuda:1 but mat_a is on cuda:0")
    with pytest.raises(TypeError, match=f"{name} is a str; an array of torch"):
        check(**given | {name: "2"})
    with pytest.raises(TypeError, match=f"{name} is a numpy.str_; a number is needed"):
        check(**given | {name: np.str_("2")})
    assert_refused(given | {name: 10**400}, f"{name} is an integer beyond what a float holds")
    assert_refused(given | {name: -1e39}, f"{name} is beyond what a float32 holds")


@pytest.mark.parametrize("beta", [1.0, 1, True, -0.5, float("nan"), np.float64(2)])
def test_a_factor_of_an_output_that_is_not_given(beta):
    assert_refused(call("ragged K") | {"beta": beta}, "beta is given without out", "pass out")
    given = call("ragged K", device_type=CPU)
    assert check(**given, beta=beta, out=out_of("ragged K", device_type=CPU)) == "float16"


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("factor", [{"alpha": 1, "beta": 0}, {"alpha": 1.0, "beta": -0.0}, {"alpha": None}], ids=str)
def test_factors_that_change_nothing_go_with_every_form(form, factor):
    assert check(**call(form, device_type=CPU), **factor) == "float16"


def test_a_beta_on_the_device_needs_an_output_whatever_it_holds():
    assert_refused(call("ragged K") | {"beta": array(1, dtype="float32")}, "beta is given without out")


@pytest.mark.parametrize("form", NEW)
def test_explain_takes_every_form(form):
    explanation = gg_runtime.explain(*list(call(form).values())[:2], device=H200, **dict(list(call(form).items())[2:]))
    assert explanation.launches >= 1 and explanation.variant
