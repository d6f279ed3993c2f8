"""Backward passes against the fake driver: gg_runtime.torch's own code, with the stand-in of torch in torch's place.

torch's engine is what this file plays: a backward runs on the stream of its forward, behind what the calling stream has
done, and the calling stream goes on behind it.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch  # the stand-in


class Applied:
    """torch._C._FunctionBase, what `Function` begins with."""

    @classmethod
    def apply(cls, *arguments):
        raise AssertionError("the stand-in of torch records nothing")


class Function(Applied):
    _backward_cls = setup_context = None  # torch's metaclass makes the one, the other is for functions that define it


def complete() -> None:
    """Gives the stand-in what gg_runtime.torch reads of torch."""
    torch.autograd = type("autograd", (), {"Function": Function})
    torch._C = type("_C", (), {"_FunctionBase": Applied})
    torch.library = type("library", (), {})
    tensor = torch.Tensor
    tensor.stride = lambda x, axis=None: x.strides if axis is None else x.strides[axis]
    tensor.new_empty = lambda x, shape, dtype=None: x.new_empty_strided(shape, row_major(shape), dtype)
    tensor.new_ones = tensor.new_empty
    tensor.dim = lambda x: len(x.shape)
    tensor.expand = expanded
    tensor.squeeze = without_axis
    tensor.to = lambda x, dtype: x if x.dtype == dtype else x.new_empty(x.shape, dtype)
    torch.empty_like = lambda x: x.new_empty(x.shape)
    torch.zeros = empty


def row_major(shape) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(shape)])


def empty(shape, dtype, device):
    like = torch.Tensor(1, dtype=dtype, device=device.index)
    return like.new_empty(shape)


def view(x, shape, strides):
    made = torch.Tensor(*shape, strides=tuple(strides), address=x.address, dtype=x.dtype, device=x.device.index)
    made.owner = x.owner
    return made


def expanded(x, *shape):
    return view(x, shape, (0,) * (len(shape) - len(x.shape)) + x.strides)


def without_axis(x, axis: int):
    return view(x, x.shape[:axis] + x.shape[axis + 1 :], x.strides[:axis] + x.strides[axis + 1 :])


complete()

import gg_runtime  # noqa: E402
from gg_runtime.torch import experts, gradients  # noqa: E402


@dataclass
class Recorded:
    """What a forward keeps for its backward."""

    needs: tuple[bool, bool, bool]  # gradients of a, of b and of the bias
    stream: int
    kept: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    layer: object = None


def forward(backend, problem, action: dict) -> Recorded:
    recorded = Recorded(tuple(name in action["wants"] for name in "abc"), backend.current())
    backend.expect(problem)
    if problem.kind != "layer" or problem.spec["on_input"]:
        recorded.outputs = backend.call(problem, None, False)
        return recorded
    spec = problem.spec
    x, w1, w2, weights, ids = problem.operands
    recorded.layer = experts.Layer(spec["activation"], spec["gate_up"], spec.get("limit"), 1.0, spec["invariant"])
    biases = problem.keywords.get("b1"), problem.keywords.get("b2")
    out, z, routing = experts.run(recorded.layer, x, w1, w2, weights, ids, *biases, None, None)
    recorded.outputs, recorded.kept = [out], [x, z, w1, w2, weights, None, *routing]
    return recorded


@contextmanager
def on_the_stream_of(backend, problem, recorded: Recorded):
    """As torch's engine runs a backward."""
    asked_on = backend.current()
    if asked_on == recorded.stream:
        yield
        return
    begun = backend.mark()
    torch.cuda.streams.of[problem.device] = recorded.stream
    backend.await_event(begun)
    yield
    ended = backend.mark()
    torch.cuda.streams.of[problem.device] = asked_on
    backend.await_event(ended)


def backward(backend, problem, recorded: Recorded) -> list:
    """New gradients. Those of a layer by weighted rows are torch's own and the same products: they are left out, and so
    is what a layer's second bias needs, for which torch computes between the products."""
    incoming = [out.new_empty(out.shape) for out in problem.out]
    with on_the_stream_of(backend, problem, recorded):
        if problem.kind == "list":
            return of_lists(backend, problem, recorded, incoming)
        if problem.kind != "layer":
            saved = gradients.Saved(*problem.operands, problem.keywords.get("offs"), False, False)
            needs = (*recorded.needs[:2], recorded.needs[2] and "bias" in problem.keywords)
            return list(gradients.of_grouped_mm(gg_runtime.grouped_mm, incoming[0], saved, needs))
        return of_layer(problem, recorded, incoming[0]) if recorded.layer else []


def of_lists(backend, problem, recorded: Recorded, incoming: list) -> list:
    def multiply(A: list, B: list) -> list:
        backend.expect(problem, zip(A, B))
        return gg_runtime.group_gemm(A, B)

    A, B = problem.operands
    needs = [recorded.needs[0]] * len(A) + [recorded.needs[1]] * len(B)
    return gradients.of_lists(multiply, incoming, [*A, *B], {}, needs)


def of_layer(problem, recorded: Recorded, gradient) -> list:
    of_x, of_weights, of_biases = recorded.needs
    has_bias = of_biases and "b1" in problem.keywords
    needs = of_x, of_weights, of_weights, of_biases, has_bias, False
    main = problem.mains if recorded.needs == (True, True, True) and problem.mains else (None, None)
    return experts.go_back(recorded.layer, experts.Kept(*recorded.kept), gradient, needs, main)
