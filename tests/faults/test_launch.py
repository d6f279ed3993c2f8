"""What reaches the driver: parameters byte for byte, grids, and how many launches."""

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import expected_ends, expected_record, list_arguments, packed_memory, read_list, uploaded_words


def run_list(fake_cuda, sizes, layout="nn", facts="", **settings):
    """One Plan, run once: what came of it, the kernel's facts, and those of A, B and C of each group."""
    ran = fake_cuda.run(f"""
        A, B, out = operands({sizes}, layout="{layout}"{facts})
        plan = Plan(A, B, out=out)
        plan.run()
        report(plan.variant)
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
    """, **SM_80 | settings)  # fmt: skip
    variant, arrays = ran.reported
    return ran, KERNELS[variant], arrays


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_parameters_hold_every_pointer_stride_and_size(fake_cuda, layout):
    ran, kernel, arrays = run_list(fake_cuda, [(64, 48, 32), (128, 8, 256), (16, 16, 128)], layout)
    (launch,) = ran.launches
    arguments = list_arguments(launch)
    ends, records = read_list(arguments.words, 3)
    expected = sorted((expected_record(*group) for group in arrays), key=lambda record: -record["k"])
    assert records == expected
    assert ends == expected_ends(expected, kernel["block_m"], kernel["block_n"])
    assert (arguments.problems, arguments.groups, arguments.tiles) == (0, 3, ends[-1])
    assert (arguments.global_scratch, arguments.profile_scratch) == (0, 0)


def test_views_at_odd_addresses_and_strides_are_passed_as_they_are(fake_cuda):
    ran, kernel, arrays = run_list(fake_cuda, [(33, 29, 31)], "nt", ", pad=3, offset=1")
    _, (record,) = read_list(list_arguments(ran.launches[0]).words, 1)
    assert record == expected_record(*arrays[0])
    assert kernel["alignment"] == 2
    assert (record["a"] % 4, record["a_row"], record["b_col"]) == (2, 34, 34)


def test_a_column_major_output_is_computed_as_the_transposed_product(fake_cuda):
    ran, _, ((a, b, c),) = run_list(fake_cuda, [(64, 32, 96)], facts=', out_order="t"')

    def transposed(array):
        return array | {"shape": array["shape"][::-1], "strides": array["strides"][::-1]}

    _, (record,) = read_list(list_arguments(ran.launches[0]).words, 1)
    assert record == expected_record(transposed(b), transposed(a), transposed(c))
    assert record["c_col"] == 1


def test_groups_without_outputs_are_left_out_and_equal_depths_keep_their_order(fake_cuda):
    ran, _, _ = run_list(fake_cuda, [(0, 8, 64), (16, 8, 64), (8, 0, 64), (24, 8, 64), (8, 8, 0)])
    arguments = list_arguments(ran.launches[0])
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
    ran, kernel, _ = run_list(fake_cuda, [(4096, 4096, 64)], FAKE_CUDA_SMS=10)
    (launch,) = ran.launches
    assert list_arguments(launch).tiles > 2 * 10
    assert launch["grid"] == [2 * 10, 1, 1], "as many CTAs as this GPU holds: 2 on each of 10 multiprocessors"
    assert launch["block"] == [kernel["threads"], 1, 1]
    assert launch["shared"] == kernel["shared_bytes"]
    assert ran.hash_of(launch) == kernel["cubin_sha256"]
    opt_in = [call["value"] for call in ran.of("cuKernelSetAttribute") if call["attribute"] == 8]
    assert opt_in == [kernel["shared_bytes"]] * (kernel["shared_bytes"] > 48 * 1024)


def test_a_list_with_few_tiles_takes_as_many_ctas(fake_cuda):
    ran, _, _ = run_list(fake_cuda, [(8, 8, 64), (8, 8, 32)])
    assert ran.launches[0]["grid"] == [2, 1, 1]


def test_a_list_of_more_tiles_than_32_bits_count_is_refused(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(2**31 - 1, 2**20, 1)])
        report(failure(group_gemm, A, B, out=out))
    """, **SM_80)  # fmt: skip
    assert ran.reported[0]["type"] == "ValueError"
    assert "output tiles" in ran.reported[0]["text"] and "split the list" in ran.reported[0]["text"]
    assert ran.launches == []


def test_32_groups_travel_in_the_parameters_and_33_are_packed_first(fake_cuda):
    ran = fake_cuda.run("""
        import cupy
        for groups in (32, 33):
            A, B = ([cupy.empty((16, 16), "float16") for _ in range(groups)] for _ in "AB")
            report([Plan(A, B).by_value, explain(A, B).launches])
            group_gemm(A, B)
            report([])
    """, **SM_80)  # fmt: skip
    assert ran.reported == [[True, 1], [], [False, 2], []]
    assert [launch["symbol"] for launch in ran.launches] == ["basic", "pack", "pack", "basic"], "a Plan packs at once"


@pytest.mark.parametrize("groups", [33, 100, 1000])
def test_a_packed_list_arrives_whole_where_the_kernel_looks_for_it(fake_cuda, groups):
    ran = fake_cuda.run(f"""
        import cupy
        sizes = [(8 + i % 5, 24, 8 + 8 * (i % 7)) for i in range({groups})]
        A = [cupy.empty((m, k), "float16") for m, n, k in sizes]
        B = [cupy.empty((k, n), "float16") for m, n, k in sizes]
        out = group_gemm(A, B)
        report([explain(A, B, out=out).variant, explain(A, B, out=out).launches])
        report([[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)])
    """, **SM_80)  # fmt: skip
    (variant, launches), arrays = ran.reported
    *packs, product = ran.launches
    assert len(ran.launches) == launches
    arguments = list_arguments(product)
    assert arguments.problems % 8 == 0 and arguments.groups == groups
    assert len(packed_memory(packs)) == 15 * groups
    ends, records = read_list(uploaded_words(arguments, packs, 15 * groups), groups)
    assert records == sorted((expected_record(*group) for group in arrays), key=lambda record: -record["k"])
    assert ends == expected_ends(records, KERNELS[variant]["block_m"], KERNELS[variant]["block_n"])


def test_a_plan_run_again_launches_the_same_list_and_loads_nothing(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)])
        plan = Plan(A, B, out=out)
        for _ in range(3):
            plan.run()
    """, **SM_80)  # fmt: skip
    first, *others = [list_arguments(launch) for launch in ran.launches]
    assert len(others) == 2
    for other in others:
        assert other.words[:15] == first.words[:15]
        assert (other.problems, other.groups, other.tiles) == (0, 1, first.tiles)
    assert len(ran.of("cuLibraryLoadData")) == 1
    assert ran.of("cuStreamSynchronize") == [] == ran.of("cuLibraryUnload")
