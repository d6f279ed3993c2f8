"""grouped_mm up to the driver: its kernel, the words and descriptors that it reads, the grid, and nothing else."""

import pytest

import gg_runtime
from arrays import FULL_NAMES
from embedded import KERNELS
from faults.fake_driver import SM_80, assert_says
from faults.parameters import by_value, ragged_arguments, read_ragged

MIXED_KERNELS = [
    k for k in KERNELS.values() if (k["dtype"], k["extents"]) == ("e5m2", "m_ends")
]  # test_scaled_launch.py
PLAIN = [k for k in KERNELS.values() if k not in MIXED_KERNELS]
OF_ENDS = [kernel for kernel in PLAIN if kernel["extents"] == "m_ends"]
PICKED_KERNELS = [k for k in OF_ENDS if (k["source"], k["scaling"]) == ("indexed", "block")]  # of layers alone
BY_SCALES = [kernel for kernel in OF_ENDS if kernel["scaling"] in ("row", "block")]
SCALED_KERNELS = [kernel for kernel in BY_SCALES if kernel not in PICKED_KERNELS]  # test_scaled_launch.py
GROUPED_KERNELS = [kernel for kernel in OF_ENDS if kernel not in BY_SCALES]
RAGGED_KERNELS = [k for k in GROUPED_KERNELS if (k["epilogue"], k["source"]) == ("linear", "rows")]
FITTED = next(k for k in RAGGED_KERNELS if k["row_step"] and (k["dtype"], k["layout"]) == ("fp16", "nn"))
TENSOR_MAP_TYPES = {"fp16": 6, "bf16": 9, "e4m3": 0, "fp32": 7, "e5m2": 0}  # CUtensorMapDataType
BYTES = {"fp16": 2, "bf16": 2, "e4m3": 1, "fp32": 4, "e5m2": 1}

ONE_PRODUCT = """
    mat_a, mat_b, offs = ragged(*{sizes}, layout="{layout}", pad={pad})
    out = matrix(*{sizes}[:2], pad={pad})
    grouped_mm(mat_a, mat_b, offs=offs, out=out, batch_invariant={batch_invariant})
    report(explain(mat_a, mat_b, offs=offs, out=out, batch_invariant={batch_invariant}).variant)
    report([x.facts() for x in (mat_a, mat_b, out, offs)])
"""


def run_one(fake_cuda, sizes, *, layout="nn", pad=0, batch_invariant=False, **settings):
    """One product of sizes (rows, N, K, E): its launch, the kernel that explain names, A, B, C and offs."""
    script = ONE_PRODUCT.format(sizes=sizes, layout=layout, pad=pad, batch_invariant=batch_invariant)
    ran = fake_cuda.run(script, **settings)
    (launch,) = ran.launches
    variant, arrays = ran.reported
    assert launch["symbol"] == KERNELS[variant]["kernel"]
    return launch, KERNELS[variant], arrays


def read(launch: dict) -> dict:
    return read_ragged(by_value(ragged_arguments(launch), launch["symbol"]), launch["symbol"])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("pad", [0, 8, 3])
def test_basic_ragged_reads_every_address_stride_and_size(fake_cuda, layout, pad):
    launch, kernel, (a, b, c, offs) = run_one(fake_cuda, (96, 56, 40, 3), layout=layout, pad=pad, **SM_80)
    assert (kernel["kernel"], kernel["layout"]) == ("basic_ragged", layout)
    assert kernel["alignment"] == (16 if layout[0] == "n" and pad % 8 == 0 else 2)
    assert read(launch) == {
        "a": a["address"], "b": b["address"], "c": c["address"], "a_row": a["strides"][0], "a_col": a["strides"][1],
        "b_group": b["strides"][0], "b_row": b["strides"][1], "b_col": b["strides"][2],
        "c_row": c["strides"][0], "c_col": c["strides"][1], "offs": offs["address"],
        "bias": 0, "bias_row": 0, "bias_col": 0, "scale_a": 0, "scale_b": 0, "scale_b_step": 0, "skips_rest": 0,
    }  # fmt: skip
    arguments = ragged_arguments(launch)
    assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (3, 96, 56, 40)
    assert (arguments.global_scratch, arguments.profile_scratch) == (0, 0)


