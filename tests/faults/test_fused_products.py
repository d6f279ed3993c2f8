"""grouped_mm by kernels that gather rows or apply a gated activation: every word and descriptor of their records."""

import itertools
import json

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import by_value, limit_bits, ragged_arguments, read_ragged
from faults.test_ragged_launch import GROUPED_KERNELS, RAGGED_KERNELS

# The kernels that go back through an activation are no call's of grouped_mm: test_down_gradient_launch.py.
FUSED_KERNELS = [
    kernel for kernel in GROUPED_KERNELS if kernel not in RAGGED_KERNELS and kernel["epilogue"] != "gated_gradient"
]
ACTIVATIONS = ("none", "swiglu", "geglu", "geglu_tanh", "swiglu_oai")
ORDERS = ("gate_first", "up_first", "interleaved")
ROWS, COLUMNS, DEPTH, GROUPS, SOURCE_ROWS = 160, 192, 320, 5, 37
TENSOR_MAP_TYPES = {"fp16": 6, "bf16": 9}  # CUtensorMapDataType
ANY_ROW, LAST_ROW = 0x7FFF0000, 1 << 30


def orders_of(kernel: dict) -> tuple[str, ...]:
    """With N contiguous, columns in turns are for gated_pairs alone."""
    if kernel["epilogue"] == "gated_pairs":
        return ("interleaved",)
    return ORDERS if kernel["layout"] == "nt" and not keeps(kernel) else ORDERS[:2]


def keeps(kernel: dict) -> bool:
    """Whether it writes the pre-activation too: halves of it."""
    return kernel["epilogue"] == "gated_kept"


def calls_of(kernels: list[dict]) -> list[dict]:
    """Every order, source and activation that a kernel takes, in turns."""
    activations, index_types = itertools.cycle(ACTIVATIONS[1:]), itertools.cycle(("int32", "int64"))
    limits = itertools.cycle((None, 10.0, 0.5))
    without_erf = itertools.cycle(("swiglu", "geglu_tanh", "swiglu_oai"))  # of a kernel that keeps
    sources = {"rows": (False,), "indexed": (True,), "either": (False, True)}
    calls = [
        {
            "variant": kernel["name"],
            "layout": kernel["layout"],
            "dtype": {"fp16": "float16", "bf16": "bfloat16"}[kernel["dtype"]],
            "index": next(index_types) if is_indexed else None,
            "order": order,
            "activation": None
            if kernel["epilogue"] == "linear"
            else next(without_erf if keeps(kernel) else activations),
            "kept": keeps(kernel),
        }
        for kernel in kernels
        for order in orders_of(kernel)
        for is_indexed in sources[kernel["source"]]
    ]
    for call in calls:
        call["limit"] = next(limits) if call["activation"] in ("swiglu", "swiglu_oai") else None
    return calls


RUN = f"""
    import json
    for call in json.loads('''CALLS'''):
        dtype, index, kept = call["dtype"], None, None
        rows = {SOURCE_ROWS} if call["index"] else {ROWS}
        mat_a, mat_b, offs = ragged(rows, {COLUMNS}, {DEPTH}, {GROUPS}, layout=call["layout"], pad=16, dtype=dtype)
        columns = {COLUMNS} if call["activation"] is None else {COLUMNS} // 2
        out, bias = matrix({ROWS}, columns, pad=8, dtype=dtype), matrix({GROUPS}, {COLUMNS}, order="t", dtype=dtype)
        if call["index"]:
            index = ExchangeArray({ROWS}, address=fresh_address(), dtype=call["index"])
        if call["kept"]:
            kept = matrix({ROWS}, {COLUMNS}, pad=24, dtype=dtype)
        gg_runtime._C.grouped_mm(mat_a, mat_b, offs=offs, out=out, bias=bias, a_index=index, gate_up=call["order"],
                                 activation=call["activation"], swiglu_limit=call["limit"], preactivation=kept,
                                 variant=call["variant"])
        report([x.facts() if x is not None else None for x in (mat_a, mat_b, out, offs, bias, index, kept)])
"""


