"""Products of each form with a gradient that comes in, and what they and their gradients are: a loop in float64."""

from typing import Any, NamedTuple

import torch

FORMS = ["ragged_m", "ragged_n", "ragged_k", "batched"]
E, K, N = 4, 24, 40
ENDS = [7, 7, 30, 41]  # of the dimension that falls into groups; the second group is empty
TOTAL = 45  # four are past the last end
NAN = float("nan")


class Case(NamedTuple):
    """Integers, so that every order of summation gives the same bits; NaN in whatever enters no sum."""

    mat_a: Any
    mat_b: Any
    offs: Any
    bias: Any
    gradient: Any  # of the output

    def multiply(self, multiply: Any) -> Any:
        given = {"offs": self.offs, "bias": self.bias}
        return multiply(self.mat_a, self.mat_b, **{name: value for name, value in given.items() if value is not None})

    def inputs(self) -> list[Any]:
        return [self.mat_a, self.mat_b] + ([] if self.bias is None else [self.bias])

    def requiring_grad(self) -> "Case":
        """The same values in leaves of a graph, which lie as these lie."""
        return self._replace(
            **{name: getattr(self, name).detach().requires_grad_() for name in ("mat_a", "mat_b")},
            bias=None if self.bias is None else self.bias.detach().requires_grad_(),
        )


def integers(generator: torch.Generator, *shape: int) -> Any:
    return torch.randint(-2, 3, shape, generator=generator).double()


def shapes(form: str, total: int = TOTAL, m: int = 16) -> tuple[list[int], list[int], list[int]]:
    """Of mat_a, mat_b and the output. A fifth row of 16 in `batched` does not count: all rows do."""
    return {
        "ragged_m": ([total, K], [E, K, N], [total, N]),
        "ragged_n": ([E, m, K], [K, total], [m, total]),
        "ragged_k": ([m, total], [total, N], [E, m, N]),
        "batched": ([E, m, K], [E, K, N], [E, m, N]),
    }[form]


def make(
    form: str, *, dtype: Any, device: str, layouts: str = "nn", bias: bool = False, ends: Any = ENDS, seed: int = 0
) -> Case:
    """`layouts` of mat_a and mat_b: "n" rows as they lie, "t" a view by .mT, "s" a strided slice."""
    generator = torch.Generator().manual_seed(seed)
    of_a, of_b, of_out = shapes(form)
    a, b, gradient = (integers(generator, *shape) for shape in (of_a, of_b, of_out))
    last = min(max(0, *ends), TOTAL)
    past = {"ragged_m": [(a, 0), (gradient, 0)], "ragged_n": [(b, 1), (gradient, 1)], "ragged_k": [(a, 1), (b, 0)]}
    for matrix, dimension in past.get(form, []):
        matrix.narrow(dimension, last, TOTAL - last).fill_(NAN)
    on = {"dtype": dtype, "device": device}
    return Case(
        laid_out(a.to(**on), layouts[0]),
        laid_out(b.to(**on), layouts[1]),
        None if form == "batched" else torch.tensor(ends, dtype=torch.int32, device=device),
        integers(generator, E, N).to(**on) if bias else None,
        gradient.to(**on),
    )


def laid_out(matrix: Any, layout: str) -> Any:
    if layout == "t":
        return matrix.mT.contiguous().mT
    if layout == "s":
        wide = matrix.new_full((*matrix.shape[:-1], 2 * matrix.shape[-1] + 3), NAN)
        wide[..., 1:-2:2] = matrix
        return wide[..., 1:-2:2]
    return matrix


def product(a: Any, b: Any, offs: Any, bias: Any) -> Any:
    """Any form, in the dtype of its operands, recorded by torch."""
    if offs is None:
        return a @ b if bias is None else a @ b + bias[:, None]
    ends, end = [], 0
    total = a.shape[0] if b.dim() == 3 else a.shape[1] if a.dim() == 2 else b.shape[1]
    for offset in offs.tolist():
        end = min(max(offset, end), total)
        ends.append(end)
    spans = [slice(start, end) for start, end in zip([0, *ends], ends)]
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if b.dim() == 2:
        parts = [a[group] @ b[:, span] for group, span in enumerate(spans)]
        return torch.cat([*parts, parts[0].new_zeros(a.shape[1], total - end)], dim=1)
    parts = [a[span] @ b[group] + (0 if bias is None else bias[group]) for group, span in enumerate(spans)]
    return torch.cat([*parts, parts[0].new_zeros(total - end, b.shape[2])])


def exact(case: Case) -> tuple[Any, list[Any]]:
    """The output and the gradients of the inputs, in float64. What no sum takes has the gradient zero."""
    wide = case._replace(
        mat_a=case.mat_a.double(), mat_b=case.mat_b.double(), bias=None if case.bias is None else case.bias.double()
    ).requiring_grad()
    output = product(wide.mat_a, wide.mat_b, wide.offs, wide.bias)
    output.backward(case.gradient.double())
    return output.detach(), [leaf.grad for leaf in wide.inputs()]


def assert_same(found: Any, expected: Any, what: str) -> None:
    assert found is not None, f"{what}: none"
    expected = expected.to(found.dtype)
    assert found.shape == expected.shape, f"{what}: {list(found.shape)} instead of {list(expected.shape)}"
    wrong = (found != expected).nonzero()
    assert len(wrong) == 0, (
        f"{what}: {len(wrong)} of {found.numel()} elements differ, first at {wrong[0].tolist()}: "
        f"{found[tuple(wrong[0])].item()} instead of {expected[tuple(wrong[0])].item()}"
    )


def assert_exact(case: Case, output: Any, gradients: list[Any]) -> None:
    expected, of_inputs = exact(case)
    assert_same(output, expected, "output")
    for name, found, gradient in zip(("mat_a", "mat_b", "bias"), gradients, of_inputs):
        assert_same(found, gradient, f"gradient of {name}")
