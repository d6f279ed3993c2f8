"""Layers of experts that are made ready once, and then launched again and again."""

from collections.abc import Callable
from typing import Any, Generic

from . import _C, reference
from .arrays import Array, ArrayT


class ExpertsPlan(Generic[ArrayT]):
    """A call of `fused_experts` that is checked, selected and written once.

    Takes the arguments of that function, though no JAX arrays, and raises what it raises. `run` computes with what the
    same memory holds by then: x, weights, ids and the rest. The kernels are chosen when the plan is made.

    `run` may be called on any stream, and in any capture. Its workspace is one memory, the plan's own where none was
    given: runs that may overlap, on two streams or in two graphs, need two plans. A plan that goes away while its
    launches run, or is part of a CUDA graph, leaves its workspace to them; the arrays are the caller's to keep.

    Attributes:
        out: the output.
        variants: the names of the kernels that `run` launches, in order; [] on the CPU or when the output has no
            elements.
        launches: how many these are.
    """

    def __init__(
        self,
        x: ArrayT,
        w1: Array,
        w2: Array,
        topk_weights: Array,
        topk_ids: Array,
        *,
        activation: str | None = "swiglu",
        gate_up: str = "gate_first",
        swiglu_limit: float | None = None,
        b1: Array | None = None,
        b2: Array | None = None,
        w1_scale: Array | None = None,
        w2_scale: Array | None = None,
        expert_map: Array | None = None,
        apply_router_weight_on_input: bool = False,
        add: ArrayT | None = None,
        scale: float = 1.0,
        out: ArrayT | None = None,
        workspace: Array | None = None,
        max_rows: int | None = None,
        batch_invariant: bool = False,
    ) -> None:
        arguments = (
            x, w1, w2, topk_weights, topk_ids, activation, gate_up, swiglu_limit, b1, b2, expert_map,
            apply_router_weight_on_input, add, scale,
        )  # fmt: skip
        self._plan = _C.ExpertsPlan(*arguments, out, workspace, max_rows, batch_invariant, w1_scale, w2_scale)
        self.variants, self.launches = self._plan.variants, self._plan.launches
        self._run: Callable[[], Any] = self._plan.run
        self.out: ArrayT = self._plan.out
        if self._plan.on_cpu:
            dtype = self._plan.out_dtype
            scales = w1_scale, w2_scale
            made = reference.fused_experts(*arguments, None, dtype, *scales) if out is None else out
            self._run = lambda: reference.fused_experts(*arguments, made, dtype, *scales)
            self.out = made

    def __repr__(self) -> str:
        return f"<gg_runtime.ExpertsPlan launches={self.launches} variants={self.variants}>"

    def run(self) -> ArrayT:
        """Launches on the current stream of the arrays' device and returns `out`; checks nothing."""
        self._run()
        return self.out
