"""docs/expert_parallel.py in the processes that torchrun started: `expert_parallel_cases.py [case ...]`.

All of CASES by default. Each is run by all processes. A process that fails ends, and torchrun ends the others.
"""

import contextlib
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]
sys.path.append(str(ROOT))  # `benchmarks`; behind the installed package

import expert_parallel  # noqa: E402

from train_oracle import assert_near, make  # noqa: E402


class World:
    """The processes, and the sizes of what they compute: tokens of each, k, experts, hidden, inner."""

    def __init__(self):
        self.mesh, self.device = expert_parallel.start()
        self.size, self.rank = self.mesh.size(), self.mesh.get_local_rank()
        self.on_gpu = self.device.type == "cuda"
        self.sizes = (300, 4, 16, 256, 128) if self.on_gpu else (29, 3, 8, 24, 16)

    def collected(self, tensor, mesh=None):
        """Those of all processes, on the CPU."""
        mesh = mesh or self.mesh
        parts = [None] * mesh.size()
        dist.all_gather_object(parts, tensor.detach().cpu(), group=mesh.get_group())
        return torch.cat(parts)


def own_part(whole, rank, parts):
    return whole.tensor_split(parts)[rank]


def layer_of(world, given, mesh=None, **options):
    mesh = mesh or world.mesh
    up, down = (
        own_part(given[name].mT, mesh.get_local_rank(), mesh.size()).clone().to(world.device) for name in ("w1", "w2")
    )
    return expert_parallel.ExpertParallel(up, down, mesh, **options)


def gradients(world, layer, given, gradient, tokens, mesh=None):
    """Of the whole layer, put together from those of each process, of which each has a slice of the tokens."""
    own = {name: given[name][tokens].clone().to(world.device) for name in ("x", "topk_weights", "topk_ids")}
    leaves = [own[name].requires_grad_() for name in ("x", "topk_weights")]
    out = layer(own["x"], own["topk_weights"], own["topk_ids"])
    out.backward(gradient[tokens].to(world.device))
    found = dict(zip(("x", "topk_weights"), (leaf.grad for leaf in leaves)))
    found |= {"out": out, "w1": layer.up.grad, "w2": layer.down.grad}
    found = {name: world.collected(tensor, mesh) for name, tensor in found.items()}
    return found | {"w1": found["w1"].mT, "w2": found["w2"].mT}


def compared(world, given, tokens=None, mesh=None, capacity=None, seen=None, seed=1, **options):
    """The layer's outputs and gradients against those of torch's layer in one process. `seen`: the ids that count."""
    mesh = mesh or world.mesh
    count = len(given["x"])
    if tokens is None:
        each = count // mesh.size()
        tokens = slice(mesh.get_local_rank() * each, (mesh.get_local_rank() + 1) * each)
    gradient = torch.randn(given["x"].shape, generator=torch.Generator().manual_seed(seed)).to(given["x"].dtype)
    layer = layer_of(world, given, mesh, capacity=capacity, **options)
    found = gradients(world, layer, given, gradient, tokens, mesh)
    options.pop("experts", None)
    if mesh.get_local_rank() == 0:
        expected = given | ({} if seen is None else {"topk_ids": seen})
        assert_near(found, expected | options, gradient)
    return layer, found


def whole(world, processes=None, **options):
    """The arguments of the layer in one process, alike in all of them."""
    tokens, *sizes = world.sizes
    return make((processes or world.size) * tokens, *sizes, **options)


def the_layer_of_one_process(world):
    compared(world, whole(world))


def the_layer_of_one_process_by_capacity(world):
    layer, _ = compared(world, whole(world), capacity=world.sizes[0])
    assert layer.dropped == 0
    compared(world, whole(world), capacity=world.sizes[0] + 13)


