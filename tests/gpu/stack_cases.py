"""Stacks of matrices, batched and masked: laid out as an artifact needs them, and what their product is."""

import torch

import oracle
import up_projection_oracle
from cases import DTYPES, per_16_bytes, pitch
from ragged_cases import forced
from scaled_oracle import clamped

AS_IT_WAS = -1232.0  # in every output before a call; float16 and bfloat16 hold it, and no product here gives it


def sums(A, B, counts=None, bias=None):
    """[E, M, N] in float64; NaN in rows that are not computed."""
    made = torch.full((len(A), A.shape[1], B.shape[2]), float("nan"), device=A.device, dtype=torch.float64)
    for group, count in enumerate(clamped(counts, len(A), A.shape[1])):
        made[group, :count] = torch.mm(A[group, :count].double(), B[group].double())
        if bias is not None:
            made[group, :count] += bias[group].double()
    return made


def assert_untouched(C, counts) -> None:
    """Rows past the counts are as they were."""
    for group, count in enumerate(clamped(counts, len(C), C.shape[1])):
        assert bool((C[group, count:].float() == AS_IT_WAS).all()), f"group {group} is written past row {count}"


def assert_exact(C, A, B, counts=None, bias=None) -> None:
    """Equal to the last bit, for inputs of `fill_sparse_integers` and integer biases; nothing else is written."""
    wanted = torch.nan_to_num(sums(A, B, counts, bias), nan=AS_IT_WAS).to(C.dtype)
    assert C.shape == wanted.shape
    wrong = (C.float() != wanted.float()).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{list(A.shape)} @ {list(B.shape)}: {len(wrong)} elements differ, first at {list(place)}: "
            f"{C[place].item()} instead of {wanted[place].item()}; counts {clamped(counts, len(A), A.shape[1])}"
        )


def assert_close(C, A, B, counts=None) -> None:
    """Each group as close as oracle.assert_close has it; nothing else is written."""
    rows = list(enumerate(clamped(counts, len(A), A.shape[1])))
    oracle.assert_close([C[g, :n] for g, n in rows], [A[g, :n] for g, n in rows], [B[g] for g, _ in rows])
    assert_untouched(C, counts)


def assert_activated(C, A, B, counts, bias, activation, order="gate_first", swiglu_limit=None) -> None:
    """For inputs and biases whose sums are exact: the activation in float32, rounded once; nothing else is written."""
    z = sums(A, B, counts, bias)
    for group, count in enumerate(clamped(counts, len(A), A.shape[1])):
        up_projection_oracle.assert_one_rounding(C[group, :count], z[group, :count], activation, order, swiglu_limit)
    assert_untouched(C, counts)


def is_gated(artifact: dict) -> bool:
    return artifact["epilogue"] != "linear"


def orders(artifact: dict) -> list[str]:
    """In which columns of gate and up may lie for the kernel."""
    if not is_gated(artifact):
        return ["gate_first"]
    if artifact["epilogue"] == "gated_pairs":
        return ["interleaved"]
    halves = ["gate_first", "up_first"]
    return halves if artifact["layout"] == "nn" else [*halves, "interleaved"]


def legal(artifact: dict, m: int, n: int, k: int, packed: bool = False) -> tuple[int, int, int]:
    """Sizes that the artifact takes: those that it needs in whole 16 bytes rounded up to that; `packed`: in arrays
    without gaps, where sizes are strides too."""
    if artifact["alignment"] < 16:
        return m, n, k
    whole = 2 * 8 if is_gated(artifact) else 8
    n = -(-n // whole) * whole
    if artifact["addressing"] == "host_descriptors" and not packed:
        return m, n, k  # TMA takes any rows and any K
    layout = artifact["layout"]
    return (
        -(-m // 8) * 8 if layout[0] == "t" else m,
        n,
        -(-k // 8) * 8 if layout[0] == "n" or layout[1] == "t" else k,
    )


class Stack:
    """Operands of one product of stacks in two arenas; leading strides and those of groups leave gaps."""

    def __init__(self, artifact: dict, groups: int, m: int, n: int, k: int, arenas, order="gate_first"):
        self.artifact, (self.inputs, self.outputs), self.order = artifact, arenas, order
        dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
        self.A = self._stack(self.inputs, groups, m, k, dtype, layout[0] in "ns")
        self.B = self._stack(self.inputs, groups, k, n, dtype, layout[-1] in "nd")
        self.C = self._stack(self.outputs, groups, m, n // 2 if is_gated(artifact) else n, dtype, True)
        self.bias = self.inputs.array((groups, n), dtype, (2 * n + 3, 2), 1)
        self.counts = self.inputs.array((groups,), torch.int32, (1,))
        self.activation, self.limit = "swiglu" if is_gated(artifact) else None, None

    def _stack(self, arena, groups, rows, columns, dtype, row_major):
        leading, unit, offset = pitch(self.artifact, columns if row_major else rows, dtype)
        gap = 3 * per_16_bytes(dtype) if self.artifact["alignment"] >= 16 else 5
        strides = (leading, unit) if row_major else (unit, leading)
        apart = leading * (rows if row_major else columns) + gap
        return arena.array((groups, rows, columns), dtype, (apart, *strides), offset)

    def run(self, counts=None, bias=None):
        return forced(
            self.artifact, self.A, self.B, counts=counts, bias=bias, out=self.C, activation=self.activation,
            gate_up=self.order, swiglu_limit=self.limit,
        )  # fmt: skip

    def run_checked(self, fill, stated=None) -> None:
        """On fresh data, with `stated` in counts: right, and nothing else is read into it or written."""
        fill([self.A, self.B])
        self.bias.copy_(torch.randint(-9, 10, self.bias.shape, device="cuda"))
        counts = None
        if stated is not None:
            self.counts.copy_(torch.tensor(stated))
            counts = self.counts
            for group, count in enumerate(clamped(counts, *self.A.shape[:2])):
                past = self.A[group, count:]
                past.copy_(torch.full(past.shape, float("nan"), device="cuda"))
        self.C.fill_(AS_IT_WAS)
        inputs, outputs = self.inputs.snapshot(), self.outputs.snapshot()
        exact = fill is oracle.fill_sparse_integers
        bias = self.bias if exact else None
        self.run(counts, bias)
        if exact and self.activation:
            assert_activated(self.C, self.A, self.B, counts, bias, self.activation, self.order, self.limit)
        elif exact:
            assert_exact(self.C, self.A, self.B, counts, bias)
        elif self.activation:
            for group, count in enumerate(clamped(counts, *self.A.shape[:2])):
                z = sums(self.A[group : group + 1, :count], self.B[group : group + 1])[0]
                made = self.C[group, :count]
                # Float32 sums that are right, one product after the other, err by 1.1e-5 at K = 264 and 2.3e-5 at 520.
                up_projection_oracle.assert_close(
                    made, z, self.activation, self.order, relative=1e-5 + 2e-8 * self.A.shape[2]
                )
            assert_untouched(self.C, counts)
        else:
            assert_close(self.C, self.A, self.B, counts)
        assert self.outputs.stray_writes(outputs) == 0
        assert self.inputs.unchanged(inputs)
