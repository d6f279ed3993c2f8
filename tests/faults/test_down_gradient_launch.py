"""down_gradient up to the driver: one kernel and the launch that adds up its sums, or parts; each word they read."""

import struct
import textwrap

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80, assert_says
from faults.parameters import by_value, limit_bits, ragged_arguments, read_ragged
from faults.test_fused_products import ANY_ROW, LAST_ROW, TENSOR_MAP_TYPES

ROWS, COLUMNS, DEPTH, GROUPS, TOKENS = 700, 320, 192, 3, 50
ACTIVATIONS = ("none", "swiglu", "geglu", "geglu_tanh", "swiglu_oai")
NAMES = {"fp16": "float16", "bf16": "bfloat16"}

CALL = f"""
    import cupy
    from gg_runtime.down_gradient import down_gradient
    dtype, wide = "{{dtype}}", {{wide}}
    gradient = cupy.empty(({TOKENS}, {DEPTH}), dtype)
    weight = cupy.empty(({GROUPS}, {DEPTH}, {COLUMNS}), dtype)
    z, dz = cupy.empty(({ROWS}, wide), dtype), cupy.empty(({ROWS}, wide), dtype)
    h, dweights = cupy.empty(({ROWS}, {COLUMNS}), dtype), cupy.empty((400, 2), "float32")
    weights, slot = cupy.empty((400, 2), "{{weights}}"), cupy.empty({ROWS}, "int32")
    token, ends = cupy.empty({ROWS}, "{{index}}"), cupy.empty({GROUPS}, "int32")
    if "{{layout}}" == "nt":
        weight.strides = ({DEPTH * COLUMNS}, 1, {DEPTH})
    {{change}}
    before = len(cupy.allocations)
    error = failure(lambda: down_gradient(gradient, weight, z, dz, ends=ends, token=token, slot=slot, weights=weights,
        activation={{activation!r}}, gate_up="{{order}}", scale=0.25, {{given}}))
    report(error)
    report([array.address for array in (gradient, weight, z, dz, h, token, slot, weights, ends, dweights)])
    report(len(cupy.allocations) - before)
"""
FUSED = "h=h, dweights=dweights, fused=True"
ARRAYS = ("gradient", "weight", "z", "dz", "h", "token", "slot", "weights", "ends", "dweights")


def run(fake_cuda, activation="swiglu", order="gate_first", settings=None, **changed):
    wide = COLUMNS * (2 if activation in ACTIVATIONS[1:] else 1)
    options = {"dtype": "bfloat16", "weights": "float32", "index": "int32", "layout": "nt", "change": ""}
    options |= {"given": "h=h, dweights=dweights"} | changed
    ran = fake_cuda.run(CALL.format(activation=activation, order=order, wide=wide, **options), **(settings or {}))
    return ran, ran.reported[0], dict(zip(ARRAYS, ran.reported[1])), ran.reported[2]


def symbols(ran) -> list[str]:
    return [launch["symbol"] for launch in ran.launches]