def run(fake_cuda, calls: list[dict], **settings):
    """(call, its launch, its record, facts of A, B, C, offs, bias, the index and what is kept) of each."""
    ran = fake_cuda.run(RUN.replace("CALLS", json.dumps(calls)), **settings)
    assert len(ran.launches) == len(ran.reported) == len(calls) > 0
    for call, launch, arrays in zip(calls, ran.launches, ran.reported):
        kernel = KERNELS[call["variant"]]
        image = "cubin" if settings.get("FAKE_CUDA_SM", 90) == kernel["sm"] else "ptx"
        assert ran.hash_of(launch) == kernel[f"{image}_sha256"], call
        yield call, launch, read_ragged(by_value(ragged_arguments(launch), launch["symbol"]), launch["symbol"]), arrays


def places(order: str, step: int) -> tuple[int, int, int]:
    """Of gate's first column, of up's, and from a column to the next of its own, where columns are `step` apart."""
    half = COLUMNS // 2 * step
    return {"gate_first": (0, half, step), "up_first": (half, 0, step), "interleaved": (0, step, 2 * step)}[order]


def expected_rest(call: dict, offs: dict, bias: dict, index: dict | None, a: dict) -> dict:
    """What both records have of biases, the activation and the index. Biases have columns GROUPS apart."""
    is_gated = call["activation"] is not None
    gate, up, step = places(call["order"], bias["strides"][1]) if is_gated else (0, None, bias["strides"][1])
    rest = {"offs": offs["address"], "bias": bias["address"] + 2 * gate, "bias_row": bias["strides"][0]}
    rest |= {"bias_col": step, "scale_a": 0, "scale_b": 0, "scale_b_step": 0, "skips_rest": 0}
    rest |= {"activation": ACTIVATIONS.index(call["activation"] or "none")}
    rest |= {"limit_bits": limit_bits(call["activation"], call["limit"])}
    rest |= {"up_first": int(is_gated and call["order"] == "up_first"), "a_rows": a["shape"][0]}
    rest |= {"index": index["address"] if index else 0}
    if is_gated:
        rest["bias_up"] = bias["address"] + 2 * up
    if index:
        rest["index_bytes"] = {"int32": 4, "int64": 8}[call["index"]]
    return rest


