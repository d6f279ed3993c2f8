"""Sizes up to 2**31 and any strides, through the entry points: a launch or an error that names the array."""

# Bound to its arguments, each example is one call; what is raised besides ValueError and TypeError ends the process.
SEARCH = """
    from hypothesis import given, settings
    from extremes import check_outcome, lists, raggeds

    launched = [0, 0]

    def called(call, arrays):
        launched[check_outcome(arrays, call) is None] += 1

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(lists())
    def any_list(given_list):
        A, B, out, scales = given_list
        called(lambda: group_gemm(A, B, out=out, **scales), [*A, *B, *out, *scales.values()])
        called(lambda: Plan(A, B, out=out, **scales).run(), [*A, *B, *out, *scales.values()])

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(raggeds())
    def any_ragged_product(given_product):
        mat_a, mat_b, others = given_product
        called(lambda: grouped_mm(mat_a, mat_b, **others), [mat_a, mat_b, *others.values()])

    any_list()
    any_ragged_product()
    report(launched)
"""


def test_any_sizes_and_strides(fake_cuda):
    ran = fake_cuda.run(SEARCH)
    refused, taken = ran.reported[0]
    assert refused > 50 and taken > 20, "or else one of them was hardly tried"
    assert ran.launches
    for launch in ran.launches:
        assert 0 < launch["grid"][0] <= 2 * 132 and launch["grid"][1:] == [1, 1]
