"""An expert-parallel layer on torch.distributed: each process has its own tokens and its own part of the experts.

    torchrun --nproc-per-node 2 docs/expert_parallel.py             # NCCL where there are GPUs, else gloo
    torchrun --nproc-per-node 2 docs/expert_parallel.py --capacity  # no host synchronization

A token goes to each process that has experts of its choice, once, however many of them it has there. With it go its
weights and its ids. `fused_experts` with `expert_map` drops the slots of other processes, and sums those that are here.
The sums come back, and the token's process adds them. Backward takes the same way in the other direction.
"""

import argparse
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch.optim imports it; see start()
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import gg_runtime


class Places(NamedTuple):
    """Where rows lie that are sent, sorted by process, and how many go to and come from each."""

    token: torch.Tensor  # [rows], the token of each place; -1 for a place of no token
    inverse: torch.Tensor  # [tokens, processes], the place of each token; -1 where it does not go
    sent: list[int] | None  # rows to each process; None where all are alike
    received: list[int] | None


class AllToAll(torch.autograd.Function):
    """Rows to their processes. The gradients come back by the exchange with the sizes swapped."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: Any, received: Any, group: Any) -> torch.Tensor:
        ctx.sizes = sent, received, group
        return exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,), (sent, received, group) = of_outputs, ctx.sizes
        return exchanged(gradient, received, sent, group), None, None, None


def exchanged(rows: torch.Tensor, sent: Any, received: Any, group: Any) -> torch.Tensor:
    shape = rows.shape if received is None else (sum(received), *rows.shape[1:])
    out = rows.new_empty(shape)
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
    return out


class RowsOfTokens(torch.autograd.Function):
    """x[token]. The gradient of a token is the sum over its places, in a fixed order and in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, token: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return picked(x, token)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,), (inverse,) = of_outputs, ctx.saved_tensors
        return summed(gradient.contiguous(), inverse), None, None


class SumsOfTokens(torch.autograd.Function):
    """The sum over the places of each token: RowsOfTokens the other way round."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, token: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(token)
        return summed(y, inverse)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,), (token,) = of_outputs, ctx.saved_tensors
        return picked(gradient, token), None, None


def picked(x: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Places of no token get any row: its slots are dropped, and nobody reads what becomes of it."""
    return x.index_select(0, token.clamp(min=0)) if len(x) else x.new_zeros(len(token), *x.shape[1:])


