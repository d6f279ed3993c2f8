"""activation_gradient up to the driver: the kernel, its arguments, its grid."""

import struct

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import float_bits, limit_bits

NAMES = (
    "y", "y_row", "y_col", "dh", "dh_row", "dh_col", "weights", "weight_index", "dweights", "out", "out_row", "out_col",
    "h", "h_row", "h_col", "ends", "rows", "columns", "groups", "entries", "weight_kind", "activation", "limit_bits",
    "gate_order", "factor_bits",
)  # fmt: skip
ACTIVATIONS = ("none", "swiglu", "geglu", "geglu_tanh", "swiglu_oai", "silu", "gelu", "gelu_tanh", "relu", "relu2")
ORDERS = ("gate_first", "up_first", "interleaved")

CALL = """
    import cupy
    from gg_runtime.activation_gradient import activation_gradient
    rows, columns, wide = 37, {columns}, {wide}
    z, dz = (cupy.empty((rows, wide), "{dtype}") for _ in range(2))
    dh, h = (cupy.empty((rows, columns), "{dtype}") for _ in range(2))
    weights, slot, ends = cupy.empty((20, 2), "{weights}"), cupy.empty(rows, "int32"), cupy.empty(6, "int32")
    dweights = cupy.empty((20, 2), "float32")
    {change}
    before = len(cupy.allocations)
    activation_gradient(z, dh, dz, activation={activation!r}, gate_up="{order}", {given})
    assert len(cupy.allocations) == before
    report([array.address for array in (z, dh, weights, slot, dweights, dz, h, ends)])
"""
ALL = "weights=weights, slot=slot, ends=ends, scale=0.25, h=h, dweights=dweights"


def launched(fake_cuda, activation="swiglu", order="gate_first", columns=64, given=ALL, settings=None, **changed):
    wide = columns * (2 if activation in ACTIVATIONS[1:5] else 1)
    options = {"dtype": "bfloat16", "weights": "float32", "change": ""} | changed
    script = CALL.format(activation=activation, order=order, columns=columns, wide=wide, given=given, **options)
    ran = fake_cuda.run(script, **(settings or {}))
    (launch,) = ran.launches
    assert launch["symbol"] == "activation_gradient"
    values = struct.unpack_from("@QqqQqqQQQQqqQqqQ9i", bytes.fromhex(launch["parameters"]))
    return ran, launch, dict(zip(NAMES, values)), ran.reported[0]


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(("columns", "alignment"), [(64, 16), (61, 2)])
@pytest.mark.parametrize(("weights", "kind"), [("float32", 0), ("float16", 1), ("bfloat16", 2)])
def test_it_hands_over_what_it_was_given(fake_cuda, weights, kind, columns, alignment, settings):
    ran, launch, found, addresses = launched(fake_cuda, columns=columns, weights=weights, settings=settings)
    kernel = KERNELS[f"activation_gradient_sm{80 if settings else 90}_bf16_a{alignment}"]
    assert ran.hash_of(launch) == kernel["cubin_sha256"]
    assert launch["grid"] == [-(-37 // kernel["block_m"]), 1, 1]
    z, dh, factors, slot, dweights, dz, h, ends = addresses
    assert found == {
        "y": z, "y_row": 2 * columns, "y_col": 1, "dh": dh, "dh_row": columns, "dh_col": 1, "weights": factors,
        "weight_index": slot, "dweights": dweights, "out": dz, "out_row": 2 * columns, "out_col": 1, "h": h,
        "h_row": columns, "h_col": 1, "ends": ends, "rows": 37, "columns": columns, "groups": 6, "entries": 40,
        "weight_kind": kind, "activation": 1, "limit_bits": limit_bits("swiglu"), "gate_order": 0,
        "factor_bits": float_bits(0.25),
    }  # fmt: skip


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS[1:]])
def test_every_activation_and_order_has_its_number(fake_cuda, activation):
    gated = activation in ACTIVATIONS[1:5]
    for number, order in enumerate(ORDERS if gated else ORDERS[:1]):
        _, _, found, _ = launched(fake_cuda, activation=activation, order=order)
        assert (found["activation"], found["gate_order"]) == (ACTIVATIONS.index(activation or "none"), number)
        assert found["limit_bits"] == limit_bits(activation)


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_a_limit_is_handed_over(fake_cuda, activation):
    _, _, found, _ = launched(fake_cuda, activation=activation, given="swiglu_limit=10")
    assert found["limit_bits"] == float_bits(10)


def test_what_is_left_out_is_zero(fake_cuda):
    _, _, found, _ = launched(fake_cuda, given="")
    for name in ("weights", "weight_index", "dweights", "h", "ends", "groups", "entries"):
        assert found[name] == 0, name
    assert found["factor_bits"] == struct.unpack("i", struct.pack("f", 1.0))[0]


@pytest.mark.parametrize(
    "change",
    [
        "z.address += 2", "dh.address += 2", "dz.address += 2", "h.address += 2", "dh.strides = (columns + 1, 1)",
        "z.strides = (1, rows)", "h.strides = (2 * columns, 2)",
    ],
)  # fmt: skip
def test_any_array_that_is_not_aligned_takes_the_other_kernel(fake_cuda, change):
    ran, launch, found, _ = launched(fake_cuda, change=change)
    assert ran.hash_of(launch) == KERNELS["activation_gradient_sm90_bf16_a2"]["cubin_sha256"]
    assert "strides" not in change or {found["dh_row"], found["y_col"], found["h_col"]} != {64, 1}


def test_without_rows_nothing_is_launched(fake_cuda):
    ran = fake_cuda.run("""
        import cupy
        from gg_runtime.activation_gradient import activation_gradient
        z, dz, dh = cupy.empty((0, 64), "float16"), cupy.empty((0, 64), "float16"), cupy.empty((0, 32), "float16")
        report(activation_gradient(z, dh, dz, activation="swiglu"))
    """)
    assert ran.reported == [None] and not ran.launches
