"""Other forms of grouped_mm: weight gradients, stacks, masked stacks; and what a gradient costs the host."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from .layer_shapes import LAYERS
from .measured import Outputs, checked, kept, measured
from .shapes import MOE, split
from .timing import Call, Graph, interleaved_host_us

OURS, TORCH, LIST, LOOP, RAGGED = "ours", "torch", "list Plan, sizes on the host", "cuBLAS loop", "ragged rows"
OWN = {OURS, LIST, RAGGED}  # of gg_runtime
TOLERANCE = 4e-3  # of a matrix's norm; rounding to bfloat16 alone makes 1.7e-3

# The weight gradients that have a bar, [M, rows] @ [rows, N] for each of the groups; then those of whole layers.
GRADIENTS = ("DeepSeek-V3 gate-up", "Qwen3-30B gate-up", "DeepSeek-V2-Lite gate-up")
LAYER_GRADIENTS = ("Qwen3-30B", "7B", "30B", "120B", "DeepSeek-V3")

# Stacks: matrices, M, N, K.
STACKS = {
    "8 x 4096^3": (8, 4096, 4096, 4096),
    "16 x 2048^3": (16, 2048, 2048, 2048),
    "64 x 1024^3": (64, 1024, 1024, 1024),
    "128 x 512^3": (128, 512, 512, 512),
    "32 x (256, 4096, 2048)": (32, 256, 4096, 2048),
    "128 x (1024, 128, 1024)": (128, 1024, 128, 1024),
}

# Masked stacks in decoding: rows of each matrix, of which a stack has `room`; N and K.
MASKED = {
    "Qwen3-30B decode": (split("multinomial", 128, 512), 64, 1536, 2048),
    "DeepSeek-V3 decode": ((20,) * 32, 128, 4096, 7168),
    "8 experts, 1 to 8 rows": (split("within 30 %", 8, 36), 64, 4096, 7168),
}


def normal(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)


def wrong(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest relative error of a matrix; ArithmeticError above the tolerance or where nothing was written."""
    difference = torch.linalg.vector_norm(got.float() - want, dim=(-2, -1))
    error = float((difference / torch.linalg.vector_norm(want, dim=(-2, -1)).clamp_min(1e-6)).max())
    if not error <= TOLERANCE:
        raise ArithmeticError(f"relative error {error:.1e} of a matrix, at most {TOLERANCE:.0e} is right")
    return error


def timed(peers: Mapping[str, tuple[Call, Outputs]], check: Callable[[torch.Tensor], float]) -> dict[str, Any]:
    """Each peer has one output."""

    def maker(call: Call, outputs: Outputs) -> Callable[[], tuple[Graph, float]]:
        return lambda: checked([call], outputs, lambda: max(map(check, outputs())))

    return measured({name: maker(*peer) for name, peer in peers.items()})


def gradient_peers(x: torch.Tensor, dy: torch.Tensor, rows: tuple[int, ...]) -> dict:
    """x [total, M], dy [total, N]: x_g^T @ dy_g of each group g."""
    offs = torch.tensor(list(accumulate(rows)), device="cuda", dtype=torch.int32)
    out = torch.empty(len(rows), x.shape[1], dy.shape[1], device="cuda", dtype=x.dtype)
    theirs, ours, listed, looped = x.t(), out.clone(), out.clone(), out.clone()
    pairs = [(a.t(), b) for a, b in zip(x.split(rows), dy.split(rows))]
    plan = gg_runtime.Plan([a for a, _ in pairs], [b for _, b in pairs], out=list(listed))

    def loop() -> None:
        for (a, b), c in zip(pairs, looped):
            torch.mm(a, b, out=c)

    return {
        OURS: (lambda: gg_runtime.grouped_mm(theirs, dy, offs=offs, out=ours), lambda: [ours]),
        LIST: (plan.run, lambda: [listed]),
        TORCH: kept(lambda: torch.nn.functional.grouped_mm(theirs, dy, offs=offs)),
        LOOP: (loop, lambda: [looped]),
    }


def gradient(rows: tuple[int, ...], m: int, n: int) -> dict:
    x, dy = normal(sum(rows), m), normal(sum(rows), n)
    want = torch.stack([a.float().t() @ b.float() for a, b in zip(x.split(rows), dy.split(rows))])
    return timed(gradient_peers(x, dy, rows), lambda got: wrong(got, want)) | {"flop": 2 * sum(rows) * m * n}


