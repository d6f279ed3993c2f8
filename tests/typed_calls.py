"""What type checkers make of calls: read by `make lint`, run by nobody.

Lines that must be refused carry an ignore, and an ignore that is not needed is an error here.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import Any

from typing_extensions import assert_type

import gg_runtime
from gg_runtime import Plan


class Tensor:
    """An array type as frameworks have them."""

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class DeviceArray:
    """One without DLPack."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


def lists(A: list[Tensor], B: tuple[Tensor, ...], scale: Tensor) -> None:
    assert_type(gg_runtime.group_gemm(A, B), list[Tensor])
    assert_type(gg_runtime.group_gemm_fn(A, B), list[Tensor])
    assert_type(gg_runtime.group_gemm(A, B, out=A, out_dtype="bfloat16", scale_a=scale), list[Tensor])
    assert_type(Plan(A, B), Plan[list[Tensor]])
    assert_type(Plan(A, B, out=A).run(), list[Tensor])
    assert_type(Plan(A, B).out, list[Tensor])
    gg_runtime.group_gemm(scale, scale)  # pyright: ignore[reportArgumentType] a matrix is no list
    gg_runtime.group_gemm([[1.0]], [[1.0]])  # pyright: ignore[reportArgumentType] a list is no array
    gg_runtime.group_gemm(A, B, alpha=2)  # pyright: ignore[reportCallIssue]


def rows(a: Tensor, b: Tensor, offs: DeviceArray) -> None:
    assert_type(gg_runtime.grouped_mm(a, b, offs=offs), Tensor)
    assert_type(gg_runtime.grouped_mm(a, b, offs=offs, bias=b, out=a, batch_invariant=True), Tensor)
    assert_type(Plan(a, b, offs=offs, bias=b), Plan[Tensor])
    assert_type(Plan(a, b, offs=offs).run().shape, tuple[int, ...])
    assert_type(gg_runtime.grouped_mm(a, b, offs=offs, a_index=offs, activation="swiglu", preactivation=a), Tensor)
    assert_type(Plan(a, b, offs=offs, a_index=offs, activation="relu", gate_up="up_first"), Plan[Tensor])
    assert_type(gg_runtime.scaled_grouped_mm(a, b, a, "RowWise", b, "RowWise", offs=offs), Tensor)
    assert_type(gg_runtime.scaled_grouped_mm(a, b, [a], ["RowWise"], [b], ["RowWise"], None, None, b), Tensor)
    Plan([a], [b], bias=b)  # pyright: ignore[reportArgumentType] a list has no bias
    gg_runtime.grouped_mm([a], [b], offs=offs)  # pyright: ignore[reportArgumentType]


def tokens(x: Tensor, ids: Tensor) -> None:
    routing = gg_runtime.route(ids, 8, expert_map=ids)
    assert_type(gg_runtime.combine(x, routing.inverse, ids, add=x, scale=0.5), Tensor)
    gg_runtime.combine([x], ids)  # pyright: ignore[reportArgumentType]


def layers(x: Tensor, w: Tensor, ids: DeviceArray) -> None:
    assert_type(gg_runtime.fused_experts(x, w, w, ids, ids), Tensor)
    needed = gg_runtime.fused_experts_workspace(8, 2, 4, 64, 32, activation="relu2", max_rows=8)
    assert_type(needed, int)
    gg_runtime.fused_experts(x, w, w, ids, ids, b1=w, b2=w, add=x, out=x, workspace=ids, max_rows=8, activation=None)
    gg_runtime.fused_experts(x, w, w, ids)  # pyright: ignore[reportCallIssue]


def questions(A: list[Tensor], offs: Tensor) -> None:
    gpu = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}
    choice = gg_runtime.explain(A, A, device=gpu)
    assert_type(choice.variant, str | None)
    assert_type(choice.parts[0]["launches"], int)
    assert_type(choice.candidates[0]["predicted_us"], float | None)
    gg_runtime.explain(A[0], A[0], offs=offs, device=gpu, batch_invariant=True)
    gg_runtime.explain(A[0], A[0], counts=offs)
    assert_type(gg_runtime.kernels()[0]["ptx_sha256"], str | None)
    assert_type(gg_runtime.manifest()["artifacts"]["a"]["launch"]["threads"], int)
    gg_runtime.kernels()[0]["tile"]  # pyright: ignore[reportGeneralTypeIssues]
