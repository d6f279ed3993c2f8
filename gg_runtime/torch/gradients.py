# pyright: standard
"""The gradients of a product are products: of every form, by the forms of `grouped_mm` itself.

`product` is what multiplies: `gg_runtime.grouped_mm`, or its op where torch traces.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from . import refusals

Product = Callable[..., Any]


class Saved(NamedTuple):
    """What a call of `grouped_mm` keeps for its gradients."""

    mat_a: Any  # None where mat_b needs no gradient
    mat_b: Any  # None where mat_a needs none
    offs: Any
    transposed: bool  # how the matrices lie of which None is kept
    batch_invariant: bool


def is_transposed(matrices: Any) -> bool:
    """Whether they are a view by .mT of row-major ones."""
    return matrices.stride(-2) == 1 and matrices.stride(-1) != 1


def keep(mat_a: Any, mat_b: Any, needs_a: bool, needs_b: bool) -> tuple[Any, Any, bool]:
    """(mat_a, mat_b, transposed) of `Saved`: the gradient of one matrix needs the other, and how the one lies."""
    if needs_a and needs_b:
        return mat_a, mat_b, False
    if needs_b:
        return mat_a, None, is_transposed(mat_b)
    return (None, mat_b, is_transposed(mat_a)) if needs_a else (None, None, False)


def of_grouped_mm(product: Product, gradient: Any, saved: Saved, needs: tuple[bool, ...]) -> tuple[Any, Any, Any]:
    """(dA, dB, d bias) of those that `needs` asks for, None of the others.

    dA = dC @ B^T and dB = A^T @ dC, group by group: zeros past the last end, and for a group without rows.
    """
    mat_a, mat_b, offs, transposed, _ = saved
    of_a = of_b = of_bias = None
    if needs[0]:
        of_a = _multiplied(product, gradient, mat_b.mT, saved, is_transposed(mat_a) if needs[1] else transposed)
    if needs[1]:
        of_b = _multiplied(product, mat_a.mT, gradient, saved, is_transposed(mat_b) if needs[0] else transposed)
    if needs[2]:
        # [E, N]: the sums of each group's rows in float32, in a fixed order, rounded once.
        ones = gradient.new_ones(()).expand(*gradient.shape[:-2], 1, gradient.shape[-2])
        of_bias = product(ones, gradient, offs=offs).squeeze(1)
    return of_a, of_b, of_bias


def _multiplied(product: Product, x: Any, y: Any, saved: Saved, lies_transposed: bool) -> Any:
    """x @ y. Matrices of the groups lie as those lie whose gradient they are. A matrix that falls into groups comes by
    ragged rows either way: ragged columns are their transpose, which fewer kernels take.
    """
    if x.dim() == y.dim():
        return product(y.mT, x.mT, offs=saved.offs).mT if lies_transposed else product(x, y, offs=saved.offs)
    if x.dim() == 3:
        return product(y.mT, x.mT, offs=saved.offs, batch_invariant=saved.batch_invariant).mT
    return product(x, y, offs=saved.offs, batch_invariant=saved.batch_invariant)


def keep_lists(matrices: Sequence[Any], needs: Sequence[bool]) -> tuple[list[Any], dict[int, bool]]:
    """What a call of `group_gemm` keeps of its matrices, those of A and then of B: None in place of what no gradient
    needs, and of which of those lie as transposed ones.
    """
    count = len(matrices) // 2
    kept = [matrix if needs[i - count] else None for i, matrix in enumerate(matrices)]
    gone = {i: is_transposed(matrix) for i, matrix in enumerate(matrices) if needs[i] and kept[i] is None}
    return kept, gone


def of_lists(
    multiply: Callable[[list[Any], list[Any]], list[Any]],
    gradients: Sequence[Any],
    kept: Sequence[Any],
    gone: dict[int, bool],
    needs: Sequence[bool],
) -> list[Any]:
    """Gradients of A, then of B: two lists of products. None where none is needed, or none of C comes in."""
    count = len(gradients)
    made: list[Any] = [None] * (2 * count)
    for first in (0, count):
        wanted = [i for i in range(count) if needs[first + i] and gradients[i] is not None]
        products: list[tuple[Any, Any, bool]] = []
        for i in wanted:
            mine = first + i
            lies = gone[mine] if mine in gone else is_transposed(kept[mine])
            of_a = (gradients[i], kept[count + i].mT) if first == 0 else (kept[i].mT, gradients[i])
            products.append((*of_a, lies))
        for i, product in zip(wanted, _multiplied_lists(multiply, products)):
            made[first + i] = product
    return made


def _multiplied_lists(
    multiply: Callable[[list[Any], list[Any]], list[Any]], products: list[tuple[Any, Any, bool]]
) -> list[Any]:
    """x @ y of each (x, y, transposed), as the matrix lies whose gradient it is."""
    if not products:
        return []
    pairs = [(y.mT, x.mT) if transposed else (x, y) for x, y, transposed in products]
    made = multiply([x for x, _ in pairs], [y for _, y in pairs])
    return [c.mT if transposed else c for c, (_, _, transposed) in zip(made, products)]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: str, count: int, *inputs_and_gradients: Any) -> Any:
        ctx.function = function
        return inputs_and_gradients[len(inputs_and_gradients) - count :]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise refusals.of_second_derivatives(ctx.function)


def once(function: str, inputs: Sequence[Any], compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    """The gradients that `compute` makes of these inputs. Differentiated again, they raise RuntimeError."""
    if not torch.is_grad_enabled():  # as in every backward without create_graph=True
        return _computed(function, inputs, compute)
    with torch.no_grad():
        made = _computed(function, inputs, compute)
    present = [gradient for gradient in made if gradient is not None]
    marked = iter(_Once.apply(function, len(present), *inputs, *present) if present else ())
    return [None if gradient is None else next(marked) for gradient in made]


def _computed(function: str, inputs: Sequence[Any], compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    try:
        return compute()
    except TypeError as error:  # a batch of tensors cannot be read
        if refusals.is_batched(inputs):
            raise refusals.of_batched_gradients(function) from error
        raise