def described(address: int, row: int, dtype: str) -> dict:
    return {
        "address": address, "sizes": [COLUMNS, LAST_ROW, ANY_ROW, ANY_ROW], "box": [64, 128, 1, 1],
        "strides": [2 * row, (2 << 34) - 2 * row, 2 * row], "type": TENSOR_MAP_TYPES[dtype],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "layout", "index", "weights", "order"),
    [
        ("fp16", "nn", "int32", "float32", "gate_first"),
        ("bf16", "nt", "int64", "bfloat16", "up_first"),
        ("fp16", "nt", "int64", "float16", "gate_first"),
        ("bf16", "nn", "int32", "float32", "up_first"),
    ],
)
def test_one_kernel_reads_what_lies_where(fake_cuda, dtype, layout, index, weights, order):
    ran, error, at, allocated = run(
        fake_cuda, order=order, dtype=NAMES[dtype], layout=layout, index=index, weights=weights, given=FUSED
    )
    assert error["type"] is None and symbols(ran) == ["hopper_dgated", "add_row_sums"] and allocated == 1
    launch, adding = ran.launches
    name = f"hopper_gather_dgated_sm90_{dtype}_{layout}_a16_128x256x64_s4w8r16"
    assert ran.hash_of(launch) == KERNELS[name]["cubin_sha256"]
    arguments = ragged_arguments(launch)
    assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (GROUPS, ROWS, COLUMNS, DEPTH)
    words = read_ragged(by_value(arguments, "hopper_dgated"), "hopper_dgated")
    of_gate, of_up = (2 * COLUMNS, 0) if order == "up_first" else (0, 2 * COLUMNS)
    halves = {"z": ("z", of_gate), "z_up": ("z", of_up), "dz": ("dz", of_gate), "dz_up": ("dz", of_up)}
    for field, (array, offset) in halves.items():
        wanted = described(at[array] + offset, 2 * COLUMNS, dtype)
        assert {key: words[field][key] for key in wanted} == wanted, field
    wanted = described(at["h"], COLUMNS, dtype)
    assert {key: words["c"][key] for key in wanted} == wanted
    sizes, leading = ([DEPTH, COLUMNS], DEPTH) if layout == "nt" else ([COLUMNS, DEPTH], COLUMNS)
    wanted = {"address": at["weight"], "sizes": [*sizes, GROUPS], "strides": [2 * leading, 2 * DEPTH * COLUMNS]}
    assert {key: words["b"][key] for key in wanted} == wanted
    wanted = {
        "offs": at["ends"], "skips_rest": 1, "bias": 0, "activation": ACTIVATIONS.index("swiglu"),
        "limit_bits": limit_bits("swiglu"),
        "index": at["token"], "index_bytes": {"int32": 4, "int64": 8}[index], "a_rows": TOKENS,
        "a_address": at["gradient"], "a_row": DEPTH, "slot": at["slot"], "weights": at["weights"], "entries": 800,
        "weight_kind": ("float32", "float16", "bfloat16").index(weights), "writes_h": 1,
        "factor_bits": struct.unpack("i", struct.pack("f", 0.25))[0],
    }  # fmt: skip
    assert {key: words[key] for key in wanted} == wanted
    one = struct.unpack("i", struct.pack("f", 1.0))[0]  # the kernel has multiplied by `scale`
    values = struct.unpack_from("@QQQQ5i", bytes.fromhex(adding["parameters"]))
    assert values[:4] == (words["row_sums"], at["slot"], at["dweights"], at["ends"])
    assert values[4:] == (GROUPS, ROWS, -(-COLUMNS // 256), 800, one)
    assert adding["grid"] == [-(-ROWS // 128), 1, 1]


def test_what_nobody_wants_is_left_out(fake_cuda):
    ran, error, at, _ = run(fake_cuda, given="fused=True")
    assert error["type"] is None and symbols(ran) == ["hopper_dgated"]
    words = read_ragged(by_value(ragged_arguments(ran.launches[0]), "hopper_dgated"), "hopper_dgated")
    assert words["writes_h"] == 0 and words["c"]["address"] == at["dz"] and words["row_sums"] == 0


def test_a_tile_that_has_all_columns_writes_gradients_of_weights(fake_cuda):
    change = """
        weight.shape, weight.strides = (3, 192, 256), (256 * 192, 1, 192)
        z.shape = dz.shape = (700, 512)
        z.strides = dz.strides = (512, 1)
        h.shape, h.strides = (700, 256), (256, 1)
    """
    ran, error, at, allocated = run(fake_cuda, given=FUSED, change=textwrap.dedent(change).strip().replace("\n", "; "))
    assert error["type"] is None and symbols(ran) == ["hopper_dgated"] and allocated == 0
    words = read_ragged(by_value(ragged_arguments(ran.launches[0]), "hopper_dgated"), "hopper_dgated")
    assert words["row_sums"] == at["dweights"]


PARTS = ["hopper_ragged", "activation_gradient"]  # hopper_gather is of that entry point
BY_PARTS = {
    "erf": {"activation": "geglu"},
    "tanh": {"activation": "geglu_tanh"},
    "another gate": {"activation": "swiglu_oai"},
    "a limit": {"given": "h=h, dweights=dweights, swiglu_limit=10"},
    "columns in turns": {"order": "interleaved"},
    "no gate": {"activation": "silu"},
    "no activation": {"activation": None},
    "z between elements": {"change": "z.address += 2"},
    "rows of dz apart": {"change": "dz.strides = (2 * wide + 1, 1)"},
    "h by columns": {"change": f"h.strides = (1, {ROWS})"},
    "a gradient between elements": {"change": "gradient.address += 2"},
    "as the caller says": {"given": "h=h, dweights=dweights, fused=False"},
}


@pytest.mark.parametrize("changed", BY_PARTS.values(), ids=BY_PARTS)
def test_what_the_kernel_does_not_do_is_done_by_parts(fake_cuda, changed):
    ran, error, at, _ = run(fake_cuda, **changed)
    assert error["type"] is None
    found = symbols(ran)
    assert found[-1] == "activation_gradient" and "hopper_dgated" not in found and len(found) in (2, 3)
    if "gradient.address" not in changed.get("change", ""):
        assert found == PARTS
    values = struct.unpack_from("@QqqQqqQQQQqqQqqQ8i", bytes.fromhex(ran.launches[-1]["parameters"]))
    assert (values[0], values[7], values[9], values[15]) == (at["z"], at["slot"], at["dz"], at["ends"])
    assert values[3] not in at.values() and values[4:6] == (COLUMNS, 1), "dh lies in memory of its own"


def test_another_architecture_has_parts(fake_cuda):
    ran, error, _, _ = run(fake_cuda, settings=SM_80)
    assert error["type"] is None and symbols(ran)[-1] == "activation_gradient" and "hopper_dgated" not in symbols(ran)
    ran, error, _, _ = run(fake_cuda, settings=SM_80, given="fused=True")
    assert_says(error, "UnsupportedError", "down_gradient", "no one kernel", "fused")
    assert not ran.launches


@pytest.mark.parametrize("what", [{"activation": "geglu"}, {"order": "interleaved"}, {"change": "z.address += 2"}])
def test_one_kernel_where_there_is_none_is_refused(fake_cuda, what):
    _, error, _, _ = run(fake_cuda, given="fused=True", **what)
    assert_says(error, "UnsupportedError", "down_gradient", "swiglu", "halves", "16 bytes")


def test_a_backward_of_some_gradients_has_the_bits_of_one_of_all(fake_cuda):
    """What the caller wants has no say in which kernel does it: they round dh differently."""
    for change in ("", few(1), few(600)):
        found = [symbols(run(fake_cuda, given=given, change=change)[0]) for given in ("", "h=h", "dweights=dweights")]
        assert len({"hopper_dgated" in one for one in found}) == 1


def test_few_rows_are_predicted_for_batch_invariant_calls_as_many_are(fake_cuda):
    found = [
        symbols(run(fake_cuda, given="h=h, dweights=dweights, batch_invariant=True", change=change)[0])
        for change in ("", few(1), few(30))
    ]
    assert found[0] == found[1] == found[2]


def few(rows: int) -> str:
    return "; ".join(
        [f"{name}.shape = ({rows}, *{name}.shape[1:])" for name in ("z", "dz", "h")]
        + [f"{name}.shape = ({rows},)" for name in ("token", "slot")]
    )


def test_without_rows_nothing_is_launched(fake_cuda):
    ran, error, _, _ = run(fake_cuda, change=few(0))
    assert error["type"] is None and not ran.launches
