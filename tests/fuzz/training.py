"""Forward and backward passes as torch records them, and what their gradients should be."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

import gg_runtime
from experts_oracle import activate
from fuzz import forms, layouts
from fuzz.blocks import BITS
from gg_runtime.torch import experts


@dataclass
class Recorded:
    names: list[str]  # of the leaves
    leaves: list
    outputs: list  # tensors, or edges of the graph where the tensors were dropped
    outputs_made: list
    into_main: bool
    kept: list | None = None  # gradients of an earlier backward, in memory that no graph writes
    of: tuple | None = None  # what that one was of


def leaf(tensor, wanted: bool):
    return None if tensor is None else tensor.detach().requires_grad_(wanted)


def forward(problem, wants: str, into_main: bool) -> tuple[Recorded, list]:
    """What torch recorded, and the outputs. `wants`: which of a, b and c, the biases, have a gradient."""
    names, leaves, outputs = {"list": of_lists, "layer": of_layer}.get(problem.kind, of_products)(
        problem, wants, into_main
    )
    outputs_made = [output.detach() for output in outputs]
    return Recorded(names, leaves, outputs, outputs_made, into_main), outputs_made


def of_lists(problem, wants: str, into_main: bool):
    A, B = ([leaf(matrix, name in wants) for matrix in part] for name, part in zip("ab", problem.operands))
    return ["A"] * len(A) + ["B"] * len(B), A + B, gg_runtime.group_gemm(A, B)


def of_products(problem, wants: str, into_main: bool):
    a, b, c = (leaf(tensor, name in wants) for name, tensor in zip("abc", (*problem.operands, problem.bias)))
    made = gg_runtime.grouped_mm(a, b, offs=getattr(problem, "offs", None), bias=c)
    return ["mat_a", "mat_b", "bias"], [a, b, c], [made]


def of_layer(problem, wants: str, into_main: bool):
    x, w1, w2, weights, ids = problem.operands
    tensors = zip("abbccc", (x, w1, w2, weights, problem.b1, problem.b2))
    x, w1, w2, weights, b1, b2 = leaves = [leaf(tensor, name in wants) for name, tensor in tensors]
    given = {**problem.keywords, "b1": b1, "b2": b2}
    names = ["x", "w1", "w2", "topk_weights", "b1", "b2"]
    if not into_main:
        return names, leaves, [gg_runtime.fused_experts(x, w1, w2, weights, ids, **given)]
    w1.main_grad, w2.main_grad = problem.mains
    made = experts.fused_experts(x, w1, w2, weights, ids, **given, into_main_grad=True)
    return names, leaves, [made]


def drop_outputs(recorded: Recorded) -> None:
    """Their memory goes; what the backward needs stays."""
    recorded.outputs = [torch.autograd.graph.get_gradient_edge(output) for output in recorded.outputs]
    recorded.outputs_made = []


def make_room(recorded: Recorded) -> None:
    """For the gradients that are kept: memory of the current stream, which is not captured."""
    recorded.kept = [None if leaf is None else torch.empty_like(leaf) for leaf in recorded.leaves]


def comes_normal(seed: int) -> bool:
    """Whether gradients that come in are normal numbers: as the seed says, since a graph keeps those of its capture."""
    return seed % 8 == 0


def upstream(problem, seed: int) -> list:
    """Gradients of the outputs: never written, one behind the other, so most lie on no 16 bytes."""
    shapes = [tuple(output.shape) for output in problem.out]
    sizes = [shape.numel() for shape in map(torch.Size, shapes)]
    data = {"seed": seed, "normal": comes_normal(seed)}
    bits = problem.noise.slice(problem.spec["dtype"], data, sum(sizes))
    return [part.view(problem.dtype).view(shape) for part, shape in zip(bits.split(sizes), shapes)]


def backward(problem, recorded: Recorded, seed: int, again: bool) -> list:
    """Gradients of the leaves; None of those that want none or that were added to a main gradient."""
    wanted = [leaf for leaf in recorded.leaves if leaf is not None and leaf.requires_grad]
    gradients = upstream(problem, seed)
    made = iter(torch.autograd.grad(recorded.outputs, wanted, gradients, retain_graph=again, allow_unused=True))
    return [next(made) if leaf is not None and leaf.requires_grad else None for leaf in recorded.leaves]


def note_mains(problem) -> None:
    """What main gradients are before a backward adds to them."""
    for before, main in zip(problem.mains_before, problem.mains):
        before.copy_(main)


def spoil(problem, recorded: Recorded, gradients: list, what: str) -> None:
    if what == "main":
        problem.mains[-1][-1, -1, -1] += 1e6
        return
    last = [gradient for gradient in gradients if gradient is not None][-1]
    last[(-1,) * last.dim()] += 1e4


def other_bits(recorded: Recorded, gradients: list, of: tuple) -> Iterator[tuple]:
    """(name, whether the bits are others than those of the last backward of the same)."""
    is_again, recorded.of = recorded.of == of, of
    if recorded.kept is None:
        make_room(recorded)
    for name, kept, gradient in zip(recorded.names, recorded.kept, gradients):
        if gradient is None:
            continue
        if is_again:
            bits = BITS[gradient.element_size()]
            yield name, (kept.view(bits) != gradient.view(bits)).any()
        kept.copy_(gradient)


# What is right.


def wrong(problem, recorded: Recorded, found: list, seed: int) -> Iterator[tuple]:
    """(name, the gradients of that name, which elements are off, what they should be)."""
    gradients = upstream(problem, seed)
    if problem.kind == "layer":
        yield from wrong_of_layer(problem, recorded, found, gradients[0])
        return
    exact_of = exact_of_lists if problem.kind == "list" else exact_of_products
    for name, made, exact, magnitudes in exact_of(problem, found, gradients):
        expected = exact.to(made.dtype).float()
        if not (problem.data["normal"] or comes_normal(seed)):
            yield name, made, made.float() != expected, expected
            continue
        facts = torch.finfo(made.dtype)
        allowed = facts.eps / 2 * exact.abs().clamp(min=facts.tiny) + forms.SLACK[problem.dtype.itemsize] * magnitudes
        yield name, made, ~((made.double() - exact).abs() <= allowed), expected


def exact_of_lists(problem, found: list, gradients: list) -> Iterator[tuple]:
    """Those of matrices of one size as one array."""
    count = len(gradients)
    for number, (A, B) in enumerate(zip(problem.A, problem.B)):
        members = [i for i, place in enumerate(problem.places) if place[0] == number]
        members.sort(key=problem.places.__getitem__)
        G = torch.stack([gradients[i] for i in members]).double()
        for name, first, x, y in (("A", 0, G, B.double().mT), ("B", count, A.double().mT, G)):
            made = [found[first + i] for i in members]
            if made[0] is not None:
                yield f"{name}, size {number}", torch.stack(made), x @ y, x.abs() @ y.abs()


def exact_of_products(problem, found: list, gradients: list) -> Iterator[tuple]:
    inputs = [*problem.operands, problem.bias]
    made = [gradients_of(problem, [None if x is None else change(x.double()) for x in inputs], change(G.double()))
            for change in (lambda x: x, torch.abs) for (G,) in (gradients,)]  # fmt: skip
    for name, of_input, exact, magnitudes in zip(("mat_a", "mat_b", "bias"), found, *made):
        if of_input is not None:
            yield name, of_input, exact, magnitudes


def gradients_of(problem, inputs: list, gradient) -> list:
    """By torch, in float64."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    ends = layouts.clamped_ends(problem.ends, problem.spec["rows"]) if problem.kind != "stack" else None
    output = forms.product(problem.kind, *leaves[:2], ends, leaves[2])
    known = [leaf for leaf in leaves if leaf is not None]
    made = iter(torch.autograd.grad(output, known, gradient, allow_unused=True, materialize_grads=True))
    return [None if leaf is None else next(made) for leaf in leaves]


