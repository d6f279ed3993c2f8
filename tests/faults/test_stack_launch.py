"""grouped_mm of stacks, batched and masked, up to the driver: every word and descriptor that its kernels read."""

import itertools
import json

import pytest

import gg_runtime
from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_fused_products import ANY_ROW, LAST_ROW, TENSOR_MAP_TYPES

STACK_KERNELS = [k for k in KERNELS.values() if k["extents"] == "m_counts" and k["scaling"] == "none"]
GROUPS, ROWS, COLUMNS, DEPTH = 5, 160, 192, 320
ORDERS = ("gate_first", "up_first", "interleaved")
ACTIVATIONS = ("none", "swiglu")


def orders_of(kernel: dict) -> tuple[str, ...]:
    if kernel["epilogue"] == "linear":
        return ("gate_first",)
    if kernel["epilogue"] == "gated_pairs":
        return ("interleaved",)
    return ORDERS if kernel["layout"] == "nt" else ORDERS[:2]


RUN = f"""
    import json
    for call in json.loads('''CALLS'''):
        dtype, columns = call["dtype"], {COLUMNS} if call["activation"] is None else {COLUMNS} // 2
        mat_a, mat_b = stacks({GROUPS}, {ROWS}, {COLUMNS}, {DEPTH}, layout=call["layout"], pad=16, gap=8, dtype=dtype)
        out, _ = stacks({GROUPS}, {ROWS}, 8, columns, pad=8, gap=16, dtype=dtype)
        bias = matrix({GROUPS}, {COLUMNS}, order="t", dtype=dtype)
        counts = ExchangeArray({GROUPS}, address=fresh_address(), dtype="int32") if call["masked"] else None
        gg_runtime._C.grouped_mm(mat_a, mat_b, out=out, bias=bias, counts=counts, gate_up=call["order"],
                                 activation=call["activation"], variant=call["variant"])
        report([x.facts() if x is not None else None for x in (mat_a, mat_b, out, bias, counts)])
"""


def calls_of(kernels: list[dict]) -> list[dict]:
    """Every order that a kernel takes, batched and masked."""
    return [
        {
            "variant": kernel["name"],
            "layout": kernel["layout"] if kernel["layout"] != "strided" else "nn",
            "dtype": {"fp16": "float16", "bf16": "bfloat16"}[kernel["dtype"]],
            "order": order,
            "activation": None if kernel["epilogue"] == "linear" else "swiglu",
            "masked": masked,
        }
        for kernel in kernels
        for order, masked in itertools.product(orders_of(kernel), (False, True))
    ]


def run(fake_cuda, calls: list[dict], **settings):
    """(call, its kernel, its record, facts of A, B, C, bias and counts) of each."""
    ran = fake_cuda.run(RUN.replace("CALLS", json.dumps(calls)), **settings)
    assert len(ran.launches) == len(ran.reported) == len(calls) > 0
    manifest = gg_runtime.manifest()["artifacts"]
    for call, launch, arrays in zip(calls, ran.launches, ran.reported):
        kernel = KERNELS[call["variant"]]
        image = "cubin" if settings.get("FAKE_CUDA_SM", 90) == kernel["sm"] else "ptx"
        assert ran.hash_of(launch) == kernel[f"{image}_sha256"], call
        assert (launch["symbol"], launch["block"], launch["shared"]) == (
            manifest[kernel["name"]]["symbol"], [kernel["threads"], 1, 1], kernel["shared_bytes"],
        ), call  # fmt: skip
        arguments = ragged_arguments(launch)
        sizes = (arguments.groups, arguments.rows, arguments.columns, arguments.depth)
        assert sizes == (GROUPS, ROWS, COLUMNS, DEPTH), call
        yield call, kernel, read_ragged(by_value(arguments, launch["symbol"]), launch["symbol"]), arrays


@pytest.mark.parametrize("settings", [SM_80, {}, {"FAKE_CUDA_SM": 100}], ids=["sm_80", "sm_90", "PTX"])
def test_basic_stack_reads_every_address_and_stride(fake_cuda, settings):
    sm = 90 if settings == {} else 80
    kernels = [kernel for kernel in STACK_KERNELS if (kernel["kernel"], kernel["sm"]) == ("basic_stack", sm)]
    for call, _kernel, words, (a, b, c, bias, counts) in run(fake_cuda, calls_of(kernels), **settings):
        wanted = {"bias": bias["address"], "bias_row": bias["strides"][0], "bias_col": bias["strides"][1]}
        wanted |= {"counts": counts["address"] if counts else 0, "scale_a": 0, "scale_b": 0, "scale_b_step": 0}
        for name, array in (("a", a), ("b", b), ("c", c)):
            strides = dict(zip((f"{name}_group", f"{name}_row", f"{name}_col"), array["strides"]))
            wanted |= {name: array["address"]} | strides
        assert words == wanted, call


