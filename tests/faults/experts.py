"""Layers of experts up to the driver: scripts that call them, and what each launch was given."""

import json
import struct

from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_routing_launch import FIELDS
from faults.test_routing_launch import arguments as routing_arguments

GATHER = (
    "y", "y_row", "y_col", "index", "out", "out_row", "ends", "weights", "weight_index",
    "rows", "columns", "source_rows", "groups", "index_bytes", "weight_kind",
)  # fmt: skip
ACTIVATE = (
    "y",
    "y_row",
    "y_col",
    "out",
    "out_row",
    "out_col",
    "ends",
    "rows",
    "columns",
    "groups",
    "activation",
    "limit_bits",
    "order",
)
QUANTIZE = (
    "y", "y_row", "y_col", "index", "out", "out_row", "scales", "scale_row", "scale_col", "ends", "weights",
    "weight_index", "rows", "columns", "source_rows", "groups", "weight_kind",
)  # fmt: skip
ACTIVATE_QUANTIZE = (
    "y", "y_row", "y_col", "out", "out_row", "scales", "scale_row", "scale_col", "ends", "rows", "columns", "groups",
    "activation", "limit_bits", "order",
)  # fmt: skip
MOVES = {
    "gather": (GATHER, "QqqQQqQQQ6i"),
    "activate": (ACTIVATE, "QqqQqqQ6i"),
    "quantize": (QUANTIZE, "QqqQQqQqqQQQ5i"),
    "activate_quantize": (ACTIVATE_QUANTIZE, "QqqQqQqqQ6i"),
}
ACTIVATIONS = ("none", "swiglu", "geglu", "geglu_tanh", "swiglu_oai", "silu", "gelu", "gelu_tanh", "relu", "relu2")
INTERLEAVED = 2

# Arrays without an allocator: only calls with `out` and `workspace` go through. `case` has sizes and arguments.
PRELUDE = """
    import json

    def array(*shape, dtype="bfloat16", pad=0):
        strides = None if not pad else (shape[1] + pad, 1)
        return ExchangeArray(*shape, address=fresh_address(), dtype=dtype, strides=strides)

    def transposed(experts, rows, columns, dtype="bfloat16"):
        return ExchangeArray(experts, rows, columns, strides=(columns * rows, 1, rows), address=fresh_address(),
                             dtype=dtype)

    def quantized(arrays):
        for name in ("w1", "w2"):
            experts, rows, columns = arrays[name].shape
            arrays[name] = transposed(experts, rows, columns, "float8_e4m3fn")
            arrays[f"{name}_scale"] = array(experts, -(-columns // 128), -(-rows // 128), dtype="float32")

    def layer(tokens, k, experts, hidden, inner, *, activation="swiglu", id_dtype="int64", biases=False, known=None,
              added=False, pad=0, weights="float32", fp8=False, **options):
        columns = inner * 2 if activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_oai") else inner
        arrays = {
            "x": array(tokens, hidden, pad=pad), "w1": transposed(experts, hidden, columns),
            "w2": transposed(experts, inner, hidden), "topk_weights": array(tokens, k, dtype=weights),
            "topk_ids": array(tokens, k, dtype=id_dtype), "out": array(tokens, hidden, pad=pad),
        }
        if biases:
            arrays |= {"b1": array(experts, columns), "b2": array(experts, hidden)}
        if known is not None:
            arrays["expert_map"] = array(known, dtype="int32")
        if added:
            arrays["add"] = array(tokens, hidden)
        if fp8:
            quantized(arrays)
        limit = {"max_rows": options["max_rows"]} if "max_rows" in options else {}
        sizes = (tokens, k, experts, hidden, inner)
        needed = gg_runtime.fused_experts_workspace(*sizes, activation=activation, use_fp8_w8a8=fp8, **limit)
        arrays["workspace"] = array(needed, dtype="uint8")
        return arrays, {"activation": activation, **options}

    def facts(arrays):
        return {name: one.facts() for name, one in arrays.items()}
"""
RUN = """
    case = json.loads({case!r})
    arrays, options = layer(*case["sizes"], **case["options"])
    assert gg_runtime.fused_experts(**arrays, **options) is arrays["out"]
    report(facts(arrays))
"""
QWEN = (64, 8, 128, 2048, 768)
ODD = (10, 2, 5, 75, 61)


def launched(fake_cuda, *sizes, settings=None, **options):
    """The launches of a layer as (symbol, what it was given), and the arrays' facts."""
    ran = fake_cuda.run(PRELUDE + RUN.format(case=json.dumps({"sizes": sizes, "options": options})), **(settings or {}))
    assert len({launch["stream"] for launch in ran.launches}) <= 1
    return [(launch["symbol"], given_to(launch)) for launch in ran.launches], ran.reported[0]


def given_to(launch: dict) -> dict:
    symbol = launch["symbol"]
    if symbol in FIELDS:
        return routing_arguments(launch)
    if symbol in MOVES:
        names, layout = MOVES[symbol]
        return dict(zip(names, struct.unpack_from(f"@{layout}", bytes.fromhex(launch["parameters"]))))
    arguments = ragged_arguments(launch)
    words = read_ragged(by_value(arguments, symbol), symbol)
    return words | {name: getattr(arguments, name) for name in ("groups", "rows", "columns", "depth")}


def address(matrix) -> int:
    """Of a pointer, or of a descriptor."""
    return matrix["address"] if isinstance(matrix, dict) else matrix


def is_gated(given: dict) -> bool:
    """Whether a product applies a gated activation itself."""
    return given.get("activation", 0) > 0
