"""Thousands of groups of one tile: a CTA goes to another group, and to other descriptors, at every tile.

`tma` writes them to slots of the CTA's scratch, of which copies of earlier tiles may still read; `hopper` reads those
of the list. Each group has data of its own, so that a tile of a neighbour's is seen.
"""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import DTYPES, LIST_ARTIFACTS, device_sm, legal  # noqa: E402
from oracle import fill_sparse_integers  # noqa: E402

GROUPS, RUNS = 4096, 3
DESCRIBED = [a for a in LIST_ARTIFACTS if a["kernel"] in ("tma", "hopper") and a["sm"] == device_sm()]


def stack(rows, columns, dtype, row_major):
    """[GROUPS, rows, columns] of integers, each matrix with the other dimension contiguous if not `row_major`."""
    array = torch.empty(GROUPS, *((rows, columns) if row_major else (columns, rows)), device="cuda", dtype=dtype)
    fill_sparse_integers([array], seed=rows + columns)
    return array if row_major else array.mT


@pytest.mark.parametrize("artifact", DESCRIBED, ids=lambda artifact: artifact["name"])
def test_each_group_one_tile(artifact):
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    m, n, k = legal(artifact, (24, 40, 48))
    A, B = stack(m, k, dtype, layout[0] == "n"), stack(k, n, dtype, layout[1] == "n")
    C = torch.empty(GROUPS, m, n, device="cuda", dtype=DTYPES[artifact["out_dtype"]])
    rows = [1 + group * 7 % m for group in range(GROUPS)]  # the hardware cuts each tile elsewhere
    plan = gg_runtime.Plan(
        [a[:count] for a, count in zip(A, rows)],
        list(B),
        out=[c[:count] for c, count in zip(C, rows)],
        variant=artifact["name"],
    )
    expected = torch.bmm(A.float(), B.float()).to(C.dtype).float()
    past = torch.arange(m, device="cuda") >= torch.tensor(rows, device="cuda")[:, None]
    expected[past] = float("inf")
    for _ in range(RUNS):
        C.fill_(float("nan"))
        plan.run()
        result = C.float()
        assert bool(result[past].isnan().all()), "rows past a group were written"
        result[past] = float("inf")
        wrong = (result != expected).any(2).any(1).nonzero().flatten()
        assert len(wrong) == 0, f"{len(wrong)} groups are wrong, first {wrong[:20].tolist()}"
