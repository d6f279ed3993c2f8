"""Scales of fp8 problems: powers of two, so that exact sums stay exact, and NaN where no result takes them."""

import torch

from fuzz import layouts

BLOCK = layouts.SCALE_BLOCK


def prepare(problem) -> None:
    """Arrays for the scales of a problem; none where it has none."""
    problem.scales = [
        torch.empty(shape, device=problem.inputs.bytes.device) for shape in layouts.scale_shapes(problem.spec)
    ]
    problem.keywords |= dict(zip(("scale_a", "scale_b"), problem.scales))


def prepare_list(problem, in_order) -> None:
    """Arrays for lists of scales: a stack for each class of the list."""
    device = problem.inputs.bytes.device
    counts = [entry[3] for entry in problem.spec["classes"]]
    problem.scale_stacks = [
        [torch.empty((count, *shape), device=device) for count, shape in zip(counts, shapes)]
        for shapes in layouts.list_scale_shapes(problem.spec)
    ]
    problem.scales = [stack for stacks in problem.scale_stacks for stack in stacks]
    problem.keywords |= dict(zip(("scale_a", "scale_b"), map(in_order, problem.scale_stacks)))


def fill(problem, seed: int) -> None:
    """New scales, of all rows."""
    for number, scale in enumerate(problem.scales):
        generator = torch.Generator().manual_seed(seed + number)
        scale.copy_(2.0 ** torch.randint(-2, 3, scale.shape, generator=generator), non_blocking=True)


def spoil_unused(problem, unused) -> None:
    """NaN in the scales of rows that `unused` marks."""
    if problem.scales and problem.spec["scales"] != "tensor":
        of_rows = problem.scales[0]
        of_rows.masked_fill_(unused.view(*unused.shape, *[1] * (of_rows.ndim - unused.ndim)), float("nan"))


def scaled(problem, a, b):
    """The operands with the scales in them: [rows, K] or [E, M, K], and [E, K, N]."""
    return times(problem.spec["scales"], a, b, *problem.scales) if problem.scales else (a, b)


def scaled_class(problem, number: int, a, b):
    """The same of a class of a list."""
    if not problem.scales:
        return a, b
    return times(problem.spec["scales"], a, b, *(stacks[number] for stacks in problem.scale_stacks))


def times(mode: str, a, b, of_a, of_b):
    k, n = b.shape[1:]
    if mode == "tensor":
        return a * of_a, b * of_b[:, None, None]
    if mode == "row":
        return a * of_a[..., None], b * of_b[:, None]
    of_b = of_b.repeat_interleave(BLOCK, 1)[:, :n].repeat_interleave(BLOCK, 2)[..., :k]
    return a * of_a.repeat_interleave(BLOCK, -1)[..., :k], b * of_b.mT