def gradients() -> list[dict]:
    shapes = {name: (MOE[name].group_rows, MOE[name].depth, MOE[name].columns) for name in GRADIENTS}
    for name in LAYER_GRADIENTS:
        layer = LAYERS[name]
        rows = split("multinomial", layer.experts, layer.tokens * layer.top_k)
        shapes[f"layer {name}, dW1"] = rows, layer.hidden, 2 * layer.intermediate
    return [{"row": name, "kind": "gradient"} | gradient(*shape) for name, shape in shapes.items()]


def stack(matrices: int, m: int, n: int, k: int) -> dict:
    a, w = normal(matrices, m, k), normal(matrices, n, k)
    want = torch.bmm(a.float(), w.mT.float())
    ours, theirs = (torch.empty(matrices, m, n, device="cuda", dtype=a.dtype) for _ in range(2))
    peers = {
        OURS: (lambda: gg_runtime.grouped_mm(a, w.mT, out=ours), lambda: [ours]),
        TORCH: (lambda: torch.bmm(a, w.mT, out=theirs), lambda: [theirs]),
    }
    return timed(peers, lambda got: wrong(got, want)) | {"flop": 2 * matrices * m * n * k}


def masked(rows: tuple[int, ...], room: int, n: int, k: int) -> dict:
    """The same rows as a masked stack and one behind the other."""
    w = normal(len(rows), n, k)
    packed = normal(sum(rows), k)
    offs = torch.tensor(list(accumulate(rows)), device="cuda", dtype=torch.int32)
    counts = torch.tensor(rows, device="cuda", dtype=torch.int32)
    a = normal(len(rows), room, k)
    for group, part in enumerate(packed.split(rows)):
        a[group, : len(part)] = part
    used = (torch.arange(room, device="cuda") < counts[:, None]).flatten()
    out, ragged = torch.empty(len(rows), room, n, device="cuda", dtype=a.dtype), torch.empty_like(packed @ w[0].t())
    want = torch.cat([part.float() @ b.float().t() for part, b in zip(packed.split(rows), w)])
    peers = {
        OURS: (lambda: gg_runtime.grouped_mm(a, w.mT, counts=counts, out=out), lambda: [out]),
        RAGGED: (lambda: gg_runtime.grouped_mm(packed, w.mT, offs=offs, out=ragged), lambda: [ragged]),
    }

    def check(got: torch.Tensor) -> float:
        return wrong(got.flatten(0, 1)[used] if got.dim() == 3 else got, want)

    return timed(peers, check) | {"flop": 2 * sum(rows) * n * k}


def training_host_us() -> dict:
    """Of a call without `out`, with an input that requires grad and without one."""
    rows = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(4, 256, 256, device="cuda", dtype=torch.bfloat16)
    offs = torch.arange(1, 5, device="cuda", dtype=torch.int32) * 256
    learned = weights.clone().requires_grad_()
    calls: dict[str, Call] = {
        "inference_us": lambda: gg_runtime.grouped_mm(rows, weights, offs=offs),
        "training_us": lambda: gg_runtime.grouped_mm(rows, learned, offs=offs),
        "torch_training_us": lambda: torch.nn.functional.grouped_mm(rows, learned, offs=offs),
    }
    return dict(zip(calls, interleaved_host_us(list(calls.values()), repeats=25)))


def run() -> list[dict]:
    rows = gradients()
    torch.cuda.empty_cache()
    rows += [{"row": name, "kind": "stack"} | stack(*sizes) for name, sizes in STACKS.items()]
    torch.cuda.empty_cache()
    rows += [{"row": name, "kind": "masked"} | masked(*sizes) for name, sizes in MASKED.items()]
    return [*rows, {"row": "host", "kind": "host"} | training_host_us()]


PEERS = {"gradient": (TORCH, LIST, LOOP), "stack": (TORCH,), "masked": (RAGGED,)}


def table(rows: list[dict]) -> str:
    """Our microseconds and TFLOP/s, and how many times as long the peers take: rested | hot."""
    lines = [f"{'form':34} {'us':>9} {'TFLOP/s':>8}  times as long, rested | hot"]
    for row in rows:
        if row["kind"] == "host":
            lines.append(", ".join(f"{key} {value:.1f}" for key, value in row.items() if key.endswith("_us")))
            continue
        us, hot = row["us"], row["hot_us"]
        if OURS not in us:
            lines.append(f"{row['row']:34} {row['failed'].get(OURS)}")
            continue
        beside = "; ".join(
            f"{peer} {us[peer] / us[OURS]:.3f} | {hot[peer] / hot[OURS]:.3f}" if peer in us else f"{peer} failed"
            for peer in PEERS[row["kind"]]
        )
        lines.append(f"{row['row']:34} {us[OURS]:9.1f} {row['flop'] / us[OURS] / 1e6:8.1f}  {beside}")
    return "\n".join(lines)
