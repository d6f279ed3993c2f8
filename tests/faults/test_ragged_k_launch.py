"""grouped_mm with ragged K up to the driver: its kernels, the words and descriptors that they read, and the grid."""

import struct

import pytest

import gg_runtime
from embedded import KERNELS
from faults.fake_driver import SM_80, assert_says
from faults.parameters import by_value, ragged_arguments, read_ragged
from faults.test_ragged_launch import BYTES, TENSOR_MAP_TYPES

OF_K_ENDS = [kernel for kernel in KERNELS.values() if kernel["extents"] == "k_ends"]
SCALED_K_KERNELS = [kernel for kernel in OF_K_ENDS if kernel["scaling"] == "block"]  # test_scaled_k_launch.py
RAGGED_K_KERNELS = [kernel for kernel in OF_K_ENDS if kernel not in SCALED_K_KERNELS]
HALF = struct.unpack("<I", struct.pack("<f", 0.5))[0]
ONE = struct.unpack("<I", struct.pack("<f", 1.0))[0]

OPERANDS = """
    def ragged_k(m, n, total, groups, layout="tn", pad=0, dtype="float16", out_dtype=None):
        mat_a = matrix(m, total, order=layout[0], pad=pad, dtype=dtype)
        mat_b = matrix(total, n, order=layout[1], pad=pad, dtype=dtype)
        offs = ExchangeArray(groups, address=fresh_address(), dtype="int32")
        strides = (m * (n + pad) + pad, n + pad, 1)
        out = ExchangeArray(groups, m, n, strides=strides, address=fresh_address(), dtype=out_dtype or dtype)
        return mat_a, mat_b, offs, out
"""

ONE_PRODUCT = (
    OPERANDS
    + """
    mat_a, mat_b, offs, out = ragged_k(*{sizes}, layout="{layout}", pad={pad})
    grouped_mm(mat_a, mat_b, offs=offs, out=out)
    report([x.facts() for x in (mat_a, mat_b, out, offs)])
"""
)


def read(launch: dict) -> dict:
    return read_ragged(by_value(ragged_arguments(launch), launch["symbol"]), launch["symbol"])


def kernel_of(ran, launch: dict) -> dict:
    found = ran.hash_of(launch)
    return next(kernel for kernel in KERNELS.values() if found in (kernel["cubin_sha256"], kernel["ptx_sha256"]))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("pad", [0, 8, 3])
def test_basic_ragged_k_reads_every_address_stride_and_size(fake_cuda, layout, pad):
    ran = fake_cuda.run(ONE_PRODUCT.format(sizes=(1096, 1056, 400, 3), layout=layout, pad=pad), **SM_80)
    (launch,), ((a, b, c, offs),) = ran.launches, ran.reported
    kernel = kernel_of(ran, launch)
    assert (launch["symbol"], kernel["layout"]) == ("basic_ragged_k", layout)
    assert kernel["alignment"] == (16 if layout == "tn" and pad % 8 == 0 else 2)
    assert read(launch) == {
        "a": a["address"], "b": b["address"], "c": c["address"], "a_row": a["strides"][0], "a_col": a["strides"][1],
        "b_row": b["strides"][0], "b_col": b["strides"][1], "c_group": c["strides"][0], "c_row": c["strides"][1],
        "c_col": c["strides"][2], "offs": offs["address"], "alpha_at": 0, "alpha_bits": ONE, "splits": 1,
    }  # fmt: skip
    arguments = ragged_arguments(launch)
    assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (3, 1096, 1056, 400)


ALL_VARIANTS = (
    OPERANDS
    + """
    for kernel in gg_runtime.kernels():
        if kernel["extents"] != "k_ends" or kernel["scaling"] == "block" or kernel["sm"] not in {sms}:
            continue
        dtype, out_dtype = FULL_NAMES[kernel["dtype"]], FULL_NAMES[kernel["out_dtype"]]
        layout = kernel["layout"] if kernel["layout"] != "strided" else "nn"
        arrays = ragged_k(160, 192, 320, 5, layout, 16, dtype, out_dtype)
        mat_a, mat_b, offs, out = arrays
        index = ExchangeArray(320, address=fresh_address(), dtype="int64")
        given = {{"rows": {{}}, "indexed": {{"a_index": index}}, "indexed_b": {{"b_index": index}}}}[kernel["source"]]
        gg_runtime._C.grouped_mm(mat_a, mat_b, offs=offs, out=out, alpha=0.5, variant=kernel["name"], **given)
        report([kernel["name"], *(x.facts() for x in (mat_a, mat_b, out, offs, index))])
"""
)


