"""What `fused_experts` would launch, and why."""

from dataclasses import dataclass
from typing import Any

from . import _C
from .arrays import Array
from .facts import Step


@dataclass(frozen=True)
class ExpertsExplanation:
    """Which kernels a call of `fused_experts` would take.

    Attributes:
        device: the GPU's name.
        steps: dicts of name ("route", "up", "down", "combine", and of fp8 weights "quantize" and "activate" where they
            are launches of their own), variants (the kernels, in the order of their launches), predicted_us and reason:
            of the first chunk, which without `max_rows` is all. [] when there is nothing to compute. A product by parts
            has a kernel for each: gather, product, activate.
        chunks: how many chunks of tokens go one behind the other.
        launches, predicted_us: of all chunks. What multiplies nothing is predicted by its bytes at a copy's rate.
        workspace_bytes: what `workspace` needs, as `fused_experts_workspace` says.
        from_ptx: the driver compiles the kernels' PTX, because no cubin fits this GPU.
    """

    device: str
    steps: list[Step]
    chunks: int
    launches: int
    predicted_us: float
    workspace_bytes: int
    from_ptx: bool

    def __str__(self) -> str:
        origin = " (compiled by the driver from PTX: no cubin fits this GPU)" if self.from_ptx else ""
        lines = [
            f"{self.launches} launch(es) in {self.chunks} chunk(s) on {self.device}{origin}, "
            f"{self.predicted_us:.1f} us predicted, {self.workspace_bytes} bytes of workspace"
        ]
        for step in self.steps:
            lines.append(f"  {step['name']}: {', '.join(step['variants'])}")
            lines.append(f"    {step['reason']}; {step['predicted_us']:.1f} us predicted")
        return "\n".join(lines)


def explain_experts(
    x: Array,
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
    add: Array | None = None,
    scale: float = 1.0,
    out: Array | None = None,
    workspace: Array | None = None,
    max_rows: int | None = None,
    batch_invariant: bool = False,
    device: dict[str, Any] | None = None,
) -> ExpertsExplanation:
    """What `fused_experts` with these arguments would launch; launches nothing, allocates nothing.

    Args:
        device: a GPU to ask about instead of the arrays' own, as for `explain`; needed when they are on the CPU.
        All others: as for `fused_experts`. New outputs and workspaces are taken to be aligned.

    Raises:
        ValueError, TypeError, UnsupportedError: as the call would, and for a `device` that is no description of a GPU.
    """
    told = _C.explain_experts(
        x, w1, w2, topk_weights, topk_ids, activation, gate_up, swiglu_limit, b1, b2, expert_map,
        apply_router_weight_on_input, add, scale, out, workspace, max_rows, batch_invariant, w1_scale, w2_scale, device,
    )  # fmt: skip
    return ExpertsExplanation(**told)
