"""A layer as torchtitan builds it: a router, rows sorted by expert, `GroupedExperts` as a loop, weights of rows."""

import torch
from torch.nn.functional import silu

from gg_runtime.integrations import torchtitan as integration


class GroupedExperts(torch.nn.Module):
    """What torchtitan's computes, expert by expert in the dtype of x; zeros for rows behind the last expert's."""

    def __init__(self, dim, hidden_dim, num_experts):
        super().__init__()
        for name, sizes in {"w1": (hidden_dim, dim), "w2": (dim, hidden_dim), "w3": (hidden_dim, dim)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(num_experts, *sizes)))

    def forward(self, x, num_tokens_per_expert):
        out, start = [], 0
        for expert, count in enumerate(num_tokens_per_expert.int().tolist()):
            rows = x[start : start + count]
            inner = silu(rows @ self.w1[expert].T) * (rows @ self.w3[expert].T)
            out.append(inner @ self.w2[expert].T)
            start += count
        return torch.cat([*out, torch.zeros_like(x[start:])])


class Layer(torch.nn.Module):
    def __init__(self, experts, dim, num_experts, top_k, padding=0, before=False):
        """padding: rows behind those of the last expert. before: weights on the inputs of experts."""
        super().__init__()
        self.gate, self.experts = torch.nn.Linear(dim, num_experts, bias=False), experts
        self.num_experts, self.top_k, self.padding, self.before = num_experts, top_k, padding, before

    def forward(self, x):
        scores, chosen = torch.sigmoid(self.gate(x).float()).topk(self.top_k)
        order = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.nn.functional.one_hot(chosen.flatten(), self.num_experts).sum(0)
        weights = scores.flatten()[order, None]
        rows = x[order // self.top_k]
        if self.before:
            rows = (rows.float() * weights).to(x.dtype)
        padded = torch.cat([rows, rows.new_zeros(self.padding, rows.shape[1])])
        made = self.experts(padded, counts)[: len(rows)]
        if not self.before:
            made = (made.float() * weights).to(x.dtype)
        unsorted = torch.zeros_like(made).index_put((order,), made)
        return x + unsorted.view(*chosen.shape, -1).float().sum(1).to(x.dtype)


def layer(kind, sizes=(24, 16, 6, 2), *, dtype=torch.bfloat16, device="cpu", **options):
    """The same weights in each kind: "loop", "replaced" and "ours". sizes: dim, hidden_dim, num_experts, top_k."""
    dim, hidden, experts, top_k = sizes
    numbers = torch.Generator().manual_seed(0)
    made = Layer(GroupedExperts(dim, hidden, experts), dim, experts, top_k, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers) * parameter.shape[-1] ** -0.5)
    if kind == "ours":
        own = integration.GroupedExperts(dim, hidden, experts)
        own.load_state_dict(made.experts.state_dict())
        made.experts = own
    made = made.to(torch.bfloat16).to(dtype).to(device)
    if kind == "replaced":
        assert integration.replace(made) == 1
    return made


def trained(kind, sizes=(24, 16, 6, 2), *, dtype=torch.bfloat16, device="cpu", steps=30, compiled=None, **options):
    """(gradients of the first step by the names of the loop, the losses) of a layer that learns one batch."""
    made = layer(kind, sizes, dtype=dtype, device=device, **options)
    run = made if compiled is None else torch.compile(made, **compiled)
    numbers = torch.Generator().manual_seed(1)
    x, target = (torch.randn(64, sizes[0], generator=numbers).bfloat16().to(dtype).to(device) for _ in range(2))
    optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
    gradients, losses = {}, []
    for _ in range(steps):
        if compiled is not None:
            torch.compiler.cudagraph_mark_step_begin()
        loss = (run(x).float() - target.float()).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradients = gradients or gradients_of(made)
        optimizer.step()
        losses.append(loss.item())
    return gradients, torch.tensor(losses, dtype=torch.float64)


def gradients_of(made):
    found = {name: parameter.grad.clone() for name, parameter in made.named_parameters()}
    if "experts.w13" in found:
        found["experts.w1"], found["experts.w3"] = found.pop("experts.w13").unbind(1)
    return found


def relative(found, right):
    return float((found.detach().double() - right.double()).norm() / right.double().norm())


def assert_learns_alike(ours, usual, exact):
    """ours and the loop in the same dtype, against the loop in float32: gradients of the first step, and all losses."""
    for name, right in exact[0].items():
        error, of_loop = (relative(one[0][name], right) for one in (ours, usual))
        assert error <= 1.5 * of_loop + 1e-3, (name, error, of_loop)
    assert exact[1][-1] < 0.9 * exact[1][0], ("nothing was learned", exact[1])
    allowed = 2 * (usual[1] - exact[1]).abs().max() + 0.01 * exact[1][0]
    assert (ours[1] - exact[1]).abs().max() <= allowed, (ours[1], usual[1], exact[1])
