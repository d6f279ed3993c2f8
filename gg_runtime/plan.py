"""Calls that are made ready once, and then launched again and again."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from . import _C, reference
from .arguments import refuse_with_lists
from .arrays import Array, ArrayT, is_array, is_list

OutT = TypeVar("OutT")


class Plan(Generic[OutT]):
    """A call of `group_gemm`, or of arrays `grouped_mm`, that is checked, selected and written once.

    Takes the arguments of that function, though no JAX arrays, and raises what it raises. `run` multiplies what the
    same memory holds by then, `offs` and scales included.

    Args:
        group_A, group_B: the lists of `group_gemm`, or the arrays `mat_a` and `mat_b` of `grouped_mm`.
        offs, bias, batch_invariant, a_index, activation, gate_up, swiglu_limit, preactivation, b_index, counts, alpha,
            beta, k_alignment: as for `grouped_mm`, and for arrays alone. `run` with a beta adds to `out` each time.
        out, out_dtype, scale_a, scale_b: as for the function.
        variant: the name of an embedded kernel (`kernels()` lists them) to take instead of the library's choice;
            ValueError if the arrays do not keep what it was compiled for.
        checked: on a GPU, reads all arrays again at each `run`, and raises RuntimeError if one has moved (`resize_`,
            `set_`) or has another shape; without it `run` uses the memory that they had when the Plan was made. On the
            CPU `run` multiplies what the arrays are by then.

    `run` may be called on any stream, and in any capture; it waits for the list by itself. A Plan that goes away while
    its launches run, or is part of a CUDA graph, leaves the list to them; the arrays are the caller's to keep. A Plan
    that was made in a capture writes its list at each replay: before the first one `run` raises RuntimeError outside
    of that capture. An array with an attribute that leads back to its Plan is never freed, as Python's collector does
    not look into a Plan.

    Attributes:
        out: the outputs, a list; of arrays the output.
        variant: the name of the kernel that runs, of the one with the most products if there are two; "" on the CPU or
            when no output has elements.
        launches: how many kernels `run` launches: two where some groups cannot be read by TMA and the others are faster
            by themselves, up to four where rows are gathered, activated or added up apart from the product.
        grid: how many CTAs the launch of `variant` has; `slots`: how many the GPU holds at once.
        by_value: whether the problem travels in kernel parameters; else a list, or a part of it, was written to device
            memory once.
    """

    @overload
    def __init__(
        self: "Plan[list[ArrayT]]",
        group_A: Sequence[ArrayT],
        group_B: Sequence[ArrayT],
        *,
        out: Sequence[ArrayT] | None = None,
        out_dtype: object = None,
        scale_a: Array | Sequence[Array] | None = None,
        scale_b: Array | Sequence[Array] | None = None,
        variant: str | None = None,
        checked: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "Plan[ArrayT]",
        group_A: ArrayT,
        group_B: ArrayT,
        *,
        offs: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        out_dtype: object = None,
        scale_a: Array | None = None,
        scale_b: Array | None = None,
        batch_invariant: bool = False,
        a_index: Array | None = None,
        activation: str | None = None,
        gate_up: str = "gate_first",
        swiglu_limit: float | None = None,
        preactivation: ArrayT | None = None,
        b_index: Array | None = None,
        counts: Array | None = None,
        alpha: float | Array = 1.0,
        beta: float | Array = 0.0,
        k_alignment: int = 1,
        variant: str | None = None,
        checked: bool = False,
    ) -> None: ...
    def __init__(
        self,
        group_A: Any,
        group_B: Any,
        *,
        offs: Any = None,
        bias: Any = None,
        out: Any = None,
        out_dtype: object = None,
        scale_a: Any = None,
        scale_b: Any = None,
        batch_invariant: bool = False,
        a_index: Any = None,
        activation: Any = None,
        gate_up: Any = "gate_first",
        swiglu_limit: Any = None,
        preactivation: Any = None,
        b_index: Any = None,
        counts: Any = None,
        alpha: Any = 1.0,
        beta: Any = 0.0,
        k_alignment: int = 1,
        variant: str | None = None,
        checked: bool = False,
    ) -> None:
        # Not all callers check types.
        if not isinstance(variant, (str, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"Plan: variant is {variant!r}; the name of an embedded kernel is needed: kernels() lists them"
            )
        others = reference.Others(b_index, counts, alpha, beta, k_alignment)
        by_list = offs is None and not is_array(group_A)
        if not by_list:
            product = (group_A, group_B, offs, bias, out, out_dtype, scale_a, scale_b, bool(batch_invariant))
            after = reference.Activation(activation, gate_up, swiglu_limit, preactivation)
            self._plan = _C.Plan(*product, a_index, *after, *others, variant or "", bool(checked))
        else:
            refuse_with_lists(
                "Plan", bias=bias, batch_invariant=batch_invariant, a_index=a_index, activation=activation,
                gate_up=gate_up, swiglu_limit=swiglu_limit, preactivation=preactivation, **others._asdict(),
            )  # fmt: skip
            self._plan = _C.Plan(group_A, group_B, out, out_dtype, scale_a, scale_b, variant or "", bool(checked))
        self.variant, self.grid, self.slots = self._plan.variant, self._plan.grid, self._plan.slots
        self.by_value, self.launches = self._plan.by_value, self._plan.launches
        self._run: Callable[[], Any] = self._plan.run
        self.out: OutT = self._plan.out
        if self._plan.on_cpu:
            after = reference.Activation(activation, gate_up, swiglu_limit, preactivation)
            given = (group_A, group_B, offs, bias, out, scale_a, scale_b, a_index, after, others)
            self.out, self._run = _on_cpu(self._plan.out_dtype, by_list, *given)

    def __repr__(self) -> str:
        return f"<gg_runtime.Plan variant={self.variant!r} launches={self.launches} grid={self.grid}>"

    def run(self) -> OutT:
        """Launches on the current stream of the arrays' device and returns `out`; checks nothing unless `checked`."""
        self._run()
        return self.out


def _on_cpu(
    dtype: str,
    by_list: bool,
    group_A: Any,
    group_B: Any,
    offs: Any,
    bias: Any,
    out: Any,
    scale_a: Any,
    scale_b: Any,
    a_index: Any,
    after: reference.Activation,
    others: reference.Others,
) -> tuple[Any, Callable[[], Any]]:
    """Outputs, new ones or `out`, and a function that multiplies these arrays into them each time."""
    if by_list:
        A, B = list(group_A), list(group_B)
        of_a, of_b = (list(scales) if is_list(scales) else scales for scales in (scale_a, scale_b))
        of_lists = functools.partial(reference.group_gemm, A, B, out_dtype=dtype, scale_a=of_a, scale_b=of_b)
        made = of_lists(None) if out is None else list(out)
        return made, lambda: of_lists(made)

    def multiply(into: Any) -> Any:
        return reference.grouped_mm(group_A, group_B, offs, bias, into, dtype, scale_a, scale_b, a_index, after, others)

    made = multiply(None) if out is None else out
    return made, lambda: multiply(made)
