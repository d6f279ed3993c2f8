"""A layer of experts with e4m3 weights in float64, and how far from it the roundings of a right one may lead."""

import torch

from experts_oracle import activate, error_after, tiny
from scaled_oracle import BLOCK, E4M3, SLACK, blocks

LARGEST = 448.0
HALF_UNIT, HALF_STEP = 2.0**-4, 2.0**-10  # of e4m3: relative, and of what is below its normal numbers


def quantized_weights(w):
    """(e4m3 [E, N, K], float32 scales [E, N / 128, K / 128]) of [E, N, K], as checkpoints have them."""
    experts, n, k = w.shape
    padded = torch.nn.functional.pad(w.float(), (0, -k % BLOCK, 0, -n % BLOCK))
    tiles = padded.view(experts, blocks(n), BLOCK, blocks(k), BLOCK)
    scales = tiles.abs().amax((2, 4)) / LARGEST
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    q = (tiles / scales[:, :, None, :, None]).reshape(padded.shape)[:, :n, :k]
    return q.clamp(-LARGEST, LARGEST).to(E4M3).contiguous(), scales


def dequantized_weights(q, scales):
    """[E, N, K] in float64."""
    n, k = q.shape[1:]
    wide = scales.double().repeat_interleave(BLOCK, 1)[:, :n].repeat_interleave(BLOCK, 2)[:, :, :k]
    return q.double() * wide


def quantized_rows(x):
    """What rows become in e4m3 with a scale for each 128 columns, and half a step of each, in float64."""
    rows, columns = x.shape
    values = torch.nn.functional.pad(x.float(), (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    largest = values.abs().amax(2, keepdim=True)
    small = largest < 2.0**-100
    scales = torch.where(small, torch.ones_like(largest), largest / LARGEST)
    # A number by a tensor would be a product with the tensor's reciprocal.
    inverse = torch.full_like(largest, LARGEST) / largest
    q = torch.where(small, torch.zeros_like(values), values * inverse).to(E4M3)
    made = (q.double() * scales.double()).reshape(rows, -1)[:, :columns]
    return made, scales.double().expand_as(values).reshape(rows, -1)[:, :columns]


def layer(
    x, w1, w2, weights, ids, *, w1_scale, w2_scale, activation="swiglu", gate_up="gate_first", swiglu_limit=None,
    b1=None, b2=None, expert_map=None, apply_router_weight_on_input=False, add=None, scale=1.0,
):  # fmt: skip
    """(out, bound, near), float64: the layer whose second input is not quantized, the error of one that quantizes it
    and rounds sums between the steps, and two layers that quantize it: of float64 sums that were rounded to x's dtype,
    and of those that were not. w1, w2: [E, K, N] in e4m3.
    """
    unit, slack = torch.finfo(x.dtype).eps / 2, SLACK[x.device.type]
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    bound, near = torch.zeros_like(out), [torch.zeros_like(out), torch.zeros_like(out)]
    if expert_map is not None:
        known = (ids >= 0) & (ids < len(expert_map))
        mapped = expert_map.long()[ids.long().clamp(0, max(len(expert_map) - 1, 0))] if len(expert_map) else ids.long()
        ids = torch.where(known, mapped, torch.full_like(mapped, -1))
    for expert in range(len(w1)):
        token, slot = torch.nonzero(ids == expert, as_tuple=True)
        if len(token) == 0:
            continue
        factor = weights[token, slot].double()
        row, _ = quantized_rows(x[token])
        if apply_router_weight_on_input:
            row, factor = row * factor[:, None], torch.ones_like(factor)
        up, down = (
            dequantized_weights(w[expert].mT[None], s[expert][None])[0].mT for w, s in ((w1, w1_scale), (w2, w2_scale))
        )
        z = row @ up + (0 if b1 is None else b1[expert].double())
        z_error = (row.abs() @ up.abs() + z.abs()) * slack
        z_error = z_error + (z.abs() + z_error) * unit + tiny(x.dtype)
        inner = activate(z, activation, gate_up, swiglu_limit)
        inner_error = error_after(z.abs(), z_error, activation, gate_up, swiglu_limit)
        _, step = quantized_rows(inner)
        step = step + _largest_of_blocks(inner_error) / LARGEST
        inner_error = inner_error + (inner.abs() + inner_error) * HALF_UNIT * 1.001 + step * HALF_STEP
        bias = 0 if b2 is None else b2[expert].double()
        y = inner @ down + bias
        for each, sums in zip(near, (z.to(x.dtype).double(), z)):
            q, _ = quantized_rows(activate(sums, activation, gate_up, swiglu_limit))
            each.index_add_(0, token, (q @ down + bias) * factor[:, None])
        y_error = inner_error @ down.abs() + ((inner.abs() + inner_error) @ down.abs() + y.abs()) * slack
        y_error = y_error + (y.abs() + y_error) * unit + tiny(x.dtype)
        out.index_add_(0, token, y * factor[:, None])
        bound.index_add_(0, token, (y_error + y.abs() * 2.0**-21) * factor.abs()[:, None])
    added = 0 if add is None else add.double()
    out, near, bound = out * scale + added, [each * scale + added for each in near], bound * abs(scale)
    return out, bound + (out.abs() + bound) * unit * 1.01 + tiny(x.dtype), near


def _largest_of_blocks(x):
    """Of each element: the largest of its 128 columns."""
    rows, columns = x.shape
    values = torch.nn.functional.pad(x, (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    return values.amax(2, keepdim=True).expand_as(values).reshape(rows, -1)[:, :columns]


def assert_layer(out, x, w1, w2, weights, ids, **options):
    """Each element within its bound, and all of them together near a layer that quantizes where this one does, whose
    own distance from the one that does not is some 0.03. Few sums that differ in their last bits become other e4m3
    numbers. Of each token, the nearer layer counts: a kernel that activates its own sums does not round them, and which
    kernels take a chunk of tokens depends on its size.
    """
    want, bound, near = layer(x, w1, w2, weights, ids, **options)
    assert out.dtype == x.dtype and out.shape == x.shape
    wrong = ~((out.double() - want).abs() <= bound)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first at {torch.nonzero(wrong)[0].tolist()}: "
        f"{out[wrong][0].item()}, {want[wrong][0].item()} +- {bound[wrong][0].item():.3g} is right"
    )
    if out.numel() > 1000 and bool(want.any()):
        apart = torch.stack([(out.double() - each).norm(dim=1) for each in near]).amin(0)
        far = float(apart.norm() / near[0].norm())
        assert far < 0.01, f"{far:.3g} away from a layer that quantizes alike"
