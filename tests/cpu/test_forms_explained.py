"""What explain says of ragged columns and of ragged K: which launches a call takes, and why."""

import pytest

import gg_runtime
from arrays import ExchangeArray, fresh_address
from devices import A100, H200


def array(*shape, dtype="bfloat16", strides=None) -> ExchangeArray:
    return ExchangeArray(*shape, address=fresh_address(), dtype=dtype, strides=strides)


def explained(m=4096, n=1536, total=32768, groups=64, device=H200, layout="tn", out_dtype="bfloat16", **given):
    """Of a ragged K; t: M of mat_a is contiguous, n: N of mat_b is."""
    mat_a = array(m, total, strides=(1, m) if layout[0] == "t" else None)
    mat_b = array(total, n, strides=(1, total) if layout[1] == "t" else None)
    offs = array(groups, dtype="int32")
    return gg_runtime.explain(mat_a, mat_b, offs=offs, device=device, out_dtype=out_dtype, **given)


def kernels_of(explanation) -> list[str]:
    return [part["variant"].partition("_sm")[0] for part in explanation.parts]


@pytest.mark.parametrize(("device", "kernel"), [(H200, "hopper_ragged_k"), (A100, "basic_ragged_k")])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_gradients_of_weights_are_one_launch(device, kernel, out_dtype):
    told = explained(device=device, out_dtype=out_dtype)
    assert kernels_of(told) == [kernel] and "by parts" not in told.reason and told.launches == 1
    assert all(candidate["predicted_us"] or candidate["ruled_out"] for candidate in told.candidates)


@pytest.mark.parametrize(("groups", "rows", "n", "k", "kernel"), [
    (10, 300, 10240, 4096, "hopper_ragged_fitted"),  # tiles of 128 rows would be a fifth past their groups' ends
    (8, 4096, 7168, 2048, "hopper_ragged"),
    (128, 4, 1536, 2048, "hopper_ragged"),
])  # fmt: skip
def test_row_tiles_fit_their_group_where_that_leaves_much_out(groups, rows, n, k, kernel):
    mat_a, mat_b = array(groups * rows, k), array(groups, k, n, strides=(n * k, 1, k))
    told = gg_runtime.explain(mat_a, mat_b, offs=array(groups, dtype="int32"), device=H200)
    assert kernels_of(told) == [kernel]


@pytest.mark.parametrize("layout", ["nn", "nt", "tt"])
def test_k_that_is_contiguous_is_for_pointers(layout):
    told = explained(layout=layout)
    assert kernels_of(told) == ["basic_ragged_k"] and f"_{layout}_a2_" in told.variant
    ruled_out = {c["variant"].partition("_sm")[0]: c["ruled_out"] for c in told.candidates if c["ruled_out"]}
    assert "unit strides" in ruled_out["hopper_ragged_k"]


@pytest.mark.parametrize("device", [H200, A100])
def test_a_long_k_of_few_outputs_is_told_to_be_split(device):
    told = explained(256, 256, 1 << 18, 2, device)
    assert kernels_of(told)[1:] == ["add_parts"] and told.launches == 2
    assert "; by parts: product in " in told.reason and "parts of each group's K, add_parts" in told.reason
    assert told.predicted_us == pytest.approx(sum(part["predicted_us"] for part in told.parts))


def test_more_multiprocessors_get_more_parts():
    """The sizes and the GPU alone decide: half of the multiprocessors have half of the work at once."""
    whole, half = (explained(256, 256, 1 << 18, 2, H200 | {"multiprocessors": count}) for count in (132, 16))
    splits = [int(told.reason.partition("product in ")[2].partition(" ")[0]) for told in (whole, half)]
    assert splits[0] > splits[1] > 1


