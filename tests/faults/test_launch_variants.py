"""Every embedded kernel through its own launcher, and what the TMA kernels need besides: scratch and descriptors."""

import pytest

import gg_runtime
from embedded import KERNELS
from faults.parameters import by_value, list_arguments, read_descriptors, read_list

OF_LISTS = ("basic", "tma", "hopper", "hopper_tensor_scales")
LIST_KERNELS = [kernel for kernel in KERNELS.values() if kernel["kernel"] in OF_LISTS]
FLOAT16, BFLOAT16 = 6, 9  # CUtensorMapDataType

ALL_VARIANTS = """
import cupy
for kernel in gg_runtime.kernels():
    if kernel["kernel"] not in {kernels} or kernel["sm"] not in {sms}:
        continue
    dtype, out_dtype = FULL_NAMES[kernel["dtype"]], FULL_NAMES[kernel["out_dtype"]]
    orders = kernel["layout"] if kernel["layout"] != "strided" else "nn"
    A, B = cupy.empty((128, 64), dtype, orders[0]), cupy.empty((64, 192), dtype, orders[1])
    out = cupy.empty((128, 192), out_dtype)
    plan = Plan([A], [B], out=[out], variant=kernel["name"])
    plan.run()
    report([kernel["name"], A.facts(), B.facts(), plan.out[0].facts()])
"""


@pytest.mark.parametrize(("sm", "built_for"), [(80, (80,)), (90, (80, 90))])
def test_every_embedded_variant_is_launched_as_its_manifest_says(fake_cuda, sm, built_for):
    """On sm_90 the sm_80 kernels too, through their PTX. Parameters have the size that the cubin declares."""
    ran = fake_cuda.run(ALL_VARIANTS.format(kernels=OF_LISTS, sms=built_for), FAKE_CUDA_SM=sm)
    assert len(ran.launches) == len(ran.reported) == sum(kernel["sm"] in built_for for kernel in LIST_KERNELS) > 0
    manifest = gg_runtime.manifest()["artifacts"]
    for (name, a, b, c), launch in zip(ran.reported, ran.launches):
        kernel, entry = KERNELS[name], manifest[name]
        arguments = list_arguments(launch)
        assert (launch["symbol"], launch["block"], launch["shared"]) == (
            entry["symbol"], [kernel["threads"], 1, 1], kernel["shared_bytes"],
        )  # fmt: skip
        assert len(launch["parameters"]) // 2 == entry["parameter_bytes"]
        assert (arguments.problems, arguments.groups, arguments.profile_scratch) == (0, 1, 0)
        assert (arguments.global_scratch != 0) == (kernel["scratch_bytes"] > 0), name
        words = by_value(arguments, kernel["kernel"])
        described = kernel["kernel"].startswith("hopper")
        read = read_descriptors if described else read_list
        (end,), (record,) = read(words, 1)
        assert (record["m"], record["n"], record["k"]) == (128, 192, 64), name
        assert end == arguments.tiles == -(-128 // kernel["block_m"]) * -(-192 // kernel["block_n"]), name
        addresses = [record[x]["address"] if described else record[x] for x in "abc"]
        assert addresses == [a["address"], b["address"], c["address"]], name
        image = "cubin" if kernel["sm"] == sm else "ptx"
        assert ran.hash_of(launch) == kernel[f"{image}_sha256"], name


def a_variant(kernel: str, **facts) -> dict:
    """One with unlike tile extents if there is one, so that rows and columns cannot be mistaken for each other."""
    if all(kernel["sm"] != 90 for kernel in LIST_KERNELS):
        pytest.skip(f"this wheel was built without sm_90, which {kernel} is for")
    wanted = {"kernel": kernel, "dtype": "fp16"} | facts
    fitting = (k for k in LIST_KERNELS if wanted.items() <= k.items())
    return max(fitting, key=lambda k: len({k["block_m"], k["block_n"], k["block_k"]}))


def test_device_made_descriptors_get_scratch_for_each_cta_on_128_bytes(fake_cuda):
    kernel = a_variant("tma")
    ran = fake_cuda.run(f"""
        import cupy
        A, B = (cupy.empty((512, 512), "float16", order) for order in "{kernel["layout"]}")
        Plan([A], [B], variant="{kernel["name"]}").run()
        report(cupy.allocations)
    """)
    (launch,) = ran.launches
    start = list_arguments(launch).global_scratch
    end = start + launch["grid"][0] * kernel["scratch_bytes"]
    assert start % 128 == 0
    assert any(address <= start and end <= address + size for address, size in ran.reported[0])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_host_made_descriptors_describe_each_matrix_and_the_boxes_of_its_kernel(fake_cuda, layout, dtype):
    kernel = a_variant("hopper", layout=layout, dtype=dtype)
    full = {"fp16": "float16", "bf16": "bfloat16"}[dtype]
    ran = fake_cuda.run(f"""
        A, B, out = operands([(96, 72, 40), (64, 136, 80)], layout="{layout}", pad=8, dtype="{full}")
        Plan(A, B, out=out, variant="{kernel["name"]}").run()
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
    """)
    arguments = list_arguments(ran.launches[0])
    _, records = read_descriptors(by_value(arguments, "hopper"), 2)
    block_m, block_n, block_k = kernel["block_m"], kernel["block_n"], kernel["block_k"]
    for record, arrays in zip(records, sorted(ran.reported[0], key=lambda group: -group[0]["shape"][1])):
        a_rows, b_rows = block_m if layout[0] == "n" else block_k, block_k if layout[1] == "n" else block_n
        for name, array, order, box_rows in zip("abc", arrays, (*layout, "n"), (a_rows, b_rows, block_m)):
            rows, columns = array["shape"] if order == "n" else array["shape"][::-1]
            assert record[name] == {
                "address": array["address"], "columns": columns, "rows": rows, "row_stride": 2 * max(array["strides"]),
                "box_columns": 64, "box_rows": box_rows, "type": FLOAT16 if dtype == "fp16" else BFLOAT16, "rank": 2,
            }  # fmt: skip


def test_a_descriptor_that_the_driver_refuses_is_reported_with_its_kernel(fake_cuda):
    kernel = a_variant("hopper", layout="nn")
    ran = fake_cuda.run(f"""
        A, B, out = operands([(64, 64, 64)])
        report(failure(Plan, A, B, out=out, variant="{kernel["name"]}"))
    """, FAKE_CUDA_FAIL="cuTensorMapEncodeTiled:1:1")  # fmt: skip
    assert (ran.reported[0]["type"], ran.reported[0]["call"]) == ("CudaError", "cuTensorMapEncodeTiled")
    assert kernel["name"] in ran.reported[0]["text"]
