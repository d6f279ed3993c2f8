"""What walks expect of a layer of experts is what the CPU path gives."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from fuzz import layers, layouts  # noqa: E402
from fuzz.actions import Walk  # noqa: E402


def on_the_cpu(spec: dict, seed: int):
    """As cuda_backend.Problem has them: matrices in blocks, their outputs, and room for references."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[spec["dtype"]]
    x, weights, in_bytes, out, out_bytes = layouts.layouts(spec)
    blocks = [torch.randn(size // 2, generator=torch.manual_seed(seed)).to(dtype) for size in (in_bytes, out_bytes)]

    def stacks(part, block):
        return [block.as_strided((s.count, *s.shape), (s.pitch, *s.strides), s.start) for s in part]

    problem = SimpleNamespace(spec=spec, dtype=dtype, A=stacks(x, blocks[0]), B=stacks(weights, blocks[0]))
    problem.inputs = SimpleNamespace(bytes=blocks[0])
    problem.outputs = SimpleNamespace(stacks=stacks(out, blocks[1]))
    problem.reference = [torch.empty(1, spec["rows"], spec["hidden"])]
    problem.allowed = [torch.empty(spec["rows"])]
    layers.prepare(problem)
    layers.fill(problem, {"seed": seed})
    return problem


@pytest.mark.parametrize("seed", range(24))
def test_references_are_what_the_layer_gives(seed):
    problem = on_the_cpu(Walk(seed).make_layer(1), seed)
    options = {"max_rows": layouts.max_rows(problem.spec, seed)}
    out = gg_runtime.fused_experts(*problem.operands, **problem.keywords, **options)
    layers.refresh(problem)
    off = (out.float() - problem.reference[0][0]).abs()
    assert (off <= problem.allowed[0][:, None]).all()
    if out.count_nonzero():
        assert problem.allowed[0].max() < out.float().abs().max() / 4, "or else anything would be right"


def test_a_workspace_of_the_walks_is_enough():
    spec = Walk(3).make_layer(1)
    assert layouts.workspace_bytes(spec, gg_runtime.fused_experts_workspace) > 0
