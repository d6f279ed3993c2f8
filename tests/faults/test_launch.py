"""What reaches the driver: parameters byte for byte, grids, streams, contexts, and how many launches."""

import gg_runtime
import pytest

from faults.parameters import expected_ends, expected_record, list_arguments, pack_arguments, read_list

KERNELS = {kernel["name"]: kernel for kernel in gg_runtime.kernels()}

LIST = """
sizes = {sizes}
A, B, out = operands(sizes, layout="{layout}"{facts})
plan = Plan(A, B, out=out)
plan.run()
report(plan.variant)
report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
"""


def list_run(fake_cuda, sizes, layout="nn", facts="", **settings):
    """One Plan of `sizes`, run once on an sm_80 GPU, whose kernels need no scratch."""
    ran = fake_cuda.run(LIST.format(sizes=sizes, layout=layout, facts=facts), FAKE_CUDA_SM=80, **settings)
    variant, arrays = ran.reported
    return ran, KERNELS[variant], arrays


def arguments_of(launch, kernel):
    return list_arguments(launch, kernel["word_capacity"])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_parameters_hold_every_pointer_stride_and_size(fake_cuda, layout):
    ran, kernel, arrays = list_run(fake_cuda, [(64, 48, 32), (128, 8, 256), (16, 16, 128)], layout)
    (launch,) = ran.launches
    arguments = arguments_of(launch, kernel)
    ends, records = read_list(arguments.words, 3)
    expected = sorted((expected_record(*group) for group in arrays), key=lambda record: -record["k"])
    assert records == expected
    assert ends == expected_ends(expected, kernel["block_m"], kernel["block_n"])
    assert not any(arguments.words[3 * 13 :]), "words past the list are zero: no stale memory leaves the process"
    assert (arguments.problems, arguments.groups, arguments.tiles) == (0, 3, ends[-1])
    assert (arguments.global_scratch, arguments.profile_scratch) == (0, 0)


def test_views_at_odd_addresses_and_strides_are_passed_as_they_are(fake_cuda):
    ran, kernel, arrays = list_run(fake_cuda, [(33, 29, 31)], "nt", ", pad=3, offset=1")
    _, (record,) = read_list(arguments_of(ran.launches[0], kernel).words, 1)
    assert record == expected_record(*arrays[0])
    assert kernel["alignment"] == 2
    assert record["a"] % 4 == 2 and record["a_row"] == 34 and record["b_col"] == 34


def test_a_column_major_output_is_computed_as_the_transposed_product(fake_cuda):
    ran, kernel, ((a, b, c),) = list_run(fake_cuda, [(64, 32, 96)], facts=', out_order="t"')

    def turned(array):
        return array | {"shape": array["shape"][::-1], "strides": array["strides"][::-1]}

    _, (record,) = read_list(arguments_of(ran.launches[0], kernel).words, 1)
    assert record == expected_record(turned(b), turned(a), turned(c))
    assert record["c_col"] == 1


def test_groups_without_outputs_are_left_out_and_equal_depths_keep_their_order(fake_cuda):
    ran, kernel, arrays = list_run(fake_cuda, [(0, 8, 64), (16, 8, 64), (8, 0, 64), (24, 8, 64), (8, 8, 0)])
    arguments = arguments_of(ran.launches[0], kernel)
    _, records = read_list(arguments.words, arguments.groups)
    assert [(record["m"], record["n"], record["k"]) for record in records] == [(16, 8, 64), (24, 8, 64), (8, 8, 0)]


@pytest.mark.parametrize("sizes", [[], [(0, 8, 64)], [(8, 0, 64), (0, 0, 0)]])
def test_a_list_without_output_elements_launches_nothing(fake_cuda, sizes):
    ran = fake_cuda.run(f"""
        A, B, out = operands({sizes})
        report(group_gemm(A, B, out=out) == out)
        report(Plan(A, B, out=out).run() == out)
    """)
    assert ran.reported == [True, True]
    assert ran.launches == []


def test_launch_facts_are_those_of_the_artifact(fake_cuda):
    ran, kernel, _ = list_run(fake_cuda, [(4096, 4096, 64)], FAKE_CUDA_SMS=10)
    (launch,) = ran.launches
    tiles = arguments_of(launch, kernel).tiles
    assert launch["grid"] == [min(tiles, 2 * 10), 1, 1], "as many CTAs as this GPU holds: 2 on each of 10"
    assert launch["block"] == [kernel["threads"], 1, 1]
    assert launch["shared"] == kernel["shared_bytes"]
    assert ran.hash_of(launch) == kernel["cubin_sha256"]
    raised = [call for call in ran.of("cuKernelSetAttribute") if call["attribute"] == 8]
    assert [call["value"] for call in raised] == [kernel["shared_bytes"]] * (kernel["shared_bytes"] > 48 * 1024)


def test_a_list_with_few_tiles_takes_as_many_ctas(fake_cuda):
    ran, kernel, _ = list_run(fake_cuda, [(8, 8, 64), (8, 8, 32)])
    assert ran.launches[0]["grid"] == [2, 1, 1]


def test_32_groups_travel_in_the_parameters_and_33_are_packed_first(fake_cuda):
    ran = fake_cuda.run("""
        import cupy
        for groups in (32, 33):
            A, B = ([cupy.empty((16, 16), "float16") for _ in range(groups)] for _ in "AB")
            report(Plan(A, B).by_value)
            report(explain(A, B).launches)
            group_gemm(A, B)
    """)
    assert ran.reported == [True, 1, False, 2]
    assert [launch["symbol"] for launch in ran.launches[-2:]] == ["pack", ran.launches[-1]["symbol"]]


