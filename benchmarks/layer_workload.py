"""Tensors of one layer of experts, and what each of its parts must give, in float32."""

import torch

import gg_runtime

from .layer_shapes import LayerShape

PRODUCT_TOLERANCE = 4e-3  # of a row's norm; rounding to bfloat16 alone makes 1.7e-3
KEPT_TOLERANCE = 8e-3  # sums that are kept are rounded before the activation
LAYER_TOLERANCE = 1e-2  # rows are rounded after the activation, after the second product and at the end
TORCH_TOLERANCE = 1.5e-2  # which rounds the first product before the activation as well
ATOMIC_TOLERANCE = 3e-2  # index_add_ rounds after each of a token's rows


def activated(z: torch.Tensor, activation: str, gate_up: str) -> torch.Tensor:
    """In z's dtype, as torch's layers have it."""
    gate, up = (z[..., ::2], z[..., 1::2]) if gate_up == "interleaved" else z.chunk(2, dim=-1)
    if activation == "swiglu":
        return torch.nn.functional.silu(gate) * up
    if activation != "swiglu_oai":
        raise ValueError(f"no layer is timed with {activation}")
    gate, up = gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


class LayerWorkload:
    """A layer with uniform random routing, all of a token's experts unlike. Weights are many times larger than L2."""

    def __init__(self, shape: LayerShape, seed: int = 0):
        self.shape = shape
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(*sizes: int, factor: float = 1.0) -> torch.Tensor:
            return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16, generator=generator).mul_(factor)

        def weights(inputs: int, outputs: int) -> torch.Tensor:
            """[E, inputs, outputs], as `grouped_mm` takes them, of a size that keeps sums of one size."""
            sizes = (inputs, outputs) if shape.transposed else (outputs, inputs)
            made = normal(shape.experts, *sizes, factor=inputs**-0.5)
            return made if shape.transposed else made.mT

        self.x = normal(shape.tokens, shape.hidden)
        self.w1 = weights(shape.hidden, 2 * shape.intermediate)
        self.w2 = weights(shape.intermediate, shape.hidden)
        self.b1 = normal(shape.experts, 2 * shape.intermediate, factor=0.5) if shape.biased else None
        self.b2 = normal(shape.experts, shape.hidden, factor=0.5) if shape.biased else None
        chosen = torch.rand(shape.tokens, shape.experts, device="cuda", generator=generator).topk(shape.top_k)
        self.ids = chosen.indices.int()
        self.weights = chosen.values.softmax(-1)
        self.routing = gg_runtime.route(self.ids, shape.experts)
        self.ends: list[int] = self.routing.ends.tolist()
        self.gathered = self.x[self.routing.token.long()]
        self._references()

    @property
    def used(self) -> int:
        """Experts that have rows."""
        return sum(end > start for start, end in zip([0, *self.ends], self.ends))

    def _product(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = torch.empty(len(a), b.shape[2], device="cuda")
        for group, (start, end) in enumerate(zip([0, *self.ends], self.ends)):
            torch.mm(a[start:end].float(), b[group].float(), out=out[start:end])
            if bias is not None:
                out[start:end] += bias[group].float()
        return out

    def _references(self) -> None:
        """z: sums of the first product with b1; h: activated; inner: h rounded; y: of the second product; out."""
        shape = self.shape
        self.z = self._product(self.gathered, self.w1, self.b1)
        self.h = activated(self.z, shape.activation, shape.gate_up)
        self.inner = self.h.bfloat16()
        self.y = self._product(self.inner, self.w2, self.b2)
        self.out = torch.zeros(shape.tokens, shape.hidden, device="cuda")
        for slot in range(shape.top_k):
            self.out += self.y[self.routing.inverse[:, slot].long()] * self.weights[:, slot, None]
        self.rows = self.y.bfloat16()  # that `combine` is timed with


def worst_row(computed: torch.Tensor, reference: torch.Tensor, tolerance: float) -> float:
    """The largest relative error of a row; ArithmeticError above the tolerance or where nothing was written."""
    worst = torch.zeros((), device="cuda")
    for part, exact in zip(computed.split(1 << 15), reference.split(1 << 15)):  # whole, it is gigabytes of float32
        norms = torch.linalg.vector_norm(exact, dim=1)
        wrong = torch.linalg.vector_norm(part.float() - exact, dim=1)
        worst = torch.maximum(worst, (wrong / norms).max())  # keeps NaN
    error = float(worst)
    if not error <= tolerance:
        raise ArithmeticError(f"relative error {error:.1e} in a row, at most {tolerance:.0e} is right")
    return error
