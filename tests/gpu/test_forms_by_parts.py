"""grouped_mm with ragged K by an index, as a Plan and in a graph; ragged columns against ragged rows."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from oracle import fill_sparse_integers, sparse_integers  # noqa: E402
from ragged_cases import as_offs  # noqa: E402
from ragged_k_oracle import assert_exact  # noqa: E402
from scaled_oracle import group_ends  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]
NAN = float("nan")


def some_index(size: int, rows: int, dtype) -> "torch.Tensor":
    """With repetitions, and with numbers that name no row."""
    index = torch.randint(0, rows, (size,), device="cuda", dtype=dtype)
    index[::7] = -1
    index[3::11] = rows
    index[-1] = torch.iinfo(dtype).max
    return index


def picked(rows, index):
    """Rows of `rows`, zeros where the index names none."""
    inside = (index >= 0) & (index < len(rows))
    return torch.where(inside[:, None], rows[torch.where(inside, index, 0).long()], 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("which", ["a", "b", "both"])
@pytest.mark.parametrize(("m", "n"), [(136, 264), (33, 17)])
def test_indices_of_ragged_k(dtype, index_dtype, which, m, n):
    """Columns of mat_a and rows of mat_b in any order, from views with any strides."""
    offs = as_offs([100, 0, 77, 13])
    x, dy = sparse_integers(190, m, dtype=dtype), sparse_integers(190, n, dtype=dtype)
    index = some_index(190, 50, index_dtype)
    given, seen = {}, {"a": x, "b": dy}
    for name, width in (("a", m), ("b", n)):
        if which in (name, "both"):
            source = sparse_integers(50, 2 * width, dtype=dtype)[:, ::2]
            seen[name] = picked(source, index)
            given[f"{name}_index"] = index
            if name == "a":
                x = source
            else:
                dy = source
    out = gg_runtime.grouped_mm(x.mT, dy, offs=offs, **given)
    assert_exact(out, seen["a"].mT, seen["b"], offs)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_plan_and_a_graph_add_to_their_output_at_each_run(out_dtype):
    """All parts at once: gathers, parts of K, and what adds them up to what the output had."""
    x, dy = sparse_integers(60, 256, dtype=torch.bfloat16), sparse_integers(9000, 136, dtype=torch.bfloat16)
    index, offs = some_index(9000, 60, torch.int32), as_offs([4100, 0, 4700])
    out = torch.zeros(3, 256, 136, device="cuda", dtype=out_dtype)
    plan = gg_runtime.Plan(x.mT, dy, offs=offs, a_index=index, out=out, beta=1.0)
    assert plan.launches >= 2
    plan.run()
    assert_exact(out, picked(x, index).mT, dy, offs)
    out.zero_()
    graph, _ = captured(plan.run)
    for ends in ([4100, 4100, 8800], [1, 9000, 9000], [0, 0, 0]):
        offs.copy_(torch.tensor(ends))
        before = torch.randint(-9, 9, out.shape, device="cuda").to(out_dtype)
        out.copy_(before)
        graph.replay()
        assert_exact(out, picked(x, index).mT, dy, offs, beta=1.0, before=before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize(("m", "k", "columns"), [(136, 264, 512), (33, 65, 301)])
def test_ragged_columns_are_those_of_each_groups_matrix(dtype, column_major, m, k, columns):
    stack, b = torch.empty(4, m, k, device="cuda", dtype=dtype), torch.empty(k, columns, device="cuda", dtype=dtype)
    fill_sparse_integers([stack, b])
    offs = as_offs([100, 0, 130, 60])
    ends = group_ends(offs, columns)
    b[:, ends[-1] :] = NAN
    out = torch.full((columns, m), NAN, device="cuda", dtype=dtype).mT if column_major else None
    out = gg_runtime.grouped_mm(stack, b, offs=offs, out=out)
    for matrix, start, end in zip(stack, [0, *ends], ends):
        expected = (matrix.double() @ b[:, start:end].double()).to(dtype)
        assert torch.equal(out[:, start:end], expected)
    assert bool((out[:, ends[-1] :] == 0).all())


@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "relu2"])
@pytest.mark.parametrize("gate_up", ["gate_first", "interleaved"])
@pytest.mark.parametrize(("m", "n", "k"), [(72, 144, 128), (33, 50, 61)])
def test_stacks_with_an_activation_leave_rows_past_their_counts_alone(activation, gate_up, m, n, k):
    """Against ragged rows of the same matrices; by parts where strides or the activation are for no fused kernel."""
    a, b = torch.randn(5, m, k, device="cuda").bfloat16(), torch.randn(5, k, n, device="cuda").bfloat16()
    bias = torch.randn(5, n, device="cuda").bfloat16()
    counts = torch.tensor([m, 0, 7, -3, 2**31 - 1], dtype=torch.int32, device="cuda")
    kept = torch.arange(m, device="cuda") < counts.clamp(0, m)[:, None]
    a[~kept] = NAN
    given = {"bias": bias, "activation": activation, "gate_up": gate_up}
    columns = n if activation == "relu2" else n // 2
    wide = torch.full((5, m, columns + 3), 7.0, device="cuda", dtype=torch.bfloat16)
    out = wide[:, :, 1:-2]
    gg_runtime.grouped_mm(a, b, counts=counts, out=out, **given)
    offs = as_offs([m] * 5)
    wanted = gg_runtime.grouped_mm(a.nan_to_num().reshape(-1, k), b, offs=offs, **given).view(5, m, columns)
    torch.testing.assert_close(out[kept], wanted[kept], rtol=2e-2, atol=2e-2)
    assert bool((out[~kept] == 7).all()) and bool((wide[:, :, 0] == 7).all()) and bool((wide[:, :, -2:] == 7).all())