ALL_VARIANTS = """
    import cupy
    for kernel in gg_runtime.kernels():
        if (kernel["extents"], kernel["epilogue"], kernel["source"]) != ("m_ends", "linear", "rows"):
            continue
        if kernel["scaling"] in ("row", "block"):
            continue
        if kernel["sm"] not in {sms} or kernel["dtype"] == "e5m2":
            continue
        dtype, out_dtype = FULL_NAMES[kernel["dtype"]], FULL_NAMES[kernel["out_dtype"]]
        layout = kernel["layout"] if kernel["layout"] != "strided" else "nn"
        mat_a, mat_b, offs = ragged(160, 192, 320, 5, layout=layout, pad=16, dtype=dtype)
        out, bias = matrix(160, 192, pad=16, dtype=out_dtype), matrix(5, 192, dtype=out_dtype)
        scales = dict(scale_a=matrix(1, 1, dtype="float32"), scale_b=ExchangeArray(5, address=1 << 40, dtype="float32"))
        gg_runtime._C.grouped_mm(mat_a, mat_b, offs=offs, out=out, bias=bias, variant=kernel["name"],
                                 **(scales if dtype == "float8_e4m3fn" else {{}}))
        report([kernel["name"], *(x.facts() for x in (mat_a, mat_b, out, offs, bias, *scales.values()))])
"""


@pytest.mark.parametrize(("sm", "built_for"), [(80, (80,)), (90, (80, 90))])
def test_every_embedded_variant_is_launched_as_its_manifest_says(fake_cuda, sm, built_for):
    ran = fake_cuda.run(ALL_VARIANTS.format(sms=built_for), FAKE_CUDA_SM=sm)
    assert len(ran.launches) == len(ran.reported) == sum(kernel["sm"] in built_for for kernel in RAGGED_KERNELS) > 0
    manifest = gg_runtime.manifest()["artifacts"]
    for (name, *arrays), launch in zip(ran.reported, ran.launches):
        kernel, entry = KERNELS[name], manifest[name]
        assert (launch["symbol"], launch["block"], launch["shared"]) == (
            entry["symbol"], [kernel["threads"], 1, 1], kernel["shared_bytes"],
        )  # fmt: skip
        assert len(launch["parameters"]) // 2 == entry["parameter_bytes"]
        arguments = ragged_arguments(launch)
        assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (5, 160, 192, 320), name
        words = read(launch)
        offs, bias, scale_a, scale_b = (array["address"] for array in arrays[3:])
        assert (words["offs"], words["bias"], words["bias_row"], words["bias_col"]) == (offs, bias, 192, 1), name
        scales = (scale_a, scale_b, 1) if kernel["dtype"] == "e4m3" else (0, 0, 0)
        assert (words["scale_a"], words["scale_b"], words["scale_b_step"]) == scales, name
        assert words["skips_rest"] == 0, name
        if kernel["kernel"] != "basic_ragged":
            assert_descriptors(words, kernel, *arrays[:3])
        image = "cubin" if kernel["sm"] == sm else "ptx"
        assert ran.hash_of(launch) == kernel[f"{image}_sha256"], name


