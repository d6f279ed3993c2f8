"""What a layer of experts should give: every expert for every token, on the device, so that the host need not wait."""

import torch

from experts_oracle import activate, error_after, tiny
from fuzz import layouts


def prepare(problem) -> None:
    """Operands as fused_experts takes them. Ids and weights are filled with the data."""
    spec, device = problem.spec, problem.inputs.bytes.device
    slots = spec["rows"], spec["k"]
    problem.ids = torch.empty(slots, dtype=torch.int64, device=device)
    problem.weights = torch.empty(slots, device=device)
    problem.operands = problem.A[0][0], *problem.B, problem.weights, problem.ids
    problem.keywords = layouts.layer_keywords(spec)
    problem.b1 = problem.b2 = None
    if spec["bias"]:
        shapes = (spec["experts"], layouts.up_columns(spec)), (spec["experts"], spec["hidden"])
        problem.b1, problem.b2 = (torch.ones(shape, dtype=problem.dtype, device=device) for shape in shapes)
        problem.keywords |= {"b1": problem.b1, "b2": problem.b2}
    problem.asked, problem.out = {}, [problem.outputs.stacks[0][0]]
    problem.mains, problem.mains_before = (
        [torch.zeros(weights.shape, device=device) for weights in problem.B if spec.get("main")] for _ in range(2)
    )


def fill(problem, data: dict) -> None:
    chosen = layouts.chosen_experts(problem.spec, data["seed"])
    problem.ids.copy_(torch.tensor(chosen, dtype=torch.int64), non_blocking=True)
    places = torch.arange(problem.weights.numel(), device=problem.weights.device).view_as(problem.weights)
    problem.weights.copy_(((places + data["seed"]) % 17) / 64)
    for main in problem.mains:
        main.zero_()


def refresh(problem) -> None:
    """Every expert takes all tokens, and each slot chooses among what they gave."""
    spec, unit = problem.spec, torch.finfo(problem.dtype).eps / 2
    x, *_, weights, ids = problem.operands
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    bound = torch.zeros_like(out)
    for slot in range(spec["k"]):
        rows, factor = x, weights[:, slot, None].double()
        if spec["on_input"]:
            rows, factor = (x.float() * weights[:, slot, None]).to(x.dtype), torch.ones_like(factor)
        for expert in range(spec["experts"]):
            y, error = of_expert(problem, rows.double(), expert, unit)
            chosen = (ids[:, slot] == expert)[:, None]
            out += torch.where(chosen, y * factor, 0.0)
            bound += torch.where(chosen, (error + y.abs() * 2.0**-21) * factor.abs(), 0.0)
    bound = bound + (out.abs() + bound) * unit * 1.01 + tiny(x.dtype)
    problem.reference[0].copy_(out)
    problem.allowed[0].copy_(bound.amax(1) + out.abs().amax(1) * 2.0**-23)  # references are kept in float32


def of_expert(problem, row, expert: int, unit: float):
    """Its outputs, and how far roundings between the steps may lead: see experts_oracle.layer."""
    spec = problem.spec
    up, down = (w[expert].double() for w in problem.B)
    z = row @ up + (0 if problem.b1 is None else problem.b1[expert].double())
    inner = activate(z, spec["activation"], spec["gate_up"], spec.get("limit"))
    y = inner @ down + (0 if problem.b2 is None else problem.b2[expert].double())
    sums_error = (row.abs() @ up.abs() + z.abs()) * 2.0**-21 + z.abs() * unit
    inner_error = error_after(z.abs(), sums_error, spec["activation"], spec["gate_up"], spec.get("limit"))
    inner_error = inner_error + inner.abs() * unit + tiny(problem.dtype)
    error = inner_error @ down.abs() + (inner.abs() @ down.abs() + y.abs()) * 2.0**-21
    return y, error + (y.abs() + error) * unit + tiny(problem.dtype)