@pytest.mark.parametrize("groups", [33, 100, 1000])
def test_a_packed_list_arrives_whole_where_the_kernel_looks_for_it(fake_cuda, groups):
    ran = fake_cuda.run(f"""
        import cupy
        sizes = [(8 + i % 5, 24, 8 * (i % 7)) for i in range({groups})]
        A = [cupy.empty((m, k), "float16") for m, n, k in sizes]
        B = [cupy.empty((k, n), "float16") for m, n, k in sizes]
        out = group_gemm(A, B)
        report(explain(A, B, out=out).variant)
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
    """, FAKE_CUDA_SM=80)  # fmt: skip
    variant, arrays = ran.reported
    *packs, product = ran.launches
    capacity = KERNELS["pack_sm80"]["word_capacity"]
    memory = {}
    for launch in packs:
        arguments = pack_arguments(launch, capacity)
        threads = launch["grid"][0] * KERNELS["pack_sm80"]["block_m"]
        assert launch["symbol"] == "pack" and arguments.count <= threads
        for index in range(arguments.count):
            memory[arguments.destination + 8 * index] = arguments.words[index]
    arguments = arguments_of(product, KERNELS[variant])
    assert arguments.problems % 8 == 0 and arguments.groups == groups
    assert not any(arguments.words), "nothing is passed by value as well"
    words = tuple(memory[arguments.problems + 8 * index] for index in range(13 * groups))
    assert len(memory) == len(words)
    ends, records = read_list(words, groups)
    assert records == sorted((expected_record(*group) for group in arrays), key=lambda record: -record["k"])
    assert ends == expected_ends(records, KERNELS[variant]["block_m"], KERNELS[variant]["block_n"])


def test_descriptors_get_scratch_for_each_cta_on_128_bytes(fake_cuda):
    name = next(name for name, kernel in KERNELS.items() if (kernel["kernel"], kernel["dtype"]) == ("tma", "fp16"))
    layout = KERNELS[name]["layout"]
    ran = fake_cuda.run(f"""
        import cupy
        A, B = (cupy.empty((512, 512), "float16", order=order) for order in "{layout}")
        Plan([A], [B], variant="{name}").run()
        report(cupy.allocations)
    """)
    (launch,) = ran.launches
    arguments = list_arguments(launch, KERNELS[name]["word_capacity"])
    assert arguments.global_scratch % 128 == 0
    end = arguments.global_scratch + launch["grid"][0] * KERNELS[name]["scratch_bytes"]
    assert any(start <= arguments.global_scratch and end <= start + size for start, size in ran.reported[0])


def test_a_plan_run_again_launches_the_same_bytes_and_loads_nothing(fake_cuda):
    ran = fake_cuda.run("""
        plan = Plan(*operands([(64, 64, 64)])[:2], out=[matrix(64, 64)])
        for _ in range(3):
            plan.run()
    """, FAKE_CUDA_SM=80)  # fmt: skip
    assert len(ran.launches) == 3
    assert ran.launches[0] == ran.launches[1] == ran.launches[2]
    assert len(ran.of("cuLibraryLoadData")) == 1
    assert ran.of("cuStreamSynchronize") == [] == ran.of("cuLibraryUnload")


def test_every_embedded_variant_can_be_launched_with_what_its_manifest_says(fake_cuda):
    """All kernels through their own C launcher: the buffer has the size and offsets that the cubin declares."""
    ran = fake_cuda.run("""
        import cupy
        for kernel in gg_runtime.kernels():
            if kernel["kernel"] == "pack":
                continue
            dtype = {"fp16": "float16", "bf16": "bfloat16"}[kernel["dtype"]]
            layout = kernel["layout"] if kernel["layout"] != "strided" else "nn"
            A = cupy.empty((128, 64), dtype, order=layout[0])
            B = cupy.empty((64, 128), dtype, order=layout[1])
            plan = Plan([A], [B], variant=kernel["name"])
            plan.run()
            report(kernel["name"])
    """, FAKE_CUDA_SM=90)  # fmt: skip
    assert len(ran.reported) == len(ran.launches) == sum(kernel["kernel"] != "pack" for kernel in KERNELS.values())
    manifest = gg_runtime.manifest()["artifacts"]
    for name, launch in zip(ran.reported, ran.launches):
        kernel = KERNELS[name]
        assert launch["symbol"] == manifest[name]["symbol"]
        assert len(launch["parameters"]) // 2 == manifest[name]["parameter_bytes"]
        arguments = list_arguments(launch, kernel["word_capacity"])
        _, (record,) = read_list(arguments.words, 1)
        assert (record["m"], record["n"], record["k"]) == (128, 128, 64), name
        assert arguments.profile_scratch == 0
        assert (arguments.global_scratch != 0) == (kernel["scratch_bytes"] > 0), name
        assert (launch["block"][0], launch["shared"]) == (kernel["threads"], kernel["shared_bytes"]), name
        wanted = kernel["cubin_sha256"] if kernel["sm"] == 90 else kernel["ptx_sha256"]
        assert ran.hash_of(launch) == wanted, f"{name}: an sm_80 cubin does not run on sm_90, its PTX does"