def wrong_of_layer(problem, recorded: Recorded, found: list, gradient) -> Iterator[tuple]:
    """As a whole, or at the worst place, much further from float64 than torch's own layer in the same dtype."""
    exact, usual = (layer_gradients(problem, gradient, dtype) for dtype in (torch.float64, problem.dtype))
    unit = torch.finfo(problem.dtype).eps
    for place, (name, made, right, theirs) in enumerate(zip(recorded.names, found, exact, usual)):
        off = 0.0
        if name in ("w1", "w2") and made is None and recorded.into_main:
            made = problem.mains[place - 1]
            right, off = right + problem.mains_before[place - 1], made.abs().max() * 2.0**-22
        if made is None:
            continue
        usual_error = (theirs.double() - exact[place]).abs()
        scale = exact[place].abs().max() * unit
        if name == "topk_weights":
            scale = scale + cancelled(problem, gradient) * unit
        error = (made.double() - right).abs()
        is_off = ~(error <= 8 * usual_error.max() + 2 * scale + off)
        as_a_whole = ~(norm(error) <= 4 * norm(usual_error) + scale + off)
        yield name, made, is_off | as_a_whole, right


def cancelled(problem, gradient):
    """How large the terms may be whose sums are the gradients of the weights of slots."""
    spec, (x, w1, w2, *_) = problem.spec, [operand.double() for operand in problem.operands]
    largest = torch.zeros((), device=x.device, dtype=x.dtype)
    for expert in range(spec["experts"]):
        z = x @ w1[expert] + (0 if problem.b1 is None else problem.b1[expert].double())
        h, dh = activate(z, spec["activation"], spec["gate_up"], spec.get("limit")), gradient.double() @ w2[expert].mT
        largest = torch.maximum(largest, (h.norm(dim=1) * dh.norm(dim=1)).max())
    return largest