def assert_descriptors(words: dict, kernel: dict, a: dict, b: dict, c: dict) -> None:
    """Boxes 128 bytes wide; of a stack of B; and the rows of A and C counted up to 2^30, where a group's end is put."""
    size, out_size = BYTES[kernel["dtype"]], BYTES[kernel["out_dtype"]]
    wide, name = 128 // size, kernel["name"]
    row = a["strides"][0] * size
    box_rows = kernel["block_m"] // (kernel["split"] if kernel["row_step"] else 1)
    assert words["a"] == {
        "address": a["address"], "sizes": [a["shape"][1], 1 << 30, 0x7FFF0000, 0x7FFF0000],
        "strides": [row, (size << 34) - row, row], "box": [wide, box_rows, 1, 1],
        "type": TENSOR_MAP_TYPES[kernel["dtype"]],
    }, name  # fmt: skip
    inner, outer = (2, 1) if kernel["layout"][1] == "n" else (1, 2)
    assert words["b"] == {
        "address": b["address"], "sizes": [b["shape"][inner], b["shape"][outer], b["shape"][0]],
        "strides": [b["strides"][outer] * size, b["strides"][0] * size], "type": TENSOR_MAP_TYPES[kernel["dtype"]],
        "box": [wide, kernel["block_k"] if outer == 1 else kernel["block_n"], 1],
    }, name  # fmt: skip
    row = c["strides"][0] * out_size
    assert words["c"] == {
        "address": c["address"], "sizes": [c["shape"][1], 1 << 30, 0x7FFF0000, 0x7FFF0000],
        "strides": [row, (out_size << 34) - row, row],
        "box": [128 // out_size, kernel["block_m"] // max(kernel["split"], 1), 1, 1],
        "type": TENSOR_MAP_TYPES[kernel["out_dtype"]],
    }, name  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
@pytest.mark.parametrize("pitch", [128, 4096, 2**33 - 16])
def test_the_kernels_coordinates_of_a_row_lead_to_it_by_the_descriptors(fake_cuda, dtype, pitch):
    """What csrc/forms/grouped_record.cpp encodes, and what `ragged_row` makes of rows, as the hardware adds it up."""
    ragged_m = pytest.importorskip("aot.kernels.hopper.schedules.ragged_m", reason="Triton is not installed")
    ran = fake_cuda.run(f"""
        mat_a, mat_b, offs = ragged(2, 64, 128, 4, layout="nt", dtype="{dtype}")
        out = matrix(2, 64, dtype="float32" if "{dtype}" == "float8_e4m3fn" else "{dtype}")
        mat_a.strides = out.strides = ({pitch}, 1)
        mat_a.address, out.address = 1 << 41, 1 << 42
        report([x.facts() for x in (mat_a, out)])
        grouped_mm(mat_a, mat_b, offs=offs, out=out, out_dtype=out.dtype)
    """)
    kernel = next(kernel for kernel in KERNELS.values() if kernel["cubin_sha256"] == ran.hash_of(ran.launches[0]))
    words = read(ran.launches[0])
    last = ragged_m.LAST_ROW.value
    sizes = {"a": BYTES[kernel["dtype"]], "c": BYTES[kernel["out_dtype"]]}
    for (name, size), array in zip(sizes.items(), ran.reported[0]):
        assert words[name]["sizes"][1] == last
        for start, stop, row in [(0, 1, 0), (0, 2**30, 2**30 - 1), (7, 307, 299), (5, 2**30, 17)]:
            counted = getattr(ragged_m.ragged_row.fn(start, stop, row), "value", None)
            assert last - (stop - start) <= counted < last
            steps = zip(words[name]["strides"], (counted, last, stop))
            address = words[name]["address"] + sum(stride * step for stride, step in steps)
            assert address % 2**64 == (array["address"] + size * pitch * (start + row)) % 2**64


def test_aligned_products_take_descriptors_on_sm_90_and_others_pointers(fake_cuda):
    assert run_one(fake_cuda, (512, 256, 128, 4))[1]["kernel"] == "hopper_ragged"
    assert run_one(fake_cuda, (512, 256, 128, 4), pad=3)[1]["kernel"] == "basic_ragged"
    assert run_one(fake_cuda, (512, 252, 128, 4))[1]["kernel"] == "basic_ragged"


@pytest.mark.parametrize(("rows", "groups", "bound"), [(1, 4, 1), (3, 8, 3), (256, 1, None), (1000, 2, None)])
def test_a_small_product_takes_as_many_ctas_as_it_can_have_tiles(fake_cuda, rows, groups, bound):
    launch, kernel, _ = run_one(fake_cuda, (rows, 64, 64, groups), **SM_80)
    parts = min(groups + 1, rows)
    tiles = parts + (rows - parts) // kernel["block_m"]
    assert bound in (None, tiles)
    assert launch["grid"] == [tiles * -(-64 // kernel["block_n"]), 1, 1]


def test_a_large_product_takes_as_many_ctas_as_the_gpu_holds(fake_cuda):
    launch, _, _ = run_one(fake_cuda, (16384, 4096, 64, 8), FAKE_CUDA_SMS=10)
    assert launch["grid"] == [2 * 10, 1, 1]


@pytest.mark.parametrize("rows", [1, 5000, FITTED["listed_tiles"] * 10 * FITTED["block_m"], 1 << 22])
def test_fitted_tiles_are_launched_on_all_ctas_and_on_more_where_those_could_not_list_theirs(fake_cuda, rows):
    ran = fake_cuda.run(f"""
        mat_a, mat_b, offs = ragged({rows}, 512, 64, 4)
        gg_runtime._C.grouped_mm(mat_a, mat_b, offs=offs, out=matrix({rows}, 512), variant="{FITTED["name"]}")
    """, FAKE_CUDA_SMS=10)  # fmt: skip
    parts = min(5, rows)
    tiles = 2 * (parts + (rows - parts) // FITTED["block_m"])
    assert ran.launches[0]["grid"] == [20 * -(-tiles // (20 * FITTED["listed_tiles"])), 1, 1]


@pytest.mark.parametrize("sizes", [(0, 64, 64, 4), (64, 0, 64, 4), (0, 0, 0, 0)])
def test_a_product_without_output_elements_launches_nothing(fake_cuda, sizes):
    ran = fake_cuda.run(f"""
        mat_a, mat_b, offs = ragged{sizes}
        out = matrix{sizes[:2]}
        report(grouped_mm(mat_a, mat_b, offs=offs, out=out) is out)
        report(explain(mat_a, mat_b, offs=offs).variant)
    """)
    assert (ran.reported, ran.launches) == ([True, None], [])


@pytest.mark.parametrize("sizes", [(64, 64, 64, 0), (64, 64, 0, 4), (64, 64, 0, 0)])
def test_products_without_groups_or_depth_are_left_to_pointers(fake_cuda, sizes):
    launch, kernel, _ = run_one(fake_cuda, sizes)
    assert kernel["kernel"] == "basic_ragged"
    assert (ragged_arguments(launch).groups, ragged_arguments(launch).depth) == (sizes[3], sizes[2])


def test_repeated_calls_launch_once_each_and_ask_the_driver_for_nothing_else(fake_cuda):
    ran = fake_cuda.run("""
        import cupy
        ExchangeArray.streams = {0: 0x10, 1: 0x11}
        mat_a, mat_b, offs = ragged(512, 256, 128, 4, device=1)
        out = matrix(512, 256, device=1)
        for _ in range(3):
            grouped_mm(mat_a, mat_b, offs=offs, out=out)
        report(cupy.allocations)
    """)
    assert ran.reported == [[]]
    assert [(launch["context"], launch["stream"]) for launch in ran.launches] == [(1, 0x11)] * 3
    after = ran.calls[ran.calls.index(ran.launches[0]) :]
    assert {call["call"] for call in after} <= {"cuLaunchKernelEx", "cuCtxSetCurrent"}
    words = {by_value(ragged_arguments(launch), launch["symbol"])[:56] for launch in ran.launches}
    assert len(words) == 1, "words past those are what the stack held"


def test_a_thread_that_remembers_choices_still_asks_for_each_new_shape(fake_cuda):
    ran = fake_cuda.run("""
        from itertools import product
        shapes = list(product((1, 64, 8192), (256, 4096), (256, 4096), (1, 8, 64)))
        for shape in shapes + shapes[::-1]:
            for pad in (0, 3):
                mat_a, mat_b, offs = ragged(*shape, layout="nt", pad=pad)
                out = matrix(shape[0], shape[1])
                grouped_mm(mat_a, mat_b, offs=offs, out=out)
                report(explain(mat_a, mat_b, offs=offs, out=out).variant)
    """)
    assert len(ran.launches) == len(ran.reported)
    for launch, variant in zip(ran.launches, ran.reported):
        assert ran.hash_of(launch) == KERNELS[variant]["cubin_sha256"]
    assert len(set(ran.reported)) > 3


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_batch_invariant_choice_does_not_depend_on_the_batch(fake_cuda, layout):
    ran = fake_cuda.run(f"""
        for rows, groups in [(1, 1), (1, 8), (7, 8), (64, 256), (4096, 8), (100000, 2), (16384, 64)]:
            mat_a, mat_b, offs = ragged(rows, 512, 1024, groups, layout="{layout}")
            out = matrix(rows, 512)
            grouped_mm(mat_a, mat_b, offs=offs, out=out, batch_invariant=True)
            report(explain(mat_a, mat_b, offs=offs, out=out, batch_invariant=True).variant)
            grouped_mm(mat_a, mat_b, offs=offs, out=out)
    """)
    assert len(set(ran.reported)) == 1
    kernels = [ran.hash_of(launch) for launch in ran.launches]
    assert set(kernels[::2]) == {KERNELS[ran.reported[0]]["cubin_sha256"]}
    assert len(set(kernels[1::2])) > 1, "or else the argument would change nothing"


def test_the_stride_of_a_single_row_counts_where_the_kernel_may_not_depend_on_the_rows(fake_cuda):
    ran = fake_cuda.run("""
        mat_a, mat_b, offs = ragged(1, 512, 1024, 4)
        mat_a.strides = (1025, 1)
        for invariant in (False, True):
            report(explain(mat_a, mat_b, offs=offs, batch_invariant=invariant).variant)
    """)
    free, counted = (KERNELS[variant] for variant in ran.reported)
    assert (free["alignment"], counted["alignment"]) == (16, 2)


@pytest.mark.parametrize("stride", [0, 1, 1023])
def test_a_stride_that_a_single_row_cannot_have_does_not_count(fake_cuda, stride):
    """torch says that empty(K, 1).t() is contiguous, and its strides are (1, 1)."""
    ran = fake_cuda.run(f"""
        mat_a, mat_b, offs = ragged(1, 512, 1024, 4)
        report(explain(mat_a, mat_b, offs=offs, batch_invariant=True).variant)
        mat_a.strides = ({stride}, 1)
        report(explain(mat_a, mat_b, offs=offs, batch_invariant=True).variant)
    """)
    assert ran.reported[0] == ran.reported[1]


@pytest.mark.parametrize(("out_dtype", "made"), [
    (None, "bfloat16"), ("torch.float16", "float16"), ("torch.float32", "float32"),
    ("'float8_e4m3fn'", "float8_e4m3fn"),
])  # fmt: skip
def test_new_fp8_outputs_have_the_dtype_asked_for(fake_cuda, out_dtype, made):
    ran = fake_cuda.run(f"""
        import torch
        mat_a, mat_b, offs = ragged(96, 64, 128, 4, layout="nt", dtype=torch.float8_e4m3fn, kind=torch.Tensor)
        offs.dtype = torch.int32
        out = grouped_mm(mat_a, mat_b, offs=offs, out_dtype={out_dtype})
        report([str(out.dtype), out.facts()])
        report(explain(mat_a, mat_b, offs=offs, out_dtype={out_dtype}).variant)
    """)
    (dtype, facts), variant = ran.reported
    assert (dtype, facts["shape"], facts["strides"]) == (f"torch.{made}", [96, 64], [64, 1])
    assert FULL_NAMES[KERNELS[variant]["out_dtype"]] == made
    assert read(ran.launches[0])["c"]["address"] == facts["address"]


@pytest.mark.parametrize(
    ("sm", "words"), [(80, ["capability 9.0", "sm_80"]), (89, ["capability 9.0"]), (100, ["PTX", "no fp8"])]
)
def test_gpus_without_fp8_kernels_say_so(fake_cuda, sm, words):
    ran = fake_cuda.run("""
        mat_a, mat_b, offs = ragged(96, 64, 128, 4, layout="nt", dtype="float8_e4m3fn")
        report(failure(grouped_mm, mat_a, mat_b, offs=offs, out=matrix(96, 64, dtype="bfloat16")))
        A, B, out = operands([(64, 64, 64)], dtype="float8_e4m3fn")
        report(failure(group_gemm, A, B, out=out))
    """, FAKE_CUDA_SM=sm)  # fmt: skip
    assert ran.launches == []
    for error in ran.reported:
        assert error["type"] == "UnsupportedError"
        for word in ["float8_e4m3fn", "Fake GPU 0", "bfloat16", *words]:
            assert word in error["text"], error["text"]


def test_a_product_of_more_tiles_than_32_bits_count_is_refused(fake_cuda):
    ran = fake_cuda.run("""
        mat_a, mat_b, offs = ragged(2**31 - 1, 2**20, 1, 1)
        report(failure(grouped_mm, mat_a, mat_b, offs=offs, out=matrix(2**31 - 1, 2**20)))
    """, **SM_80)  # fmt: skip
    assert ran.reported[0]["type"] == "ValueError"
    assert "output tiles" in ran.reported[0]["text"] and "split the product" in ran.reported[0]["text"]
    assert ran.launches == []


def test_a_variant_that_cannot_take_the_product_cannot_be_forced(fake_cuda):
    listed = next(name for name, kernel in KERNELS.items() if (kernel["kernel"], kernel["sm"]) == ("basic", 90))
    aligned = next(k["name"] for k in RAGGED_KERNELS if (k["alignment"], k["dtype"], k["layout"]) == (16, "fp16", "nn"))
    ran = fake_cuda.run(f"""
        mat_a, mat_b, offs = ragged(96, 64, 128, 4, pad=3)
        for variant in ("nothing", "{listed}", "{aligned}"):
            report(failure(gg_runtime._C.grouped_mm, mat_a, mat_b, offs=offs, out=matrix(96, 64), variant=variant))
    """)
    for error, word in zip(ran.reported, ("no variant is called", "for lists of matrices", "16 bytes")):
        assert error["type"] == "ValueError" and word in error["text"], error


def test_the_private_call_names_an_argument_that_it_does_not_have(fake_cuda):
    ran = fake_cuda.run("report(failure(gg_runtime._C.grouped_mm, 1, 2, ofs=3))")
    assert ran.reported[0] == {"type": "TypeError", "text": "grouped_mm has no argument 'ofs'"}


PLANNED = """
    mat_a, mat_b, offs = ragged(96, 64, 128, 3, layout="{layout}")
    out, bias = matrix(96, 64), matrix(3, 64)
    plan = Plan(mat_a, mat_b, offs=offs, bias=bias, out=out, checked=True)
    grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out=out)
    assert plan.run() is out and plan.run() is out
    names = [c["variant"] for c in explain(mat_a, mat_b, offs=offs, out=out).candidates if not c["ruled_out"]]
    forced = Plan(mat_a, mat_b, offs=offs, bias=bias, out=out, variant=names[-1])
    forced.run()
    report([plan.variant, plan.launches, plan.by_value, forced.variant, names[-1]])
    report(failure(Plan, mat_a, mat_b, offs=offs, out=out, variant="no_such_kernel"))
    report(failure(Plan, [mat_a], [mat_b], variant=plan.variant))
    offs.address += 4
    report(failure(plan.run))
"""


@pytest.mark.parametrize("settings", [SM_80, {}], ids=["sm_80", "sm_90"])
def test_a_plan_launches_what_the_call_launches(fake_cuda, settings):
    """One launch a run, with the same words; the kernel is the library's choice, or the one that was named."""
    ran = fake_cuda.run(PLANNED.format(layout="nt"), **settings)
    call, first, second, forced = ran.launches
    kernel = KERNELS[ran.reported[0][0]]
    assert call["symbol"] == first["symbol"] == second["symbol"] == kernel["kernel"]
    assert read(call) == read(first) == read(second)
    (_, launches, is_by_value, variant, wanted), unknown, for_lists, moved = ran.reported
    assert (launches, is_by_value, variant) == (1, True, wanted) and forced["symbol"] == KERNELS[wanted]["kernel"]
    assert_says(unknown, "ValueError", "Plan: no variant is called no_such_kernel")
    assert_says(for_lists, "ValueError", "B[0] has 3 dimensions")
    assert_says(moved, "RuntimeError", "Plan: offs has other memory", "make a new Plan")