@pytest.mark.parametrize(
    ("device", "given", "kernels"),
    [
        (H200, "a", ["hopper_gather_k"]),
        (H200, "b", ["hopper_gather_k_b"]),
        (H200, "ab", ["gather", "hopper_gather_k"]),
        (A100, "ab", ["gather", "gather", "basic_ragged_k"]),
    ],
)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_an_index_is_for_the_product_and_a_second_one_for_a_launch_before(device, given, kernels, out_dtype):
    index = array(32768, dtype="int32")
    told = explained(device=device, out_dtype=out_dtype, **{f"{name}_index": index for name in given})
    assert kernels_of(told) == kernels
    by_parts = f"; by parts: {'gather, ' * (len(kernels) - 1)}product" if len(kernels) > 1 else ""
    assert told.reason.partition("; by parts")[1:] == by_parts.partition("; by parts")[1:]
    assert all(candidate["predicted_us"] or candidate["ruled_out"] for candidate in told.candidates)


@pytest.mark.parametrize(
    ("device", "out_dtype", "kernels"),
    [
        (H200, "float32", ["hopper_ragged_k"]),
        (H200, "bfloat16", ["hopper_ragged_k", "add_parts"]),
        (A100, "float32", ["basic_ragged_k", "add_parts"]),
    ],
)
def test_who_adds_to_the_output(device, out_dtype, kernels):
    out = array(64, 4096, 1536, dtype=out_dtype)
    assert kernels_of(explained(device=device, out_dtype=None, out=out, beta=1.0)) == kernels


def adding(adds: bool, m: int, n: int, k: int, groups: int, dtype: str):
    """Of groups with k each, float32 sums that are written or added to the output."""
    given = {"out": array(groups, m, n, dtype="float32")} | ({"beta": 1.0} if adds else {})
    total, offs = groups * k, array(groups, dtype="int32")
    if dtype == "bfloat16":
        return explained(m, n, total, groups, out_dtype=None, **given)
    mat_a, mat_b = array(m, total, dtype=dtype), array(total, n, strides=(1, total), dtype=dtype)
    scale_a = array(m, total // 128, strides=(1, m), dtype="float32")
    scale_b = array(total // 128, n, dtype="float32")
    return gg_runtime.explain(
        mat_a, mat_b, offs=offs, scale_a=scale_a, scale_b=scale_b, k_alignment=128, device=H200, **given
    )


@pytest.mark.parametrize(("dtype", "tile"), [("bfloat16", "_128x256x64_"), ("float8_e4m3fn", "_128x192x128_")])
def test_outputs_that_the_kernel_loads_are_added_to_in_less_time(dtype, tile):
    """Over little K, by the one tile for which aot/kernels/hopper/addends.py has room. Adds by TMA take longer."""
    told = adding(True, 1536, 2048, 256, 128, dtype)
    assert tile in told.variant

    for larger, loaded in ((256, True), (1 << 15, False)):
        times = {}
        for adds in (False, True):
            candidates = adding(adds, 1536, 2048, larger, 128, dtype).candidates
            times[adds] = {c["variant"]: c["predicted_us"] for c in candidates if not c["ruled_out"]}
        more = {name: times[True][name] - times[False][name] for name in times[True] if "hopper" in name}
        of_tile = [us for name, us in more.items() if tile in name]
        assert (max(of_tile) < min(us for name, us in more.items() if tile not in name)) == loaded


def test_ragged_columns_are_explained_as_the_rows_of_the_transposed_product():
    stack, columns, offs = array(64, 1536, 2048), array(2048, 8192), array(64, dtype="int32")
    told = gg_runtime.explain(stack, columns, offs=offs, device=H200)
    assert kernels_of(told) == ["basic_ragged"], "a row-major output has no contiguous rows of the transposed product"
    turned = array(1536, 8192, strides=(1, 1536))
    columns = array(2048, 8192, strides=(1, 2048))
    told = gg_runtime.explain(stack, columns, offs=offs, out=turned, device=H200)
    rows, matrices = array(8192, 2048), array(64, 2048, 1536, strides=(1536 * 2048, 1, 2048))
    assert told.variant == gg_runtime.explain(rows, matrices, offs=offs, device=H200).variant
    assert kernels_of(told) == ["hopper_ragged_fitted"]