@pytest.mark.parametrize(("sm", "built_for"), [(80, (80,)), (90, (80, 90))])
def test_every_embedded_variant_is_launched_as_its_manifest_says(fake_cuda, sm, built_for):
    ran = fake_cuda.run(ALL_VARIANTS.format(sms=built_for), FAKE_CUDA_SM=sm)
    assert len(ran.launches) == len(ran.reported) == sum(kernel["sm"] in built_for for kernel in RAGGED_K_KERNELS) > 0
    manifest = gg_runtime.manifest()["artifacts"]
    for (name, *arrays), launch in zip(ran.reported, ran.launches):
        kernel, entry = KERNELS[name], manifest[name]
        assert (launch["symbol"], launch["block"], launch["shared"]) == (
            entry["symbol"], [kernel["threads"], 1, 1], kernel["shared_bytes"],
        )  # fmt: skip
        arguments = ragged_arguments(launch)
        assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (5, 160, 192, 320), name
        words = read(launch)
        facts = words["offs"], words["alpha_at"], words["alpha_bits"], words["splits"]
        assert facts == (arrays[3]["address"], 0, HALF, 1), name
        assert words.get("accumulates", 0) == 0, name
        if kernel["addressing"] == "host_descriptors":
            assert_descriptors(words, kernel, *arrays[:3])
        if kernel["source"] != "rows":
            assert_gathered(words, arrays[0] if kernel["source"] == "indexed" else arrays[1], arrays[4])
        tiles = 5 * -(-160 // kernel["block_m"]) * -(-192 // kernel["block_n"])
        assert launch["grid"][0] <= tiles, name
        assert ran.hash_of(launch) == kernel[f"{'cubin' if kernel['sm'] == sm else 'ptx'}_sha256"], name


def assert_descriptors(words: dict, kernel: dict, a: dict, b: dict, c: dict) -> None:
    """Boxes 128 bytes wide; K of A and B counted up to 2^30, where a group's end is put; the stack of C."""
    size, out_size, name = BYTES[kernel["dtype"]], BYTES[kernel["out_dtype"]], kernel["name"]
    for field, array, k in (("a", a, 1), ("b", b, 0)):
        if kernel["source"] == {"a": "indexed", "b": "indexed_b"}[field]:
            assert words[field]["address"] == 0, "its rows are no boxes"
            continue
        step = array["strides"][k] * size
        assert words[field] == {
            "address": array["address"], "sizes": [array["shape"][1 - k], 1 << 30, 0x7FFF0000, 0x7FFF0000],
            "strides": [step, (size << 34) - step, step], "box": [128 // size, kernel["block_k"], 1, 1],
            "type": TENSOR_MAP_TYPES[kernel["dtype"]],
        }, name  # fmt: skip
    assert words["c"] == {
        "address": c["address"], "sizes": c["shape"][::-1],
        "strides": [c["strides"][1] * out_size, c["strides"][0] * out_size],
        "box": [128 // out_size, kernel["block_m"] // max(kernel["split"], 1), 1],
        "type": TENSOR_MAP_TYPES[kernel["out_dtype"]],
    }, name  # fmt: skip


def assert_gathered(words: dict, source: dict, index: dict) -> None:
    """160 columns of A, or 192 of B, and a gap: all rows of the source, by their own stride."""
    names = ("gathered", "gathered_rows", "gathered_row", "index", "index_bytes")
    stride = max(source["strides"])
    assert [words[name] for name in names] == [source["address"], 320, stride, index["address"], 8]


def test_a_factor_on_the_device_is_read_there(fake_cuda):
    ran = fake_cuda.run(
        OPERANDS
        + """
    mat_a, mat_b, offs, out = ragged_k(256, 256, 512, 4)
    alpha = ExchangeArray(1, address=fresh_address(), dtype="float32")
    grouped_mm(mat_a, mat_b, offs=offs, out=out, alpha=alpha)
    report(alpha.facts())
    """
    )
    words = read(ran.launches[0])
    assert (ran.launches[0]["symbol"], words["alpha_at"]) == ("hopper_ragged_k", ran.reported[0]["address"])


def test_more_tiles_than_a_launch_counts_are_refused(fake_cuda):
    ran = fake_cuda.run(
        OPERANDS
        + """
    mat_a, mat_b, offs, out = ragged_k(1 << 20, 1 << 20, 512, 1 << 10)
    report(failure(grouped_mm, mat_a, mat_b, offs=offs, out=out))
    """
    )
    assert_says(ran.reported[0], "ValueError", "grouped_mm", "output tiles", "one call takes", "split the product")
    assert ran.launches == []


@pytest.mark.parametrize("factor", ["alpha", "beta"])
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_a_checked_plan_knows_its_factor_again(fake_cuda, factor, shape):
    ran = fake_cuda.run(f"""
    import torch
    def tensor(*shape, **facts):
        return torch.Tensor(*shape, address=fresh_address(), **facts)
    mat_a, mat_b, offs = tensor(64, 1024, strides=(1, 64)), tensor(1024, 64), tensor(4, dtype=torch.int32)
    out, factor = tensor(4, 64, 64, dtype=torch.float32), tensor(*{shape}, dtype=torch.float32)
    plan = Plan(mat_a, mat_b, offs=offs, out=out, checked=True, {factor}=factor)
    report(failure(plan.run))
    factor.address += 256
    report(failure(plan.run))
    """)  # fmt: skip
    known, moved = ran.reported
    assert known["type"] is None
    assert_says(moved, "RuntimeError", f"Plan: {factor} has other memory")