def places(order: str, step: int) -> tuple[int, int, int]:
    """Of gate's first column, of up's, and from a column to the next of its own, where columns are `step` apart."""
    half = COLUMNS // 2 * step
    return {"gate_first": (0, half, step), "up_first": (half, 0, step), "interleaved": (0, step, 2 * step)}[order]


def described(kernel: dict, array: dict, sizes: list, strides: list, box: list) -> dict:
    """Strides in elements; the box is 128 bytes wide."""
    sizes_of_matrix = {"address": array["address"], "type": TENSOR_MAP_TYPES[kernel["dtype"]], "sizes": sizes}
    return sizes_of_matrix | {"strides": [2 * stride for stride in strides], "box": [64, *box]}


def by_rows(kernel: dict, array: dict, box_rows: int) -> dict:
    """Rows counted from behind, up to 2^30, and the group as the fifth coordinate."""
    (groups, _, columns), (group, row, _) = array["shape"], array["strides"]
    sizes, strides = [columns, LAST_ROW, ANY_ROW, ANY_ROW, groups], [row, (1 << 34) - row, row, group]
    return described(kernel, array, sizes, strides, [box_rows, 1, 1, 1])


def expected_a(kernel: dict, a: dict) -> dict:
    if kernel["layout"][0] == "n":
        return by_rows(kernel, a, kernel["block_m"])
    return described(kernel, a, [ROWS, DEPTH, GROUPS], [a["strides"][2], a["strides"][0]], [kernel["block_k"], 1])


def expected_b(call: dict, kernel: dict, b: dict) -> dict:
    group, row, column = b["strides"]
    columns, leading = COLUMNS, row
    more_sizes, more_strides, n = [GROUPS], [group], kernel["block_n"]
    if kernel["epilogue"] == "gated":
        gate, up, column = places(call["order"], column)
        columns, n = COLUMNS // 2, n // 2
        more_sizes, more_strides = [2, GROUPS], [abs(up - gate), group]
    ones = [1] * len(more_sizes)
    if kernel["layout"][1] == "t":
        return described(kernel, b, [DEPTH, columns, *more_sizes], [column, *more_strides], [n, *ones])
    return described(kernel, b, [columns, DEPTH, *more_sizes], [leading, *more_strides], [kernel["block_k"], *ones])