def summed(y: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    if y.dtype in (torch.float16, torch.bfloat16):
        return gg_runtime.combine(y, inverse)
    if not len(y):
        return y.new_zeros(len(inverse), *y.shape[1:])
    return torch.where(inverse[:, :, None] >= 0, y[inverse.clamp(min=0)], 0).sum(1)


class ExpertParallel(torch.nn.Module):
    """Experts spread over a mesh of one dimension, in blocks: process r has those from r * local on."""

    def __init__(
        self,
        up: torch.Tensor,
        down: torch.Tensor,
        mesh: DeviceMesh,
        *,
        capacity: int | None = None,
        experts: Callable[..., torch.Tensor] = gg_runtime.fused_experts,
        **options: Any,
    ):
        """
        Args:
            up: [local, 2 I, H], the weights of this process's experts; down: [local, H, I].
            mesh: of one dimension, as `init_device_mesh(...)` or `mesh["ep"]` give it.
            capacity: how many tokens a process sends to each process, the same number in all. The host then waits for
                nothing, and a forward or backward may be captured in a CUDA graph. Tokens beyond it lose the experts
                of that process: `dropped` counts them. As many as the process has tokens are always enough. None: as
                many as there are, of which the host has to know. It waits once for each forward.
            experts: what computes the experts here, with the arguments of `gg_runtime.fused_experts`.
            options: more of its arguments, as `activation` and `gate_up`.
        """
        super().__init__()
        self.up, self.down = torch.nn.Parameter(up), torch.nn.Parameter(down)
        self.group, self.processes = mesh.get_group(), mesh.size()
        self.capacity, self.compute, self.options = capacity, experts, options
        self.local = len(up)
        self.experts = self.local * self.processes
        own = torch.full((self.experts,), -1, dtype=torch.int32, device=up.device)
        first = mesh.get_local_rank() * self.local
        own[first : first + self.local] = torch.arange(self.local, dtype=torch.int32, device=up.device)
        self.register_buffer("expert_map", own, persistent=False)
        self.dropped = torch.zeros((), dtype=torch.int64, device=up.device)  # of the last forward

    def forward(self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
        """x [tokens, H], weights and ids [tokens, k], ids in [0, experts). All processes call it, in one order."""
        places = self.places(topk_ids)
        slots = topk_ids.shape[1]
        rows = self.send(RowsOfTokens.apply(x, places.token, places.inverse), places)
        weights = RowsOfTokens.apply(topk_weights.float(), places.token, places.inverse)
        ids = torch.where(places.token[:, None] >= 0, picked(topk_ids, places.token), -1)
        # One exchange for both: float32 holds ids below 2^24 exactly.
        both = self.send(torch.cat([weights, ids.float()], 1), places)
        sums = self.compute(
            rows, self.up.mT, self.down.mT, both[:, :slots].contiguous(), both[:, slots:].int().contiguous(),
            expert_map=self.expert_map, **self.options,
        )  # fmt: skip
        back = AllToAll.apply(sums, places.received, places.sent, self.group)
        return SumsOfTokens.apply(back, places.token, places.inverse)

    def send(self, rows: torch.Tensor, places: Places) -> torch.Tensor:
        return AllToAll.apply(rows, places.sent, places.received, self.group)

    @torch.no_grad()
    def places(self, topk_ids: torch.Tensor) -> Places:
        """Sorts tokens by process, stably. Ids of no expert go nowhere."""
        nowhere = self.processes
        here = (topk_ids >= 0) & (topk_ids < self.experts)
        process = torch.where(here, topk_ids // self.local, nowhere).long()
        goes = torch.zeros(len(topk_ids), nowhere + 1, dtype=torch.bool, device=topk_ids.device)
        goes = goes.scatter_(1, process, True)[:, :nowhere]
        each = torch.arange(self.processes, dtype=torch.int32, device=topk_ids.device)
        routing = gg_runtime.route(torch.where(goes, each, -1), self.processes)
        counts = routing.ends.diff(prepend=routing.ends.new_zeros(1))
        return self.places_of_any(routing, counts) if self.capacity is None else self.places_of_some(routing, counts)

    def places_of_any(self, routing: gg_runtime.Routing, counts: torch.Tensor) -> Places:
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts, group=self.group)
        sent, received = torch.stack([counts, others]).tolist()  # the host waits here
        return Places(routing.token[: sum(sent)], routing.inverse, sent, received)

    def places_of_some(self, routing: gg_runtime.Routing, counts: torch.Tensor) -> Places:
        """`capacity` places for each process, filled or not."""
        device, tokens = counts.device, len(routing.inverse)
        places = torch.arange(self.capacity, dtype=torch.int32, device=device)
        starts = routing.ends - counts
        token = torch.full((self.processes, self.capacity), -1, dtype=torch.int32, device=device)
        if tokens:
            found = routing.token[(starts[:, None] + places).clamp(max=len(routing.token) - 1)]
            token = torch.where(places < counts[:, None], found, token)
        behind = routing.inverse - starts  # how many tokens go to a process before this one
        goes, kept = routing.inverse >= 0, behind < self.capacity
        first = torch.arange(self.processes, dtype=torch.int32, device=device) * self.capacity
        self.dropped = (goes & ~kept).sum()
        return Places(token.flatten(), torch.where(goes & kept, first + behind, -1), None, None)


def joined(mesh: DeviceMesh, tensor: torch.Tensor) -> torch.Tensor:
    """Those of all processes, one behind the other."""
    parts = [torch.empty_like(tensor) for _ in range(mesh.size())]
    dist.all_gather(parts, tensor.contiguous(), group=mesh.get_group())
    return torch.cat(parts)


def train(mesh: DeviceMesh, device: torch.device, by_capacity: bool, steps: int = 20) -> None:
    """A small layer and its router learn; the first output is compared with that of the whole layer in one process."""
    tokens, experts, top_k, hidden, inner = 128, 8, 2, 64, 48
    local = experts // mesh.size()
    torch.manual_seed(0)  # the same router in all processes
    router = torch.nn.Parameter(torch.randn(hidden, experts, device=device) / 8)
    torch.manual_seed(1 + mesh.get_local_rank())  # other tokens and other experts in each
    x, target = (torch.randn(tokens, hidden, device=device).bfloat16() for _ in range(2))
    up = (torch.randn(local, 2 * inner, hidden, device=device) / 8).bfloat16()
    down = (torch.randn(local, hidden, inner, device=device) / 8).bfloat16()
    layer = ExpertParallel(up, down, mesh, capacity=tokens if by_capacity else None)
    optimizer = torch.optim.SGD([router, *layer.parameters()], lr=5.0)
    for step in range(steps):
        weights, ids = (x.float() @ router).softmax(-1).topk(top_k)
        out = layer(x, weights, ids)
        if step == 0:
            every = [joined(mesh, one.detach()) for one in (layer.up, layer.down, out, x, weights, ids)]
            up, down, found, *arguments = every
            whole = gg_runtime.fused_experts(arguments[0], up.mT, down.mT, *arguments[1:])
            torch.testing.assert_close(found, whole, rtol=0.02, atol=0.02)
        # Each process has a part of the tokens, and a mean over all of them is learned.
        loss = (out.float() - target.float()).square().mean() / mesh.size()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(router.grad, group=mesh.get_group())  # the experts' gradients are whole already
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=mesh.get_group())
        if mesh.get_local_rank() == 0 and (step + 1) % 5 == 0:
            print(f"step {step + 1}: loss {total.item():.4f}", flush=True)


def start(dimensions: dict[str, int] | None = None) -> tuple[DeviceMesh, torch.device]:
    """The mesh of all processes that torchrun started, one on each GPU, and this process's device.

    Defaults in torch.distributed.nn.functional keep the group that exists when it is first imported, and gloo's threads
    with it: destroy_process_group() would not end them, and one that frees a tensor while Python ends aborts. So it is
    imported before there is a group.
    """
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    # Without its device, NCCL's barrier() guesses one from the rank, and warns.
    of_gpu = {"device_id": device} if on_gpus else {}
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=timedelta(seconds=120), **of_gpu)
    sizes = dimensions or {"ep": dist.get_world_size()}
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)), device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", action="store_true", help="a fixed number of rows for each process")
    arguments = parser.parse_args()
    mesh, device = start()
    train(mesh, device, arguments.capacity)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