def activations_orders_and_factors(world):
    given = whole(world, activation="geglu_tanh")
    del given["activation"]
    compared(world, given, activation="geglu_tanh", gate_up="interleaved", scale=2.5)
    given = whole(world, activation="relu2")
    del given["activation"]
    compared(world, given, activation="relu2", capacity=world.sizes[0], apply_router_weight_on_input=True)


def float16_with_weights_of_16_bits(world):
    given = whole(world, dtype=torch.float16)
    _, found = compared(world, given)
    assert found["w1"].dtype == found["out"].dtype == torch.float16


def the_same_bits_again(world):
    given = whole(world)
    first, second = (compared(world, given)[1] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def processes_without_tokens_or_rows(world):
    """All tokens choose experts of the first process, then the last process has no token of its own."""
    given = whole(world)
    local = world.sizes[2] // world.size
    of_first = given | {"topk_ids": given["topk_ids"].clamp(0, local - 1)}
    tokens, last = world.sizes[0], world.size - 1
    start = world.rank * tokens
    own = slice(start, start + tokens) if world.rank < last else slice(last * tokens, last * tokens)
    some = {name: given[name][: last * tokens] for name in ("x", "topk_weights", "topk_ids")}
    for capacity in (None, tokens):
        layer, _ = compared(world, of_first, capacity=capacity)
        assert world.rank == 0 or not layer.up.grad.any()
        compared(world, given | some, tokens=own, capacity=capacity)
        compared(world, given | {"topk_ids": torch.full_like(given["topk_ids"], -1)}, capacity=capacity)


def tokens_beyond_the_capacity(world):
    """They lose the experts of one process, are counted, and the others are as they were."""
    given, capacity = whole(world), world.sizes[0] // 3
    local, seen, lost = world.sizes[2] // world.size, given["topk_ids"].clone(), []
    for rank in range(world.size):
        ids = seen[rank * world.sizes[0] : (rank + 1) * world.sizes[0]]  # a view
        lost.append(0)
        for process in range(world.size):
            to_it = (ids >= process * local) & (ids < (process + 1) * local)
            late = to_it.any(1) & (to_it.any(1).cumsum(0) > capacity)
            lost[-1] += int(late.sum())
            ids[to_it & late[:, None]] = -1
    layer, _ = compared(world, given, capacity=capacity, seen=seen)
    assert layer.dropped == lost[world.rank] > 0


def a_dimension_of_a_larger_mesh(world):
    """Two layers side by side: each pair of processes has tokens of its own."""
    if world.size < 4:
        return
    mesh = init_device_mesh(world.device.type, (world.size // 2, 2), mesh_dim_names=("dp", "ep"))
    given = whole(world, 2, seed=mesh.get_local_rank("dp"))
    compared(world, given, mesh=mesh["ep"])
    compared(world, given, mesh=mesh["ep"], capacity=world.sizes[0])


def torchs_own_experts(world):
    """What benchmarks/expert_parallel.py compares with, behind the same exchange."""
    from benchmarks.expert_parallel import torch_masked, torch_trimmed

    given = whole(world)
    compared(world, given, experts=torch_masked)
    compared(world, given, experts=torch_trimmed)
    compared(world, given, experts=torch_masked, capacity=world.sizes[0] + 3)


def the_benchmark_checks_what_it_times(world):
    from benchmarks.expert_parallel import Workload, torch_masked, torch_trimmed
    from benchmarks.layer_shapes import LayerShape

    tokens, top_k, experts, hidden, inner = world.sizes
    work = Workload(LayerShape(experts, tokens, top_k, hidden, inner, asked=1.0), world.mesh, world.device)
    for capacity in (None, tokens):
        for of_experts in ({}, {"experts": torch_masked}, {"experts": torch_trimmed}):
            found = work.step(capacity, of_experts)()
            assert 0 < work.check(found) < 0.02
            for place in range(5):
                wrong = [one.clone() for one in found]
                wrong[place][-1] += wrong[place].abs().max()
                try:
                    work.check(tuple(wrong))
                except ArithmeticError:
                    continue
                raise AssertionError(f"a wrong gradient at {place} was not seen")


def under_checkpointing(world):
    """The backward runs the exchanges of the forward anew, in the same order everywhere."""
    given = whole(world)
    layer = layer_of(world, given)
    tokens = slice(world.rank * world.sizes[0], (world.rank + 1) * world.sizes[0])
    x, weights, ids = (given[name][tokens].to(world.device) for name in ("x", "topk_weights", "topk_ids"))
    found = []
    for checkpointed in (False, True):
        layer.zero_grad()
        leaf = x.clone().requires_grad_()
        if checkpointed:
            out = checkpoint(layer, leaf, weights, ids, use_reentrant=False)
        else:
            out = layer(leaf, weights, ids)
        out.float().square().sum().backward()
        found.append([out.detach(), leaf.grad, layer.up.grad.clone(), layer.down.grad.clone()])
    assert all(torch.equal(one, other) for one, other in zip(*found))


def step_of(world, capacity):
    """(forward and backward of a layer, the leaf, the layer), with all that is made at first use made."""
    given = whole(world)
    layer = layer_of(world, given, capacity=capacity)
    tokens = slice(world.rank * world.sizes[0], (world.rank + 1) * world.sizes[0])
    x, weights, ids = (given[name][tokens].to(world.device) for name in ("x", "topk_weights", "topk_ids"))
    x.requires_grad_()

    def step():
        x.grad = layer.up.grad = layer.down.grad = None
        out = layer(x, weights, ids)
        out.float().square().sum().backward()
        return out.detach()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return step, x, ids, layer


def the_host_waits_once_or_never(world):
    for capacity, waits in ((None, 1), (world.sizes[0], 0)):
        step, *_ = step_of(world, capacity)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found = [str(one.message) for one in seen if "synchronizing" in str(one.message)]
        assert len(found) == waits, found


def a_graph_takes_the_routing_of_the_moment(world):
    """Forward and backward by capacity, captured once, replayed with other ids."""
    step, x, ids, layer = step_of(world, world.sizes[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's own thread asks for events meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        out = step()
    made = [out, x.grad, layer.up.grad, layer.down.grad]
    for seed in range(3):
        drawn = torch.Generator().manual_seed(10 * seed + world.rank)
        ids.copy_(torch.randint(-1, world.sizes[2] + 1, ids.shape, generator=drawn))
        for tensor in made:
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        found = [tensor.clone() for tensor in made]
        expected = [step(), x.grad, layer.up.grad, layer.down.grad]
        assert all(torch.equal(one, other) for one, other in zip(found, expected))


CASES = (  # of both, by gloo and by NCCL
    the_layer_of_one_process,
    the_layer_of_one_process_by_capacity,
    activations_orders_and_factors,
    float16_with_weights_of_16_bits,
    the_same_bits_again,
    processes_without_tokens_or_rows,
    tokens_beyond_the_capacity,
    a_dimension_of_a_larger_mesh,
    torchs_own_experts,
    the_benchmark_checks_what_it_times,
    under_checkpointing,
)
ON_GPUS = (the_host_waits_once_or_never, a_graph_takes_the_routing_of_the_moment)


def main(names):
    world = World()
    known = {case.__name__: case for case in (*CASES, *ON_GPUS)}
    for name in names or [case.__name__ for case in CASES]:
        known[name](world)
        dist.barrier()
        if world.rank == 0:
            print(f"passed: {name}", flush=True)
    dist.destroy_process_group()


def gloo_threads() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            names.append(path.read_text().strip())
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    main(sys.argv[1:])
    # One that frees a tensor while Python ends aborts the process. A thread that was joined is listed until the kernel
    # is done with it; one that a group keeps stays.
    deadline = time.monotonic() + 10
    while gloo_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not gloo_threads(), gloo_threads()