def expected_b(call: dict, kernel: dict, b: dict) -> dict:
    """A gated B in halves: [K, I, 2, groups] or [I, K, 2, groups], of which TMA takes gate or up of one group."""
    by_columns, is_halved = kernel["layout"] == "nt", kernel["epilogue"] in ("gated", "gated_kept")
    b_group, b_row, b_col = (2 * stride for stride in b["strides"])
    described = {"address": b["address"], "type": TENSOR_MAP_TYPES[kernel["dtype"]]}
    if not is_halved:
        sizes, leading = ([DEPTH, COLUMNS], b_col) if by_columns else ([COLUMNS, DEPTH], b_row)
        box = [64, kernel["block_n"] if by_columns else kernel["block_k"], 1]
        return described | {"sizes": [*sizes, GROUPS], "strides": [leading, b_group], "box": box}
    gate, up, step = places(call["order"], b_col)
    sizes, leading = ([DEPTH, COLUMNS // 2], step) if by_columns else ([COLUMNS // 2, DEPTH], b_row)
    box = [64, kernel["block_n"] // 2 if by_columns else kernel["block_k"], 1, 1]
    return described | {"sizes": [*sizes, 2, GROUPS], "strides": [leading, abs(up - gate), b_group], "box": box}


def counted_from_behind(array: dict, kernel: dict, columns: int, box_rows: int) -> dict:
    row = 2 * array["strides"][0]
    return {
        "address": array["address"], "sizes": [columns, LAST_ROW, ANY_ROW, ANY_ROW],
        "strides": [row, (2 << 34) - row, row], "box": [64, box_rows, 1, 1], "type": TENSOR_MAP_TYPES[kernel["dtype"]],
    }  # fmt: skip


def assert_fields(found: dict, wanted: dict, call: dict) -> None:
    assert {name: found[name] for name in wanted} == wanted, call


def test_every_kernel_with_descriptors_reads_what_lies_where(fake_cuda):
    kernels = [kernel for kernel in FUSED_KERNELS if kernel["addressing"] == "host_descriptors"]
    assert {kernel["kernel"] for kernel in kernels} == {
        "hopper_gated", "hopper_gated_pairs", "hopper_gather", "hopper_gather_gated", "hopper_gather_gated_pairs",
        "hopper_gated_kept", "hopper_gather_gated_kept",
    }  # fmt: skip
    for call, launch, words, (a, b, c, offs, bias, index, kept) in run(fake_cuda, calls_of(kernels)):
        kernel = KERNELS[call["variant"]]
        assert (launch["symbol"], launch["block"], launch["shared"]) == (
            "hopper_kept" if keeps(kernel) else "hopper_ragged", [kernel["threads"], 1, 1], kernel["shared_bytes"],
        ), call  # fmt: skip
        assert_fields(words, expected_rest(call, offs, bias, index, a), call)
        assert_fields(words, {"a_address": a["address"], "a_row": a["strides"][0]}, call)
        assert words["b"] == expected_b(call, kernel, b), call
        box_rows = kernel["block_m"] // max(kernel["split"], 1)
        assert words["c"] == counted_from_behind(c, kernel, c["shape"][1], box_rows), call
        if keeps(kernel):
            gate, up, _ = places(call["order"], 2)
            for name, at in (("kept", gate), ("kept_up", up)):
                half = kept | {"address": kept["address"] + at}
                assert words[name] == counted_from_behind(half, kernel, COLUMNS // 2, box_rows), call
        if index is None:
            assert words["a"] == counted_from_behind(a, kernel, DEPTH, kernel["block_m"]), call
        else:
            assert words["a"]["address"] == 0, "no descriptor is made of rows by an index"
        arguments = ragged_arguments(launch)
        sizes = (arguments.groups, arguments.rows, arguments.columns, arguments.depth)
        assert sizes == (GROUPS, ROWS, COLUMNS, DEPTH), call


@pytest.mark.parametrize("settings", [SM_80, {"FAKE_CUDA_SM": 100}], ids=["sm_80", "its PTX"])
def test_basic_gated_reads_every_address_stride_and_size(fake_cuda, settings):
    kernels = [kernel for kernel in FUSED_KERNELS if kernel["kernel"] == "basic_gated"]
    for call, launch, words, (a, b, c, offs, bias, index, _) in run(fake_cuda, calls_of(kernels), **settings):
        assert launch["symbol"] == "basic_gated"
        b_group, b_row, b_col = b["strides"]
        gate, up, step = places(call["order"], b_col)
        wanted = expected_rest(call, offs, bias, index, a)
        wanted |= {"a": a["address"], "a_row": a["strides"][0], "a_col": 1}
        wanted |= {"b": b["address"] + 2 * gate, "b_up": b["address"] + 2 * up}
        wanted |= {"b_group": b_group, "b_row": b_row, "b_col": step}
        wanted |= {"c": c["address"], "c_row": c["strides"][0], "c_col": 1}
        assert_fields(words, wanted, call)
        arguments = ragged_arguments(launch)
        sizes = (arguments.groups, arguments.rows, arguments.columns, arguments.depth)
        assert sizes == (GROUPS, ROWS, COLUMNS, DEPTH), call


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_gate_and_up_means_nothing_to_a_bias_where_there_are_none(fake_cuda, order):
    kernel = next(kernel for kernel in FUSED_KERNELS if kernel["kernel"] == "hopper_gather")
    call = calls_of([kernel])[0] | {"order": order}
    ((_, _, words, (*_, bias, _, _)),) = run(fake_cuda, [call])
    assert (words["bias"], words["bias_row"], words["bias_col"]) == (bias["address"], *bias["strides"])


ONE_ROW_OF_B = """
    for layout in ("nn", "nt"):
        mat_a, mat_b, offs = ragged(64, 64, 1, 3, layout=layout, dtype="bfloat16")
        mat_a.strides = (8, 1)
        out = matrix(64, 32, dtype="bfloat16")
        grouped_mm(mat_a, mat_b, offs=offs, out=out, activation="swiglu", gate_up="{order}")
"""


@pytest.mark.parametrize("order", ORDERS)
def test_matrices_of_one_row_are_read_whatever_the_order(fake_cuda, order):
    """K = 1: B's rows have no stride of their own, and its columns one of 1 in both layouts. TMA takes no step of 2."""
    ran = fake_cuda.run(ONE_ROW_OF_B.format(order=order))
    by_hash = {kernel["cubin_sha256"]: kernel for kernel in FUSED_KERNELS}
    kernels = [by_hash[ran.hash_of(launch)] for launch in ran.launches]
    epilogue = "gated_pairs" if order == "interleaved" else "gated"
    assert [(kernel["epilogue"], kernel["layout"]) for kernel in kernels] == [(epilogue, "nn")] * 2


FAR_HALVES = """
    import cupy
    mat_a, mat_b, offs = cupy.empty((256, 64), "bfloat16"), cupy.empty((1, 64, 128), "bfloat16"), cupy.empty(1, "int32")
    out = cupy.empty((256, 64), "bfloat16")
    mat_b.address, out.address = 1 << 20, 1 << 44
    for step in (2**32, 2**33, 2**34):
        mat_b.strides = (2**41, 1, step)
        grouped_mm(mat_a, mat_b, offs=offs, out=out, activation="swiglu", gate_up="gate_first")
"""


def test_halves_that_no_descriptor_reaches_are_read_otherwise(fake_cuda):
    """With K contiguous up lies N / 2 columns behind gate: 2^39 bytes here, then 2^40 and 2^41, past a TMA stride."""
    ran = fake_cuda.run(FAR_HALVES)
    by_hash = {kernel["cubin_sha256"]: kernel["epilogue"] for kernel in KERNELS.values()}
    assert [by_hash[ran.hash_of(launch)] for launch in ran.launches if launch["symbol"] != "activate"] == (
        ["gated", "linear", "linear"]
    )


FORCED = """
    import json
    mat_a, mat_b, offs = ragged(64, 64, 64, 3, layout="nn", dtype="bfloat16")
    index = ExchangeArray(64, address=fresh_address(), dtype="int32")
    out, half, kept = (matrix(64, columns, dtype="bfloat16") for columns in (64, 32, 64))
    def forced(variant, out, **given):
        report(failure(gg_runtime._C.grouped_mm, mat_a, mat_b, offs=offs, out=out, variant=variant, **given))
    names = json.loads('NAMES')
    forced(names["hopper_gather"], out)
    forced(names["hopper_gated"], out)
    forced(names["hopper_gated"], half, activation="swiglu", gate_up="interleaved")
    forced(names["hopper_gated_pairs"], half, activation="swiglu")
    forced(names["hopper_gather_gated"], half, activation="swiglu")
    forced(names["hopper_gated"], half, activation="swiglu", preactivation=kept)
    forced(names["hopper_gated_kept"], half, activation="swiglu")
    forced(names["hopper_gated_kept"], half, activation="geglu", preactivation=kept)
    forced(names["hopper_gated_kept"], half, activation="swiglu", gate_up="interleaved", preactivation=kept)
    forced(names["hopper_gather"], out, activation="silu", a_index=index)
"""


def test_a_kernel_is_forced_only_on_what_it_does(fake_cuda):
    """It then leaves the rest to others: the last call has an activation that no kernel of products applies."""
    chosen = [kernel for kernel in FUSED_KERNELS if (kernel["dtype"], kernel["layout"]) == ("bf16", "nn")]
    names = {kernel["kernel"]: kernel["name"] for kernel in chosen}
    ran = fake_cuda.run(FORCED.replace("NAMES", json.dumps(names)))
    words = ["rows of A by an index", "its epilogue is gated", "gated_pairs is needed", "gated is needed"]
    words += ["by an index", "gated_kept is needed", "gated is needed", "16 bytes", "16 bytes"]
    for error, word in zip(ran.reported, words):
        assert error["type"] == "ValueError" and word in error["text"], error
    assert [error["type"] for error in ran.reported[len(words) :]] == [None]
    assert [launch["symbol"] for launch in ran.launches] == ["hopper_ragged", "activate"]


def test_a_single_row_that_is_kept_has_no_stride_that_a_descriptor_could_refuse(fake_cuda):
    ran = fake_cuda.run("""
    mat_a, mat_b, offs = ragged(1, 4096, 2048, 8, dtype="bfloat16")
    kept = ExchangeArray(1, 4096, address=fresh_address(), strides=(4099, 1), dtype="bfloat16")
    out = matrix(1, 2048, dtype="bfloat16")
    grouped_mm(mat_a, mat_b, offs=offs, out=out, activation="swiglu", preactivation=kept)
    """)  # fmt: skip
    assert [launch["symbol"] for launch in ran.launches] == ["hopper_kept"]
