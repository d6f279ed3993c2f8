"""What lies around a layer's products: tokens sorted by expert, and their rows summed; beside torch and a copy."""

import torch

import gg_runtime

from .ceilings import copy_us
from .timing import Graph, enough, host_us, interleaved_us

# model -> tokens, slots of a token, experts, hidden size
LAYERS = {
    "64 tokens": (64, 8, 128, 2048),
    "Qwen3-30B, 4096 tokens": (4096, 8, 128, 2048),
    "Qwen3-30B": (32768, 8, 128, 2048),
    "7B": (24576, 4, 64, 1536),
    "30B": (32768, 8, 128, 4096),
    "DeepSeek-V3": (4096, 8, 256, 7168),
    "Mixtral": (8192, 2, 8, 4096),
    "gpt-oss": (4096, 4, 128, 2880),
}


def torch_routing(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    """As models write it: a stable sort, its inverse, and a count of each expert."""
    groups = ids.flatten()
    order = torch.argsort(groups, stable=True)
    places = torch.arange(order.numel(), device="cuda", dtype=torch.int32)
    inverse = torch.empty_like(places)
    inverse[order] = places
    ends = torch.cumsum(torch.bincount(groups, minlength=experts), 0, dtype=torch.int32)
    return ends, (order // ids.shape[1]).int(), order.int(), inverse.view(ids.shape)


def torch_combine(y: torch.Tensor, inverse: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    rows = y[inverse.flatten().long()].view(*inverse.shape, y.shape[1])
    return (rows * weights[..., None]).sum(1).to(y.dtype)


def torch_combine_unrolled(y: torch.Tensor, inverse: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with a term for each slot, which the compiler makes no reduction of."""
    sums = y[inverse[:, 0].long()] * weights[:, :1]
    for slot in range(1, weights.shape[1]):
        sums = sums + y[inverse[:, slot].long()] * weights[:, slot : slot + 1]
    return sums.to(y.dtype)


def check(routing: gg_runtime.Routing, ids: torch.Tensor, experts: int) -> None:
    for name, got, want in zip(routing._fields, routing, torch_routing(ids, experts)):
        if not torch.equal(got, want):
            raise ArithmeticError(f"route: {name} is wrong")


def measure(tokens: int, slots: int, experts: int, hidden: int) -> dict:
    """Microseconds of a launch under a graph. Random experts, all unlike for a token."""
    ids = torch.topk(torch.rand(tokens, experts, device="cuda"), slots).indices.int()
    weights = torch.rand(tokens, slots, device="cuda")
    routing = gg_runtime.route(ids, experts)
    check(routing, ids, experts)
    y = torch.randn(tokens * slots, hidden, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    gg_runtime.combine(y, routing.inverse, weights, out=out)
    torch._dynamo.reset()  # or the sizes of the row before make the next one's shapes dynamic
    calls = [
        lambda: gg_runtime.route(ids, experts),
        lambda: gg_runtime.combine(y, routing.inverse, weights, out=out),
    ]
    for form in (torch_combine, torch_combine_unrolled):
        compiled = torch.compile(form, dynamic=False)
        torch.testing.assert_close(out, compiled(y, routing.inverse, weights), rtol=2e-2, atol=6e-2)
        calls.append(lambda compiled=compiled: compiled(y, routing.inverse, weights))
    route_us, combine_us, *compiled_us = interleaved_us([Graph([call], least=enough(call)) for call in calls])
    moved = 2 * hidden * tokens * (slots + 1)
    copied_us = copy_us(moved, 1)
    return {
        "route_us": route_us,
        "combine_us": combine_us,
        "copy_us": copied_us,
        "combine_over_copy": combine_us / copied_us,
        "torch_combine_us": min(compiled_us),
        "route_host_us": host_us(lambda: gg_runtime.route(ids, experts)),
        "combine_host_us": host_us(lambda: gg_runtime.combine(y, routing.inverse, weights, out=out)),
    }


def run() -> list[dict]:
    rows = []
    for name, sizes in LAYERS.items():
        rows.append({"layer": name} | dict(zip(("tokens", "slots", "experts", "hidden"), sizes)) | measure(*sizes))
        torch.cuda.empty_cache()
    return rows


def table(rows: list[dict]) -> str:
    """Microseconds under a graph; beside ours the faster of two sums that torch compiles for these sizes."""
    lines = [f"{'layer':24} {'route':>8} {'combine':>8} {'x copy':>8} {'torch':>8} {'route host':>10} {'combine':>8}"]
    for row in rows:
        lines.append(
            f"{row['layer']:24} {row['route_us']:8.2f} {row['combine_us']:8.2f} {row['combine_over_copy']:8.2f} "
            f"{row['torch_combine_us']:8.2f} {row['route_host_us']:10.2f} {row['combine_host_us']:8.2f}"
        )
    return "\n".join(lines)
