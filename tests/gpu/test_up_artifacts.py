"""Every embedded kernel with an activation or an index of rows, forced: right at its edges, for any ends and index."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

import ragged_oracle  # noqa: E402
from cases import DTYPES, UP_ARTIFACTS, device_sm, per_16_bytes  # noqa: E402
from oracle import RELATIVE_SLACK, fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import as_offs, forced  # noqa: E402
from up_projection_oracle import GATED, activated, assert_close, assert_one_rounding, gathered, sums  # noqa: E402

INT32 = 2**31


def artifacts(chosen=UP_ARTIFACTS):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def orders(artifact) -> list[str]:
    """In which columns of gate and up may lie for the kernel."""
    if artifact["epilogue"] == "gated_pairs":
        return ["interleaved"]
    halves = ["gate_first", "up_first"]
    return halves if artifact["layout"] == "nn" or keeps(artifact) else [*halves, "interleaved"]


def keeps(artifact) -> bool:
    """Whether it writes the pre-activation too."""
    return artifact["epilogue"] == "gated_kept"


def activations(artifact) -> list[str]:
    """What the kernel applies."""
    return [name for name in GATED if not (keeps(artifact) and name == "geglu")]


def sources(artifact) -> list[bool]:
    """Whether rows come by an index."""
    return {"rows": [False], "indexed": [True], "either": [False, True]}[artifact["source"]]


def is_gated(artifact) -> bool:
    return artifact["epilogue"] != "linear"


class Up:
    """Operands of one call, between guards; with `indexed` A has fewer rows than the product."""

    def __init__(self, artifact, sizes, tail, n, k, arenas, indexed, order="gate_first"):
        self.artifact, (self.inputs, self.outputs) = artifact, arenas
        dtype, rows, groups = DTYPES[artifact["dtype"]], sum(sizes) + tail, len(sizes)
        gap = per_16_bytes(dtype)
        source_rows = rows // 2 + 3 if indexed else rows
        self.A = self.inputs.matrix(source_rows, k, dtype, (k + gap, 1), gap)
        leading, unit = (n + gap, 1) if artifact["layout"] == "nn" else (1, k + gap)
        apart = (k if artifact["layout"] == "nn" else n) * max(leading, unit) + 3 * gap
        self.B = self.inputs.array((groups, k, n), dtype, (apart, leading, unit), gap)
        self.bias = self.inputs.array((groups, n), dtype, (2 * n + 3, 2), 1)
        columns = n // 2 if is_gated(artifact) else n
        self.C = self.outputs.matrix(rows, columns, dtype, (columns + gap, 1), gap)
        self.kept = self.outputs.matrix(rows, n, dtype, (n + gap, 1), gap) if keeps(artifact) else None
        self.offs = self.inputs.array((groups,), torch.int32, (1,))
        self.offs.copy_(as_offs(sizes))
        self.index = None
        if indexed:
            integer = random.Random(n).choice([torch.int32, torch.int64])
            self.index = self.inputs.array((rows,), integer, (1,))
            self.index.copy_(torch.randint(-source_rows // 4, source_rows * 5 // 4, (rows,), device="cuda"))
        self.order, self.activation, self.limit = order, None, None

    def run(self, activation):
        self.activation = activation if is_gated(self.artifact) else None
        return forced(
            self.artifact, self.A, self.B, offs=self.offs, bias=self.bias, out=self.C, a_index=self.index,
            activation=self.activation, gate_up=self.order, swiglu_limit=self.limit, preactivation=self.kept,
        )  # fmt: skip

    def run_checked(self, fill, activation):
        """On fresh data and poisoned outputs: right, and nothing else is written."""
        fill([self.A, self.B])
        self.bias.copy_(torch.randint(-9, 10, self.bias.shape, device="cuda"))
        self.outputs.poison()
        inputs, outputs = self.inputs.snapshot(), self.outputs.snapshot()
        self.run(activation)
        z = sums(self.A, self.B, self.offs, bias=self.bias, index=self.index)
        if self.kept is not None and fill is fill_sparse_integers:
            assert torch.equal(self.kept.double(), z)
        elif self.kept is not None:
            self.check_kept(z)
        if self.activation is None and fill is fill_sparse_integers:
            assert torch.equal(self.C.double(), z)
        elif self.activation is None:
            bias, self.bias = self.bias, None  # of which that bound knows nothing
            self.run(activation)
            self.bias = bias
            ragged_oracle.assert_close(self.C, gathered(self.A, self.index).to(self.A.dtype), self.B, self.offs)
        elif fill is fill_sparse_integers:
            assert_one_rounding(self.C, z, self.activation, self.order, self.limit)
        else:
            assert_close(self.C, z, self.activation, self.order, relative=1e-5, swiglu_limit=self.limit)
        assert self.outputs.stray_writes(outputs) == 0
        assert self.inputs.unchanged(inputs)

    def check_kept(self, z):
        """One rounding of sums that float32 makes in another order, which errs with the magnitudes that are summed."""
        magnitudes = sums(self.A.abs(), self.B.abs(), self.offs, bias=self.bias.abs(), index=self.index)
        allowed = z.abs() * torch.finfo(self.kept.dtype).eps * 0.51 + RELATIVE_SLACK * magnitudes
        wrong = ~((self.kept.double() - z).abs() <= allowed)
        assert not wrong.any(), (wrong.nonzero()[0], self.kept[wrong][:3], z[wrong][:3], allowed[wrong][:3])


def edges(artifact):
    """(rows of each group, rows behind them, N, K): whole 16 bytes where the kernel needs them."""
    block_m, block_n, block_k = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    sizes = [0, 1, block_m - 1, 0, block_m, block_m + 1, 2 * block_m + 3, 0]
    columns = itertools.cycle((16, block_n - 16, block_n, block_n + 16, 2 * block_n + 48))
    for turn, k in enumerate((8, block_k - 8, block_k, block_k + 8, 3 * block_k + 40, 7 * block_k)):
        yield sizes[turn:] + sizes[:turn], turn % 3 * (block_m - 1), next(columns), k


@artifacts()
def test_tile_edges(artifact, arenas):
    turns = itertools.cycle(activations(artifact))
    for indexed, order in itertools.product(sources(artifact), orders(artifact)):
        for sizes, tail, n, k in edges(artifact):
            up = Up(artifact, sizes, tail, n, k, arenas, indexed, order)
            up.run_checked(fill_sparse_integers, next(turns))
            up.run_checked(fill_normal, next(turns))


@artifacts()
def test_every_activation(artifact, arenas):
    sizes = [artifact["block_m"] + 3, 0, 7]
    for indexed, activation in itertools.product(sources(artifact), activations(artifact)):
        n = artifact["block_n"] + 32
        up = Up(artifact, sizes, 5, n, 2 * artifact["block_k"] + 8, arenas, indexed, orders(artifact)[-1])
        up.run_checked(fill_sparse_integers, activation)
        up.run_checked(fill_normal, activation)


@artifacts([artifact for artifact in UP_ARTIFACTS if is_gated(artifact)])
def test_gate_and_up_are_limited(artifact, arenas):
    sizes, n, k = [artifact["block_m"] + 3, 0, 7], artifact["block_n"] + 32, 2 * artifact["block_k"] + 8
    for indexed, activation, limit in itertools.product(
        sources(artifact), ("swiglu", "swiglu_oai"), (2.5, float("inf"))
    ):
        up = Up(artifact, sizes, 5, n, k, arenas, indexed, orders(artifact)[0])
        up.limit = limit
        up.run_checked(fill_sparse_integers, activation)
        up.run_checked(fill_normal, activation)


@artifacts()
def test_any_ends_and_any_index_give_the_defined_result(artifact, arenas):
    numbers = random.Random(3)
    rows = 2 * artifact["block_m"] + 19
    for indexed in sources(artifact):
        up = Up(artifact, [rows] + [0] * 8, 0, artifact["block_n"] + 16, artifact["block_k"] + 8, arenas, indexed)
        up.order = orders(artifact)[0]
        for ends in (
            [-1, -5, -INT32, 3, 7, -7, 9, 9, -1],
            [rows - 8 * i for i in range(9)],
            [INT32 - 1] * 9,
            [-INT32] * 9,
            [numbers.randrange(-INT32, INT32) for _ in range(9)],
        ):
            up.offs.copy_(torch.tensor(ends))
            if indexed:
                least, most = torch.iinfo(up.index.dtype).min, torch.iinfo(up.index.dtype).max
                up.index.copy_(torch.randint(least, most, up.index.shape, device="cuda"))
                up.index[::2] = torch.randint(-3, rows, up.index[::2].shape, device="cuda").to(up.index.dtype)
            up.run_checked(fill_sparse_integers, "swiglu")


@artifacts()
def test_nan_of_rows_and_matrices_that_nobody_asks_for_stays_there(artifact, arenas):
    sizes, tail = [artifact["block_m"] + 3, 0, 5], artifact["block_m"] + 9
    for indexed in sources(artifact):
        up = Up(artifact, sizes, tail, artifact["block_n"] + 16, 5 * artifact["block_k"] + 8, arenas, indexed)
        up.order = orders(artifact)[0]
        fill_sparse_integers([up.A, up.B])
        up.bias.copy_(torch.zeros(up.bias.shape))
        used = torch.zeros(len(up.A), dtype=torch.bool, device="cuda")
        asked = torch.arange(sum(sizes), device="cuda") if up.index is None else up.index[: sum(sizes)].long()
        used[asked[(asked >= 0) & (asked < len(up.A))]] = True
        z = sums(torch.where(used[:, None], up.A, 0), up.B, up.offs, index=up.index)
        for unused in (up.B[1], up.bias[1]):
            unused.copy_(torch.full(unused.shape, float("nan"), device="cuda"))
        up.A.copy_(torch.where(used[:, None], up.A, float("nan")))
        up.outputs.poison()
        up.run("swiglu")
        assert torch.equal(up.C.isnan(), torch.zeros_like(up.C, dtype=torch.bool))
        wanted = activated(z, up.activation, up.order)
        assert torch.allclose(up.C.double(), wanted, rtol=1e-2, atol=1e-3)
        assert not up.C[sum(sizes) :].any()
        assert up.kept is None or (torch.equal(up.kept.double(), z) and not up.kept[sum(sizes) :].any())


@artifacts()
def test_more_groups_than_any_scan_window(artifact, arenas):
    numbers = random.Random(1)
    sizes = [numbers.choice([0, 0, 0, 1, 2]) for _ in range(513)]
    for indexed in sources(artifact):
        up = Up(artifact, sizes, 5, 32, 24, arenas, indexed, orders(artifact)[0])
        up.run_checked(fill_sparse_integers, "swiglu")


@pytest.mark.skipif(device_sm() != 90, reason="the fused kernels for Hopper")
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_this_gpu_has_kernels_of_every_kind(dtype):
    own = {(a["epilogue"], a["source"], a["layout"]) for a in UP_ARTIFACTS if a["sm"] == 90 and a["dtype"] == dtype}
    assert own == {
        *itertools.product(["gated", "gated_kept"], ["rows", "indexed"], ["nn", "nt"]),
        *itertools.product(["gated_pairs"], ["rows", "indexed"], ["nn"]),
        *itertools.product(["linear"], ["indexed"], ["nn", "nt"]),
    }