def test_every_kernel_with_descriptors_reads_what_lies_where(fake_cuda):
    kernels = [kernel for kernel in STACK_KERNELS if kernel["addressing"] == "host_descriptors"]
    names = {kernel["kernel"] for kernel in kernels}
    assert names == {"hopper_stack", "hopper_stack_gated", "hopper_stack_gated_pairs"}
    for call, kernel, words, (a, b, c, bias, counts) in run(fake_cuda, calls_of(kernels)):
        assert words["a"] == expected_a(kernel, a), call
        assert words["b"] == expected_b(call, kernel, b), call
        assert words["c"] == by_rows(kernel, c, kernel["block_m"] // max(kernel["split"], 1)), call
        assert words["offs"] == (counts["address"] if counts else 0), call
        assert words["bias_row"] == bias["strides"][0], call
        if kernel["epilogue"] == "linear":
            assert (words["bias"], words["bias_col"]) == (bias["address"], bias["strides"][1]), call
            continue
        gate, up, step = places(call["order"], bias["strides"][1])
        found = (words["bias"], words["bias_up"], words["bias_col"])
        assert found == (bias["address"] + 2 * gate, bias["address"] + 2 * up, step), call
        assert words["activation"] == ACTIVATIONS.index("swiglu"), call
        assert words["up_first"] == (call["order"] == "up_first"), call


@pytest.mark.parametrize("pitch", [128, 4096, 2**33 - 16])
def test_the_kernels_coordinates_of_a_row_lead_to_it_by_the_descriptors(fake_cuda, pitch):
    """What csrc/forms/stack_record.cpp encodes, and what `ragged_row` makes of rows, as the hardware adds it up."""
    ragged_m = pytest.importorskip("aot.kernels.hopper.schedules.ragged_m", reason="Triton is not installed")
    apart = 2**35 - 16
    ran = fake_cuda.run(f"""
        mat_a, mat_b = stacks(4, 2, 64, 128)
        out, _ = stacks(4, 2, 8, 64)
        mat_a.strides = out.strides = ({apart}, {pitch}, 1)
        mat_a.address, out.address = 1 << 41, 1 << 42
        report([x.facts() for x in (mat_a, out)])
        grouped_mm(mat_a, mat_b, out=out)
    """)
    (launch,) = ran.launches
    assert launch["symbol"] == "hopper_stack"
    words = read_ragged(by_value(ragged_arguments(launch), launch["symbol"]), launch["symbol"])
    for name, array in zip("ac", ran.reported[0]):
        for group, count, row in [(0, 1, 0), (3, 2**30, 2**30 - 1), (2, 300, 299), (1, 2**30, 17)]:
            counted = getattr(ragged_m.ragged_row.fn(0, count, row), "value", None)
            assert LAST_ROW - count <= counted < LAST_ROW == words[name]["sizes"][1]
            steps = zip(words[name]["strides"], (counted, LAST_ROW, count, group))
            address = words[name]["address"] + sum(stride * step for stride, step in steps)
            assert address % 2**64 == (array["address"] + 2 * (pitch * row + apart * group)) % 2**64


def kernel_of(fake_cuda, script: str, **settings) -> list[dict]:
    ran = fake_cuda.run(script, **settings)
    return [KERNELS[variant] for variant in ran.reported]


def test_what_tma_cannot_describe_is_left_to_pointers(fake_cuda):
    """One stride, offset or size at a time that is no whole 16 bytes; and a matrix for all groups, without a stride."""
    kernels = kernel_of(fake_cuda, """
        def chosen(change):
            mat_a, mat_b = stacks(4, 64, 64, 64)
            out, _ = stacks(4, 64, 8, 64)
            out.address = 1 << 43  # far behind the others
            change(mat_a, mat_b, out)
            report(explain(mat_a, mat_b, out=out).variant)
        def stride(array, *strides):
            array.strides = strides
        chosen(lambda a, b, c: None)
        chosen(lambda a, b, c: stride(a, 4096, 1, 64))
        chosen(lambda a, b, c: stride(b, 4096, 1, 64))
        chosen(lambda a, b, c: stride(c, 64, 256, 1))
        chosen(lambda a, b, c: stride(a, 4097, 64, 1))
        chosen(lambda a, b, c: stride(b, 4097, 64, 1))
        chosen(lambda a, b, c: stride(c, 4097, 64, 1))
        chosen(lambda a, b, c: stride(a, 0, 64, 1))
        chosen(lambda a, b, c: stride(b, 0, 64, 1))
        chosen(lambda a, b, c: stride(c, 4096, 1, 64))
        chosen(lambda a, b, c: setattr(a, "address", a.address + 2))
        chosen(lambda a, b, c: setattr(c, "address", c.address + 2))
        chosen(lambda a, b, c: stride(a, 2**40, 2**33, 1))
    """)  # fmt: skip
    assert [kernel["kernel"] for kernel in kernels] == ["hopper_stack"] * 4 + ["basic_stack"] * 9


def test_sizes_of_no_elements_and_of_no_depth(fake_cuda):
    ran = fake_cuda.run("""
        for sizes in ((0, 64, 64, 64), (4, 0, 64, 64), (4, 64, 0, 64)):
            mat_a, mat_b = stacks(*sizes)
            out, _ = stacks(sizes[0], sizes[1], 8, sizes[2])
            grouped_mm(mat_a, mat_b, out=out)
        mat_a, mat_b = stacks(4, 64, 64, 0)
        out, _ = stacks(4, 64, 8, 64)
        grouped_mm(mat_a, mat_b, out=out)
    """)
    assert [launch["symbol"] for launch in ran.launches] == ["basic_stack"]


@pytest.mark.parametrize(("groups", "rows"), [(1, 1), (3, 65), (7, 128)])
def test_a_small_product_takes_as_many_ctas_as_it_has_tiles(fake_cuda, groups, rows):
    ran = fake_cuda.run(f"""
        mat_a, mat_b = stacks({groups}, {rows}, 64, 64)
        out, _ = stacks({groups}, {rows}, 8, 64)
        grouped_mm(mat_a, mat_b, out=out)
        report(explain(mat_a, mat_b, out=out).variant)
    """, **SM_80)  # fmt: skip
    kernel, (launch,) = KERNELS[ran.reported[0]], ran.launches
    tiles = groups * -(-rows // kernel["block_m"]) * -(-64 // kernel["block_n"])
    assert launch["grid"] == [tiles, 1, 1]


def test_a_stack_of_more_tiles_than_32_bits_count_is_refused(fake_cuda):
    ran = fake_cuda.run("""
        mat_a, mat_b = stacks(2**20, 2**11, 2**16, 1)
        out, _ = stacks(2**20, 2**11, 1, 2**16)
        out.address = 1 << 42  # far behind the others
        report(failure(grouped_mm, mat_a, mat_b, out=out))
    """)
    assert ran.reported[0]["type"] == "ValueError" and "split the product" in ran.reported[0]["text"]
    assert ran.launches == []