def norm(values):
    return values.square().mean().sqrt()


def layer_gradients(problem, gradient, dtype) -> list:
    """Every expert takes all tokens, so that the host need not wait for what was chosen."""
    x, w1, w2, weights, ids = problem.operands
    tensors = x, w1, w2, None, problem.b1, problem.b2
    # Copies without gaps, as in products.own_product.
    copies = [None if tensor is None else tensor.detach().to(dtype).contiguous() for tensor in tensors]
    inputs = [None if tensor is None else tensor.requires_grad_() for tensor in copies]
    wide = torch.promote_types(dtype, torch.float32)
    inputs[3] = weights.detach().to(wide).requires_grad_()
    out = dense_layer(problem.spec, ids, *inputs).to(dtype)
    known = [leaf for leaf in inputs if leaf is not None]
    made = iter(torch.autograd.grad(out, known, gradient.to(dtype), allow_unused=True, materialize_grads=True))
    return [None if leaf is None else next(made) for leaf in inputs]


def dense_layer(spec: dict, ids, x, w1, w2, weights, b1, b2):
    wide = weights.dtype
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for expert in range(spec["experts"]):
        factors = torch.where(ids == expert, weights, 0)
        inputs = [(x, factors.sum(1, keepdim=True))]
        if spec["on_input"]:
            chosen = ids == expert
            inputs = [((x.to(wide) * factor[:, None]).to(x.dtype), here[:, None].to(wide))
                      for factor, here in zip(factors.unbind(1), chosen.unbind(1))]  # fmt: skip
        for rows, factor in inputs:
            z = rows @ w1[expert] + (0 if b1 is None else b1[expert])
            y = activate(z, spec["activation"], spec["gate_up"], spec.get("limit")) @ w2[expert] + (
                0 if b2 is None else b2[expert]
            )
            out = out + y.to(wide) * factor
    return out
