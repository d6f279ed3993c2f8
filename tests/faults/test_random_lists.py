"""Random lists of views through one process: each record addresses exactly the elements of its product."""

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import expected_ends, list_arguments, read_list

LISTS = """
from random import Random
random = Random(2026)

def view(rows, columns, writable):
    order, pad, offset = random.choice("nt"), random.choice([0, 0, 8, 3]), random.choice([0, 0, 8, 1])
    array = matrix(rows, columns, order=order, pad=pad, offset=offset)
    if random.random() < 0.1:
        array.strides = tuple(2 * stride for stride in array.strides)
    elif not writable and random.random() < 0.1:
        array.address += 2 * array.strides[0] * max(rows - 1, 0)
        array.strides = (random.choice([0, -1]) * array.strides[0], array.strides[1])
    return array

for _ in range(150):
    sizes = [[random.choice([0, 1, 2, 7, 8, 64, 200]) for _ in "mnk"] for _ in range(random.randint(1, 6))]
    A, B = [view(m, k, False) for m, n, k in sizes], [view(k, n, False) for m, n, k in sizes]
    out = [view(m, n, True) for m, n, k in sizes]
    plan = Plan(A, B, out=out)
    plan.run()
    report([plan.variant, [[a.facts(), b.facts(), c.facts()] for a, b, c in zip(A, B, out)]])
"""


def corners(address, row_stride, column_stride, rows, columns) -> tuple:
    """Addresses of the first element and of its neighbours down and across, where there are such."""
    return (
        address if rows and columns else None,
        address + 2 * row_stride if rows > 1 and columns else None,
        address + 2 * column_stride if columns > 1 and rows else None,
    )


def product_of_arrays(a, b, c) -> tuple:
    facts = [corners(x["address"], *x["strides"], *x["shape"]) for x in (a, b, c)]
    return (*c["shape"], a["shape"][1], *facts)


def product_of_record(r) -> tuple:
    return (
        r["m"], r["n"], r["k"],
        corners(r["a"], r["a_row"], r["a_col"], r["m"], r["k"]),
        corners(r["b"], r["b_row"], r["b_col"], r["k"], r["n"]),
        corners(r["c"], r["c_row"], r["c_col"], r["m"], r["n"]),
    )  # fmt: skip


def turned(product: tuple) -> tuple:
    """C^T = B^T A^T, the same product."""
    m, n, k, *matrices = product
    a, b, c = ((first, across, down) for first, down, across in matrices)
    return (n, m, k, b, a, c)


def test_records_are_the_products_in_one_orientation_or_the_other(fake_cuda):
    ran = fake_cuda.run(LISTS, **SM_80)
    assert len(ran.reported) == 150
    launches = iter(ran.launches)
    for variant, groups in ran.reported:
        wanted = [product_of_arrays(*group) for group in groups if all(group[2]["shape"])]
        assert bool(wanted) == bool(variant)
        if not wanted:
            continue
        arguments = list_arguments(next(launches))
        ends, records = read_list(arguments.words, arguments.groups)
        assert [record["k"] for record in records] == sorted((product[2] for product in wanted), reverse=True)
        for record in records:
            found = product_of_record(record)
            assert found in wanted or turned(found) in wanted, record
            wanted.remove(found if found in wanted else turned(found))
        assert not wanted
        assert ends == expected_ends(records, KERNELS[variant]["block_m"], KERNELS[variant]["block_n"])
    assert next(launches, None) is None
