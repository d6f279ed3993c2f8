"""Every embedded kernel of ragged K, forced: right at its tile edges and for any offs; the sm_80 ones through their
PTX. What is done by parts, as the library chooses them."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, RAGGED_K_ARTIFACTS, device_sm, legal, round_up  # noqa: E402
from oracle import fill_normal, fill_sparse_integers, sparse_integers  # noqa: E402
from ragged_cases import as_offs, forced, garbage, random_sizes  # noqa: E402
from ragged_k_cases import RaggedK, check_one_addition, deep_groups, edge_forms, run_checked  # noqa: E402
from ragged_k_oracle import assert_close, assert_exact, group_ks  # noqa: E402

NAN = float("nan")
ADDING = [artifact for artifact in RAGGED_K_ARTIFACTS if artifact["out_dtype"] == "fp32"]
DESCRIBED = [artifact for artifact in RAGGED_K_ARTIFACTS if artifact["addressing"] == "host_descriptors"]
GATHERING = [artifact for artifact in DESCRIBED if artifact["source"] != "rows"]
FIRST = list({artifact["source"]: artifact for artifact in reversed(DESCRIBED)}.values())  # of each source


def artifacts(chosen=RAGGED_K_ARTIFACTS):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def some_problem(artifact, arenas, sizes, tail=0) -> RaggedK:
    """One past a tile in both directions, or as near as its alignment allows."""
    total = sum(sizes) + tail
    m, n, _ = legal(artifact, (artifact["block_m"] + 9, artifact["block_n"] + 9, total))
    return RaggedK(artifact, as_offs(sizes), total, m, n, arenas)


@artifacts()
def test_tile_edges(artifact, arenas):
    for sizes, total, m, n in edge_forms(artifact):
        for arena in arenas:
            arena.reset()
        problem = RaggedK(artifact, as_offs(sizes), total, m, n, arenas)
        run_checked(problem, fill_normal, assert_close)
        run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts()
def test_any_offs_give_the_defined_result(artifact, arenas):
    total = 3 * artifact["block_k"] + 19
    problem = some_problem(artifact, arenas, [0] * 8 + [total])
    for ends in garbage(total).values():
        problem.offs.copy_(torch.tensor(ends))
        run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts()
def test_all_groups_are_empty(artifact, arenas):
    problem = some_problem(artifact, arenas, [0, 0, 0], tail=7)
    problem.A.fill_(NAN)
    problem.B.fill_(NAN)
    problem.outputs.poison()
    problem.run()
    assert bool((problem.C == 0).all())


@artifacts()
def test_nan_of_a_neighbour_and_past_the_last_group_stays_there(artifact, arenas):
    """Groups start and end anywhere in a box of TMA, whose other rows are theirs."""
    block = artifact["block_k"]
    for sizes in ([3, 5, block + 1, 1, 2 * block - 3], [block, block, block, 4 * block, 0], [1, 1, 1, 1, 1]):
        for arena in arenas:
            arena.reset()
        problem = some_problem(artifact, arenas, sizes, tail=block + 9)
        fill_sparse_integers([problem.A, problem.B])
        ks = group_ks(problem.offs, problem.A.shape[1])
        a, b = problem.A.clone(), problem.B.clone()
        for k in (ks[1], ks[3], slice(ks[-1].stop, None)):
            problem.A[:, k] = NAN
            problem.B[k] = NAN
        problem.outputs.poison()
        problem.run()
        for group in (1, 3):
            assert bool(problem.C[group].isnan().all())
            problem.C[group] = (a[:, ks[group]].float() @ b[ks[group]].float()).to(problem.C.dtype)
        assert_exact(problem.C, a, b, problem.offs)


@artifacts()
def test_more_groups_than_any_block_of_the_search(artifact, arenas):
    groups, total = 515, 1500
    sizes = random_sizes(groups, total, seed=1, occupied=0.3)
    m, n, _ = legal(artifact, (33, 17, total))
    problem = RaggedK(artifact, as_offs(sizes), total + 5, m, n, arenas)
    run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts()
def test_a_long_k(artifact, arenas):
    m, n, _ = legal(artifact, (65, 70, 1))
    problem = RaggedK(artifact, [20001, 20001, 60007], 60011, m, n, arenas)
    run_checked(problem, fill_normal, assert_close)
    run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts(DESCRIBED)
def test_tma_takes_any_m_and_k_with_aligned_strides(artifact, arenas):
    block_m, block_n = artifact["block_m"], artifact["block_n"]
    for m, n, total in [(1, 1, 1), (7, 3, 5), (67, 131, 211), (block_m + 1, block_n - 1, 97), (2 * block_m - 1, 5, 65)]:
        for arena in arenas:
            arena.reset()
        offs = [total // 4, total // 4, total // 2 + 1, total]
        m = round_up(m, DTYPES[artifact["dtype"]]) if artifact["source"] == "indexed" else m
        problem = RaggedK(artifact, offs, total, m, round_up(n, DTYPES[artifact["dtype"]]), arenas)
        run_checked(problem, fill_normal, assert_close)


@artifacts()
def test_alpha_is_a_number_or_lies_on_the_device(artifact, arenas):
    problem = some_problem(artifact, arenas, [5, 0, 70])
    on_device = problem.inputs.array((1,), torch.float32, (1,))
    for factor in (0.5, -2.0, 0.0):
        on_device.fill_(factor)
        for alpha in (factor, on_device):
            run_checked(
                problem, fill_sparse_integers, lambda *given, by=factor: assert_exact(*given, alpha=by), alpha=alpha
            )


@artifacts(ADDING)
def test_sums_are_added_to_what_the_output_has(artifact, arenas):
    """Whatever is there where a group is empty stays; so does a NaN. Repeated, with the same bits each time."""
    problem = some_problem(artifact, arenas, [5, 0, 70, 3 * artifact["block_k"] + 1])
    fill_sparse_integers([problem.A, problem.B])
    before = torch.randint(-99, 99, problem.C.shape, device="cuda").float()
    for alpha in (1.0, -0.5):
        problem.C.copy_(before)
        outputs = problem.outputs.snapshot()
        problem.run(alpha=alpha, beta=1.0)
        assert_exact(problem.C, problem.A, problem.B, problem.offs, alpha=alpha, beta=1.0, before=before)
        assert torch.equal(problem.C[1], before[1])
        assert problem.outputs.stray_writes(outputs) == 0
    fill_normal([problem.A, problem.B])
    before = torch.randn(problem.C.shape, device="cuda")
    before[3, 1, 2] = NAN
    results = []
    for _ in range(5):
        problem.C.copy_(before)
        for _ in range(3):
            problem.run(beta=1.0)
        results.append(problem.C.clone().view(torch.int32))
    assert all(torch.equal(results[0], other) for other in results)
    assert problem.C.isnan().nonzero().tolist() == [[3, 1, 2]]


@artifacts(ADDING)
def test_added_sums_take_one_addition(artifact, arenas):
    """Of more tiles than there are CTAs, in turns of groups whose outputs are loaded and of others."""
    sizes = deep_groups(2, 1)
    m, n, total = legal(artifact, (2 * artifact["block_m"] + 9, 2 * artifact["block_n"] + 9, sum(sizes)))
    problem = RaggedK(artifact, as_offs(sizes), total, m, n, arenas)
    fill_normal([problem.A, problem.B])
    outputs = problem.outputs.snapshot()
    check_one_addition(problem.C, problem.run)
    assert problem.outputs.stray_writes(outputs) == 0


@artifacts()
def test_repeated_runs_give_the_same_bits(artifact, arenas):
    problem = some_problem(artifact, arenas, [500, 0, 3, 1000, 64])
    fill_normal([problem.A, problem.B])
    results = []
    for _ in range(10):
        problem.outputs.poison()
        problem.run()
        results.append(problem.C.clone())
    assert all(torch.equal(results[0], other) for other in results)


@artifacts()
def test_replays_take_the_offs_of_the_moment(artifact, arenas):
    total = 4 * artifact["block_k"] + 7
    problem = some_problem(artifact, arenas, [0, 0, 0, total])
    fill_sparse_integers([problem.A, problem.B])
    problem.run()  # the kernel is loaded
    graph, _ = captured(problem.run)
    for ends in ([1, 2, 3, 4], [0, 0, 0, 0], [total] * 4, [-5, total, 3, 2**31 - 1], [total // 2, 5, total - 1, total]):
        problem.offs.copy_(torch.tensor(ends))
        problem.outputs.poison()
        graph.replay()
        assert_exact(problem.C, problem.A, problem.B, problem.offs)


@artifacts([artifact for artifact in RAGGED_K_ARTIFACTS if artifact["sm"] == device_sm()])
def test_a_plan_runs_on_what_the_memory_holds(artifact, arenas):
    problem = some_problem(artifact, arenas, [30, 40])
    mat_a, mat_b, by_index = problem.given()
    given = {"offs": problem.offs, "out": problem.C} | by_index
    plan = gg_runtime.Plan(mat_a, mat_b, variant=artifact["name"], **given)
    assert plan.variant == artifact["name"]
    for ends in ([30, 70], [70, 70], [1, 2]):
        problem.offs.copy_(torch.tensor(ends))
        fill_sparse_integers([problem.A, problem.B])
        problem.spread()
        problem.outputs.poison()
        plan.run()
        assert_exact(problem.C, problem.A, problem.B, problem.offs)


@pytest.mark.gpu_gib(24)
@artifacts(FIRST)
def test_operands_past_2_to_the_31_elements(artifact):
    """Addresses of K at the far end, and a matrix of C behind 2^31 elements."""
    dtype, out_dtype = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]]
    total, m, n = 600_001, 4096, 64
    x = torch.zeros(total, m, device="cuda", dtype=dtype)
    dy = sparse_integers(total, n, dtype=dtype)
    x[-3000:] = sparse_integers(3000, m, dtype=dtype)
    offs = torch.tensor([total - 1500, total - 1500, total - 1], dtype=torch.int32, device="cuda")
    C = forced(artifact, x.mT, dy, offs=offs, out_dtype=out_dtype, **index_of(artifact, total))
    tail = slice(total - 3000, total)
    assert_exact(C, x[tail].mT, dy[tail], offs - (total - 3000))
    del x, dy, C
    groups, m, n = 9, 16384, 16384
    x, dy = sparse_integers(90, m, dtype=dtype), sparse_integers(90, n, dtype=dtype)
    offs = as_offs([10] * groups)
    C = forced(artifact, x.mT, dy, offs=offs, out_dtype=out_dtype, **index_of(artifact, 90))
    assert_exact(C[-1:], x[80:].mT, dy[80:], as_offs([10]))


def index_of(artifact: dict, total: int) -> dict:
    """All rows in order, for a kernel that gathers."""
    if artifact["source"] == "rows":
        return {}
    index = torch.arange(total, device="cuda", dtype=torch.int32)
    return {"a_index" if artifact["source"] == "indexed" else "b_index": index}


def some_index(total: int, rows: int, dtype) -> torch.Tensor:
    """Rows in any order, some of them twice, and numbers that are none."""
    index = torch.randint(rows, (total,), device="cuda", dtype=dtype)
    wrong = [-1, rows, torch.iinfo(dtype).min, torch.iinfo(dtype).max]
    if dtype is torch.int64:
        wrong += [1 << 32, (1 << 32) + 1, -(1 << 32), rows - (1 << 32)]  # rows, if a kernel saw the low words alone
    index[:: max(total // 40, 1)] = -7
    for at, number in enumerate(wrong):
        index[at * total // len(wrong) + 1] = number
    return index


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@artifacts(GATHERING)
def test_rows_that_no_index_names_are_zeros(artifact, index_dtype, arenas):
    """From a source of fewer and of more rows than K, with a gap between them; what lies past the last end is not read,
    whatever its index is."""
    dtype, of_a = DTYPES[artifact["dtype"]], artifact["source"] == "indexed"
    sizes, tail = [70, 0, 3 * artifact["block_k"] + 1, 5, 64], 21
    total = sum(sizes) + tail
    m, n, _ = legal(artifact, (artifact["block_m"] + 9, artifact["block_n"] + 9, total))
    for rows in (1, 40, 900):
        for arena in arenas:
            arena.reset()
        problem = RaggedK(artifact, as_offs(sizes), total, m, n, arenas)
        fill_sparse_integers([problem.A, problem.B])
        index = some_index(total, rows, index_dtype)
        index[-tail:] = 0
        source = problem.matrix(rows, m if of_a else n, dtype, True)
        fill_sparse_integers([source])
        inside = (index >= 0) & (index < rows)
        problem.ordered().copy_(torch.where(inside[:, None], source[torch.where(inside, index, 0)], 0))
        given = {"offs": problem.offs, "out": problem.C, "a_index" if of_a else "b_index": index}
        problem.outputs.poison()
        inputs, outputs = problem.inputs.snapshot(), problem.outputs.snapshot()
        forced(artifact, source.mT if of_a else problem.A, problem.B if of_a else source, **given)
        assert_exact(problem.C, problem.A, problem.B, problem.offs)
        assert problem.outputs.stray_writes(outputs) == 0 and problem.inputs.unchanged(inputs)


@artifacts(GATHERING)
def test_a_source_without_rows_gives_zeros(artifact):
    dtype, of_a = DTYPES[artifact["dtype"]], artifact["source"] == "indexed"
    ordered, index = sparse_integers(100, 128, dtype=dtype), torch.zeros(100, dtype=torch.int64, device="cuda")
    nothing = torch.empty(0, 128, device="cuda", dtype=dtype)
    operands = (nothing.mT, ordered) if of_a else (ordered.mT, nothing)
    given = {"a_index" if of_a else "b_index": index, "out_dtype": DTYPES[artifact["out_dtype"]]}
    assert bool((forced(artifact, *operands, offs=as_offs([60, 40]), **given) == 0).all())


@artifacts(GATHERING)
def test_replays_take_the_index_of_the_moment(artifact, arenas):
    problem = some_problem(artifact, arenas, [5, 70, 3 * artifact["block_k"] + 1])
    mat_a, mat_b, by_index = problem.given()
    fill_sparse_integers([problem.source])
    call = lambda: forced(artifact, mat_a, mat_b, offs=problem.offs, out=problem.C, **by_index)  # noqa: E731
    call()  # the kernel is loaded
    graph, _ = captured(call)
    for seed in range(5):
        torch.manual_seed(seed)
        problem.index.copy_(torch.randint(len(problem.source), problem.index.shape, device="cuda"))
        fill_sparse_integers([problem.A, problem.B])
        problem.ordered().copy_(problem.source[problem.index.long()])
        problem.outputs.poison()
        graph.replay()
        assert_exact(problem.C, problem.A, problem.B, problem.offs)


@pytest.mark.gpu_gib(12)
@artifacts(GATHERING)
def test_rows_at_the_far_end_of_the_largest_source(artifact):
    """2^32 elements: offsets of 33 bits in bytes."""
    dtype, of_a = DTYPES[artifact["dtype"]], artifact["source"] == "indexed"
    width, total = 4096, 200
    rows = (1 << 32) // width + 3
    source = torch.empty(rows, width, device="cuda", dtype=dtype)
    source[-total:] = sparse_integers(total, width, dtype=dtype)
    other = sparse_integers(total, 64, dtype=dtype)
    index = torch.arange(rows - 1, rows - 1 - total, -1, device="cuda", dtype=torch.int32)
    offs = as_offs([90, 110])
    given = {"offs": offs, "out_dtype": DTYPES[artifact["out_dtype"]], "a_index" if of_a else "b_index": index}
    C = forced(artifact, *((source.mT, other) if of_a else (other.mT, source)), **given)
    ordered = source[index.long()]
    assert_exact(C, *((ordered.mT, other) if of_a else (other.mT, ordered)), offs)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("source", ["indexed", "indexed_b"])
@pytest.mark.skipif(not GATHERING, reason="no kernel of this GPU gathers along K")
def test_the_library_chooses_to_gather_in_the_product(source, out_dtype):
    """A weight gradient of many groups; and one of few outputs and a long K, whose K is cut into parts."""
    side = "a_index" if source == "indexed" else "b_index"
    for m, n, sizes in ((256, 512, [300] * 40), (256, 256, [30_000, 7, 0, 25_000])):
        total = sum(sizes)
        x, dy = sparse_integers(total, m, dtype=torch.bfloat16), sparse_integers(total, n, dtype=torch.bfloat16)
        index = torch.randint(-3, total, (total,), device="cuda")
        given = {"offs": as_offs(sizes), "out_dtype": out_dtype, side: index}
        parts = [part["variant"] for part in gg_runtime.explain(x.mT, dy, **given).parts]
        assert [part for part in parts if part.startswith("gather_")] == []
        assert sum(part.startswith("hopper_gather_k") for part in parts) == 1
        C = gg_runtime.grouped_mm(x.mT, dy, **given)
        rows, inside = (x, dy)[source == "indexed_b"], index >= 0
        ordered = torch.where(inside[:, None], rows[index.clamp(min=0)], 0)
        assert_exact(C, *((ordered.mT, dy) if source == "indexed" else (x.mT, ordered)), given["offs"])


FACTORS = {"beta": (1.0, 1.0), "both": (0.5, -2.0), "alpha": (4.0, 0.0), "neither": (0.0, 0.0)}


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("on_device", [False, True], ids=["numbers", "device"])
@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
def test_factors_of_sums_and_of_the_output(factors, on_device, out_dtype):
    """One rounding, whatever the parts; an output that is not to be read may be NaN."""
    alpha, beta = factors
    for m, n, sizes in ((136, 264, [70, 0, 65]), (33, 17, [3, 1, 0]), (512, 512, [4097])):
        A, B = (
            sparse_integers(sum(sizes), m, dtype=torch.bfloat16).mT,
            sparse_integers(sum(sizes), n, dtype=torch.bfloat16),
        )
        before = torch.randint(-9, 9, (len(sizes), m, n), device="cuda").to(out_dtype)
        out = before.clone() if beta or on_device else torch.full_like(before, NAN)
        given = [torch.tensor([factor], device="cuda") if on_device else factor for factor in factors]
        gg_runtime.grouped_mm(A, B, offs=as_offs(sizes), out=out, alpha=given[0], beta=given[1])
        assert_exact(out, A, B, as_offs(sizes), alpha=alpha, beta=beta, before=before)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("shape", [(256, 256), (264, 136), (65, 33)], ids=str)
def test_few_outputs_of_long_groups_have_the_same_bits_each_time(shape, out_dtype):
    """Groups whose K is cut into parts, where the library does; an empty one too."""
    sizes = [40_007, 0, 25_000, 63]
    A, B = (torch.empty(sum(sizes), width, device="cuda", dtype=torch.bfloat16) for width in shape)
    for fill, check in ((fill_sparse_integers, assert_exact), (fill_normal, assert_close)):
        fill([A, B])
        results = [gg_runtime.grouped_mm(A.mT, B, offs=as_offs(sizes), out_dtype=out_dtype) for _ in range(5)]
        check(results[0], A.mT, B, as_offs(sizes))
        assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("out", ["own", "fp32"])
def test_this_gpu_has_kernels_of_ragged_k_of_its_own(dtype, out):
    wanted = dtype if out == "own" else out
    own = [a for a in RAGGED_K_ARTIFACTS if (a["sm"], a["dtype"], a["out_dtype"]) == (device_sm(), dtype, wanted)]
    assert {artifact["layout"] for artifact in own} == {"nn", "nt", "tn", "tt", "strided"}
    assert {artifact["alignment"] for artifact in own} == {2, 16}


def test_a_kernel_refuses_operands_that_break_its_promise(arenas):
    offs = as_offs([64, 64])
    for artifact in RAGGED_K_ARTIFACTS:
        if artifact["layout"] == "strided":  # it promises nothing
            continue
        dtype, out_dtype = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]]
        A, B = arenas[0].matrix(64, 128, dtype, (257, 2)), arenas[0].matrix(128, 64, dtype)
        with pytest.raises(ValueError, match=artifact["name"]):
            forced(artifact, A, B, offs=offs, out_dtype=out_dtype)
