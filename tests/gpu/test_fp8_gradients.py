"""Every embedded kernel of ragged K with scales of blocks, forced, against products in float64: right at its tile edges
and for any offs. What is done by parts, as the library chooses them."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import scaled_k_oracle  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, SCALED_K_ARTIFACTS, device_sm, legal  # noqa: E402
from oracle import fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import as_offs, forced, garbage, random_sizes  # noqa: E402
from ragged_k_cases import RaggedK, check_one_addition, deep_groups  # noqa: E402
from scaled_k_oracle import assert_exact, make_scales, most_blocks, spans, worst_share  # noqa: E402
from scaled_oracle import blocks, powers_of_two, sparse_integers  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")

NAN = float("nan")
OWN = [artifact for artifact in SCALED_K_ARTIFACTS if artifact["sm"] == device_sm()]
ADDING = [a for a in OWN if (a["out_dtype"], a["addressing"]) == ("fp32", "host_descriptors")]


def artifacts(chosen=OWN):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def alignment_of(artifact) -> int:
    """TMA needs groups that start at whole boxes."""
    return 128 if artifact["addressing"] == "host_descriptors" else 1


def steps(artifact, sizes) -> list[int]:
    """Sizes of groups that the kernel takes as they are: whole blocks for TMA."""
    step = alignment_of(artifact)
    return [-(-size // step) * step for size in sizes]


class Gradient(RaggedK):
    """A product with ragged K and scales between red zones: those of blocks that no group has are NaN."""

    def __init__(self, artifact, sizes, arenas, m=None, n=None, tail=0, offs=None, alignment=None):
        self.alignment = alignment or alignment_of(artifact)
        total = sum(sizes) + tail
        m, n = m or artifact["block_m"] + 9, n or artifact["block_n"] + 9
        m, n, _ = legal(artifact, (m, n, total))
        super().__init__(artifact, as_offs(sizes) if offs is None else offs, total, m, n, arenas)
        count = most_blocks(total, len(self.offs))
        self.scale_a = self.inputs.array((m, count), torch.float32, (1, m + 3), 1)
        self.scale_b = self.inputs.array((count, n), torch.float32, (n + 5, 1), 1)
        self.scale(lambda shape: powers_of_two(shape, "cuda"))

    def scale(self, make) -> None:
        """Scales of the blocks that groups have."""
        used = sum(blocks(k.stop - k.start) for k, _ in spans(self.offs, self.A.shape[1], self.alignment))
        for whole, shape, of in zip((self.scale_a, self.scale_b), (self.A.shape[:1], self.B.shape[1:]), (1, 0)):
            whole.fill_(NAN)
            whole.narrow(of, 0, used).copy_(make((*shape, used) if of else (used, *shape)))

    def operands(self) -> tuple:
        return self.A, self.B, self.offs, self.scale_a, self.scale_b

    def run(self, **others):
        given = {"scale_a": self.scale_a, "scale_b": self.scale_b, "k_alignment": self.alignment} | others
        return forced(self.artifact, self.A, self.B, offs=self.offs, out=self.C, **given)

    def run_checked(self, check, **others) -> None:
        """Into poisoned outputs: the products are right and nothing else was written."""
        self.outputs.poison()
        inputs, outputs = self.inputs.snapshot(), self.outputs.snapshot()
        self.run(**others)
        check(self.C, *self.operands(), alignment=self.alignment)
        assert self.outputs.stray_writes(outputs) == 0
        assert self.inputs.unchanged(inputs)


def assert_close(C, *operands, **others) -> None:
    share = worst_share(C, *operands, **others)
    assert share <= 1, f"{share:.2f} of the allowed error"


def exact(problem: Gradient) -> Gradient:
    fill_sparse_integers([problem.A, problem.B])
    return problem


def test_there_are_kernels_to_look_at():
    kernels = {(artifact["addressing"], artifact["dtype"], artifact["out_dtype"]) for artifact in OWN}
    assert kernels == set(itertools.product(("pointers", "host_descriptors"), ("e4m3", "e5m2"), ("bf16", "fp32")))


@artifacts()
def test_tile_edges(artifact, arenas):
    block_m, block_n = artifact["block_m"], artifact["block_n"]
    sizes = [0, 1, 127, 0, 128, 129, 256, 643, 512, 0]
    columns = (257, block_n, 1, block_n + 1, block_n - 1)
    for turn, m in enumerate((1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3)):
        for arena in arenas:
            arena.reset()
        order = steps(artifact, sizes[2 * turn :] + sizes[: 2 * turn])
        problem = Gradient(artifact, order, arenas, m, columns[turn], tail=turn % 3 * 77)
        exact(problem).run_checked(assert_exact)
        fill_normal([problem.A, problem.B])
        problem.scale(lambda shape: 0.5 + 1.5 * torch.rand(shape, device="cuda"))
        problem.run_checked(assert_close)


@artifacts()
@pytest.mark.parametrize("alignment", [1, 128])
def test_any_offs_give_the_defined_result(artifact, alignment, arenas):
    """Ends that break the promise count as the next multiple of 128."""
    if alignment < alignment_of(artifact):
        return
    for total in (768, 640 + 19):
        for arena in arenas:
            arena.reset()
        problem = exact(Gradient(artifact, [0] * 8 + [total], arenas, alignment=alignment))
        for ends in garbage(total).values():
            problem.offs.copy_(torch.tensor(ends))
            problem.scale(lambda shape: powers_of_two(shape, "cuda"))
            problem.run_checked(assert_exact)


@artifacts()
def test_padding_of_zeros_leaves_a_product_as_it_is(artifact, arenas):
    """Real ends of groups that were padded to 128: the promise is broken, and the result is that of the padded ones."""
    sizes, ends = [256, 128, 0, 384], [130, 257, 384, 700]
    problem = exact(Gradient(artifact, sizes, arenas, alignment=128))
    starts = [0, 256, 384, 384]
    for group, start in enumerate(starts):
        problem.A[:, max(ends[group], start) : start + sizes[group]] = 0
    right = scaled_k_oracle.product(*problem.operands(), 128)[0]
    problem.offs.copy_(torch.tensor(ends))
    problem.outputs.poison()
    problem.run()
    assert torch.equal(problem.C, right.float().to(problem.C.dtype))


@artifacts()
def test_all_groups_are_empty(artifact, arenas):
    """A CTA has more of them than the ring has slots."""
    problem = Gradient(artifact, [0] * 1100, arenas, 33, 17, tail=130)
    problem.A.fill_(NAN)
    problem.B.fill_(NAN)
    problem.outputs.poison()
    problem.run()
    assert bool((problem.C == 0).all())


@artifacts()
def test_nan_of_a_neighbour_and_past_the_last_group_stays_there(artifact, arenas):
    for sizes in ([3, 5, 130, 1, 253], [128, 128, 128, 512, 0], [1, 1, 1, 1, 1]):
        for arena in arenas:
            arena.reset()
        problem = exact(Gradient(artifact, steps(artifact, sizes), arenas, tail=137))
        found = spans(problem.offs, problem.A.shape[1], problem.alignment)
        right = scaled_k_oracle.product(*problem.operands(), problem.alignment)[0]
        for k in (found[1][0], found[3][0], slice(found[-1][0].stop, None)):
            problem.A[:, k] = NAN
            problem.B[k] = NAN
        problem.outputs.poison()
        problem.run()
        for group in range(5):
            if group in (1, 3):
                assert bool(problem.C[group].isnan().all())
            else:
                assert torch.equal(problem.C[group], right[group].float().to(problem.C.dtype))


@artifacts()
def test_a_nan_scale_stays_in_its_row_its_column_and_its_group(artifact, arenas):
    problem = Gradient(artifact, [256, 128, 384], arenas)
    problem.A.fill_(1)
    problem.B.fill_(1)
    problem.scale_a[7, 2] = NAN
    problem.scale_b[4, 5] = NAN
    problem.outputs.poison()
    problem.run()
    wrong = torch.zeros(problem.C.shape, dtype=torch.bool, device="cuda")
    wrong[1, 7] = True
    wrong[2, :, 5] = True
    assert torch.equal(problem.C.isnan(), wrong)


@artifacts()
def test_more_groups_than_any_block_of_the_search(artifact, arenas):
    sizes = steps(artifact, random_sizes(515, 1500, seed=1, occupied=0.3))
    exact(Gradient(artifact, sizes, arenas, 33, 17, tail=5)).run_checked(assert_exact)


@artifacts()
def test_a_long_k(artifact, arenas):
    problem = exact(Gradient(artifact, steps(artifact, [20001, 0, 40006]), arenas, 65, 70))
    problem.run_checked(assert_exact)
    fill_normal([problem.A, problem.B])
    problem.scale(lambda shape: 0.5 + torch.rand(shape, device="cuda"))
    problem.run_checked(assert_close)


@artifacts()
def test_long_sums_are_as_exact_as_short_ones(artifact, arenas):
    """As test_fp8_accumulation: sums of 128 products are moved to float32."""
    errors = []
    for size in (128, 16384):
        for arena in arenas:
            arena.reset()
        problem = Gradient(artifact, [size], arenas, 256, 256)
        for matrix in (problem.A, problem.B):
            matrix.copy_(torch.randn(matrix.shape, device="cuda") + 0.5)
        problem.run()
        right, _ = scaled_k_oracle.product(*problem.operands())
        off = problem.C.double() - right
        errors.append((off.square().mean() / right.square().mean()).sqrt().item())
    rounding = 2**-9 if artifact["out_dtype"] == "bf16" else 2**-20
    assert errors[0] <= 2**-11 + rounding and errors[1] <= 3 * errors[0] + rounding, errors


@artifacts()
def test_zero_and_huge_scales(artifact, arenas):
    """A factor is that of the row times that of the column: 2**100 and 2**-100 make 1."""
    problem = exact(Gradient(artifact, [384, 128], arenas))
    problem.scale_a.mul_(2.0**100)
    problem.scale_b.mul_(2.0**-100)
    problem.scale_a[3], problem.scale_b[:, 4] = 0, 0
    problem.run_checked(assert_exact)
    assert not problem.C[:, 3].any() and not problem.C[:, :, 4].any()


LIES = {
    "rows of scale_a contiguous": ((1, 300), (1, 300)),
    "blocks contiguous": ((21, 1), (1, 21)),
    "columns of scale_b contiguous": ((30, 1), (700, 1)),
    "apart": ((2, 1000), (5, 70)),
    "one for many": ((0, 1), (1, 0)),
}


@artifacts()
@pytest.mark.parametrize("lies", LIES)
def test_scales_are_read_where_they_lie(artifact, lies, arenas):
    problem = exact(Gradient(artifact, steps(artifact, [200, 0, 300, 128]), arenas))
    m, n, count = *problem.C.shape[1:], problem.scale_b.shape[0]
    problem.scale_a = problem.inputs.array((m, count), torch.float32, LIES[lies][0])
    problem.scale_b = problem.inputs.array((count, n), torch.float32, LIES[lies][1])
    for place, values in zip((problem.scale_a, problem.scale_b), make_scales(m, n, count, "cuda")):
        if lies == "one for many":  # torch writes no element twice
            place, values = (one.narrow(place.stride().index(0), 0, 1) for one in (place, values))
        place.copy_(values)
    problem.run_checked(assert_exact)


@artifacts()
def test_alpha_is_a_number_or_lies_on_the_device(artifact, arenas):
    problem = exact(Gradient(artifact, [128, 0, 256], arenas))
    on_device = problem.inputs.array((1,), torch.float32, (1,))
    for factor in (0.5, -2.0, 0.0):
        on_device.fill_(factor)
        for alpha in (factor, on_device):
            check = lambda *given, by=factor, **others: assert_exact(*given, alpha=by, **others)  # noqa: E731
            problem.run_checked(check, alpha=alpha)


@artifacts(ADDING)
def test_sums_are_added_to_what_the_output_has(artifact, arenas):
    """Whatever is there where a group is empty stays; so does a NaN. Repeated, with the same bits each time."""
    problem = exact(Gradient(artifact, [128, 0, 384, 256], arenas))
    before = torch.randint(-99, 99, problem.C.shape, device="cuda").float()
    for alpha in (1.0, -0.5):
        problem.C.copy_(before)
        outputs = problem.outputs.snapshot()
        problem.run(alpha=alpha, beta=1.0)
        assert_exact(problem.C, *problem.operands(), alignment=128, alpha=alpha, beta=1.0, before=before)
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
    m, n = 2 * artifact["block_m"] + 9, 2 * artifact["block_n"] + 9
    problem = Gradient(artifact, deep_groups(1, 128), arenas, m, n)
    fill_normal([problem.A, problem.B])
    outputs = problem.outputs.snapshot()
    check_one_addition(problem.C, problem.run)
    assert problem.outputs.stray_writes(outputs) == 0


@artifacts()
def test_repeated_runs_give_the_same_bits(artifact, arenas):
    problem = Gradient(artifact, steps(artifact, [500, 0, 3, 1000, 64]), arenas)
    fill_normal([problem.A, problem.B])
    results = []
    for _ in range(10):
        problem.outputs.poison()
        problem.run()
        results.append(problem.C.clone())
    assert all(torch.equal(results[0], other) for other in results)


@artifacts()
def test_a_graph_and_a_plan_read_offs_and_scales_of_the_moment(artifact, arenas):
    total = 512
    problem = exact(Gradient(artifact, [0, 0, 0, total], arenas))
    problem.run()  # the kernel is loaded
    graph, _ = captured(problem.run)
    given = {"offs": problem.offs, "out": problem.C, "scale_a": problem.scale_a, "scale_b": problem.scale_b}
    plan = gg_runtime.Plan(problem.A, problem.B, k_alignment=problem.alignment, variant=artifact["name"], **given)
    splits = ([1, 2, 3, 4], [0, 0, 0, 0], [total] * 4, [-5, total, 3, 2**31 - 1], [256, 5, total - 1, total])
    for turn, ends in enumerate(splits):
        problem.offs.copy_(torch.tensor(ends))
        problem.scale(lambda shape, seed=turn: powers_of_two(shape, "cuda", seed))
        for again in (graph.replay, plan.run):
            problem.outputs.poison()
            again()
            assert_exact(problem.C, *problem.operands(), alignment=problem.alignment)


def operands(sizes, m, n, tail=0):
    """A and B with K contiguous."""
    total = sum(sizes) + tail
    return sparse_integers(m, total, device="cuda"), sparse_integers(n, total, device="cuda").mT


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("promised", [True, False], ids=["promised", "not"])
def test_the_library_takes_tma_where_ends_are_promised(promised, out_dtype):
    sizes = [1024, 0, 4096, 512]
    A, B = operands(sizes, 264, 1032)
    of = make_scales(264, 1032, sum(sizes) // 128, "cuda")
    given = {"offs": as_offs(sizes), "scale_a": of[0], "scale_b": of[1], "out_dtype": out_dtype}
    given["k_alignment"] = 128 if promised else 1
    variant = gg_runtime.explain(A, B, **given).variant
    assert variant.startswith("hopper_ragged_k_block_scales" if promised else "basic_ragged_k_block_scales")
    assert_exact(gg_runtime.grouped_mm(A, B, **given), A, B, given["offs"], *of, alignment=given["k_alignment"])


FACTORS = {"beta": (1.0, 1.0), "both": (0.5, -2.0), "alpha": (4.0, 0.0), "neither": (0.0, 0.0)}


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("on_device", [False, True], ids=["numbers", "device"])
@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
def test_factors_of_sums_and_of_the_output(factors, on_device, out_dtype):
    """One rounding, whatever the parts; an output that is not to be read may be NaN."""
    alpha, beta = factors
    for m, n, sizes, alignment in ((136, 264, [128, 0, 256], 128), (33, 17, [3, 1, 0], 1), (512, 512, [4096], 128)):
        A, B = operands(sizes, m, n)
        of = make_scales(m, n, most_blocks(sum(sizes), len(sizes)), "cuda")
        before = torch.randint(-9, 9, (len(sizes), m, n), device="cuda").to(out_dtype)
        out = before.clone() if beta or on_device else torch.full_like(before, NAN)
        given = [torch.tensor([factor], device="cuda") if on_device else factor for factor in factors]
        gg_runtime.grouped_mm(
            A, B, offs=as_offs(sizes), out=out, scale_a=of[0], scale_b=of[1], alpha=given[0], beta=given[1],
            k_alignment=alignment,
        )  # fmt: skip
        others = {"alignment": alignment, "alpha": alpha, "beta": beta, "before": before}
        assert_exact(out, A, B, as_offs(sizes), *of, **others)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("shape", [(256, 256), (264, 136), (65, 33)], ids=str)
@pytest.mark.parametrize("alignment", [128, 1])
def test_few_outputs_of_long_groups_have_the_same_bits_each_time(alignment, shape, out_dtype):
    """Groups whose K is cut into parts at whole blocks, where the library does; an empty one too."""
    sizes = [40_064, 0, 24_960, 128] if alignment == 128 else [40_007, 0, 25_000, 63]
    A, B = operands(sizes, *shape)
    of = make_scales(*shape, most_blocks(sum(sizes), len(sizes)), "cuda")
    given = {"offs": as_offs(sizes), "scale_a": of[0], "scale_b": of[1], "k_alignment": alignment}
    results = [gg_runtime.grouped_mm(A, B, out_dtype=out_dtype, **given) for _ in range(5)]
    assert_exact(results[0], A, B, given["offs"], *of, alignment=alignment)
    assert all(torch.equal(results[0], other) for other in results)
    if alignment == 128 and shape == (256, 256):
        assert gg_runtime.explain(A, B, out_dtype=out_dtype, **given).launches == 2


@pytest.mark.parametrize("alignment", [128, 1])
@pytest.mark.parametrize("given", ["both", "a", "b", "none"])
def test_one_scale_is_that_of_all_products(given, alignment):
    sizes = [256, 0, 384]
    A, B = operands(sizes, 80, 96)
    a, b = torch.tensor(0.5, device="cuda"), torch.full((1, 1), 8.0, device="cuda")
    scales = {name: scale for name, scale in (("a", a), ("b", b)) if given in ("both", name)}
    factor = torch.tensor([float(scale) for scale in scales.values()]).prod().item()
    of = torch.full((80, 5), factor, device="cuda"), torch.ones(5, 96, device="cuda")
    C = gg_runtime.grouped_mm(
        A, B, offs=as_offs(sizes), out_dtype=torch.float32, k_alignment=alignment,
        **{f"scale_{name}": scale for name, scale in scales.items()},
    )  # fmt: skip
    assert_exact(C, A, B, as_offs(sizes), *of, alignment=alignment)


@pytest.mark.parametrize("m, n", [(96, 128), (75, 61), (1, 3), (257, 31)], ids=str)
def test_any_layout(m, n):
    sizes = [130, 0, 1, 260]
    total, offs = sum(sizes), as_offs(sizes)
    of = make_scales(m, n, most_blocks(total, len(sizes)), "cuda")
    left = [sparse_integers(m, total, device="cuda"), sparse_integers(total, m, device="cuda").mT]
    left += [sparse_integers(m, total + 9, device="cuda")[:, 3 : 3 + total]]
    right = [sparse_integers(total, n, device="cuda"), sparse_integers(n, total, device="cuda").mT]
    right += [sparse_integers(2 * total, n, device="cuda")[::2]]
    for A in left:
        for B in right:
            given = {"offs": offs, "scale_a": of[0], "scale_b": of[1], "out_dtype": torch.float32}
            for alignment in (1, 128):
                C = gg_runtime.grouped_mm(A, B, k_alignment=alignment, **given)
                assert_exact(C, A, B, offs, *of, alignment=alignment)


def test_sizes_of_zero():
    for m, n, sizes in ((0, 96, [128]), (20, 0, [128]), (20, 96, [0, 0])):
        A, B = operands(sizes, m, n)
        of = make_scales(m, n, sum(sizes) // 128, "cuda")
        for alignment in (1, 128):
            C = gg_runtime.grouped_mm(A, B, offs=as_offs(sizes), scale_a=of[0], scale_b=of[1], k_alignment=alignment)
            assert C.shape == (len(sizes), m, n) and not C.any()


def test_the_gradient_of_weights_by_quantized_activations():
    """x.T @ dy of 3 experts whose tokens are padded to 128, by quantize_1x128 of what is transposed."""
    sizes = [256, 128, 512]
    x, dy = (torch.randn(sum(sizes), width, device="cuda", dtype=torch.bfloat16) for width in (384, 256))
    (a, of_a), (b, of_b) = (gg_runtime.quantize_1x128(one.mT) for one in (x, dy))
    out = torch.zeros(3, 384, 256, device="cuda")
    gg_runtime.grouped_mm(
        a, b.mT, offs=as_offs(sizes), scale_a=of_a, scale_b=of_b.mT, out=out, beta=1.0, k_alignment=128
    )
    assert_close(out, a, b.mT, as_offs(sizes), of_a, of_b.mT, alignment=128)
    right = torch.stack([x[k].double().mT @ dy[k].double() for k, _ in spans(as_offs(sizes), sum(sizes), 128)])
    assert torch.linalg.vector_norm(out - right) <= 0.05 * torch.linalg.vector_norm(right)


def test_a_kernel_refuses_operands_that_break_its_promise():
    A, B = operands([128], 64, 64)
    of = make_scales(64, 64, 1, "cuda")
    for artifact in ADDING:
        given = {"offs": as_offs([128]), "scale_a": of[0], "scale_b": of[1], "out_dtype": DTYPES[artifact["out_dtype"]]}
        for operands_of, others in (
            ((A, B), {"k_alignment": 1}),
            ((A.mT.contiguous().mT, B), {"k_alignment": 128}),
            ((A, B), {"k_alignment": 128, "scale_a": None, "scale_b": None}),
        ):
            with pytest.raises(ValueError, match=artifact["name"]):
                forced(artifact, *operands_of, **given | others)
