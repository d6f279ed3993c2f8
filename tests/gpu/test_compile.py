"""torch.compile with Inductor on the GPU, in processes that have torch's Triton: Inductor's own kernels need it."""

import pytest

import inductor_process

pytest.importorskip("torch")

PRELUDE = """
import torch
from torch._dynamo.utils import counters
import gg_runtime

def operands(total=512, seed=0, groups=4, k=256, n=384):
    torch.manual_seed(seed)
    x = torch.randn(total, k, device="cuda").bfloat16()
    w1, w2 = torch.randn(groups, n, k, device="cuda").bfloat16(), torch.randn(groups, k, n, device="cuda").bfloat16()
    ends = (torch.rand(groups, device="cuda").sort().values * total).int()
    return x, w1, w2, ends

def block(x, w1, w2, ends):
    h = gg_runtime.grouped_mm(x, w1.mT, offs=ends)
    return gg_runtime.grouped_mm(torch.nn.functional.silu(h) * 0.125, w2.mT, offs=ends) * 0.125 + x

def step(function, x, w1, w2, ends):
    leaves = [tensor.detach().requires_grad_() for tensor in (x, w1, w2)]
    output = function(*leaves, ends)
    output.backward(torch.ones_like(output) / 8)
    return [output.detach().clone()] + [leaf.grad.clone() for leaf in leaves]

def close(found, expected):
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2 * y.abs().max().item())
"""

WHOLE_GRAPHS = """
compiled = torch.compile(block, fullgraph=True, dynamic=True)
with torch._dynamo.config.patch(error_on_recompile=True):
    for total in (512, 640, 96):
        given = operands(total)
        close(step(compiled, *given), step(block, *given))
        first, again = step(compiled, *given), step(compiled, *given)
        assert all(torch.equal(x, y) for x, y in zip(first, again))
"""

# The memory of a replay belongs to the next one, so what is compared is cloned in `step`.
GRAPH_TREES = """
compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
for i in range(6):
    torch.compiler.cudagraph_mark_step_begin()
    given = operands(seed=i)
    close(step(compiled, *given), step(block, *given))
with torch.no_grad():
    for i in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        given = operands(seed=i)
        torch.testing.assert_close(compiled(*given), block(*given), rtol=2e-2, atol=2e-2)
assert counters["inductor"]["cudagraph_skips"] == 0, counters["inductor"]
"""

ACCUMULATION = """
x, w1, w2, ends = operands()
g = torch.randn(512, 384, device="cuda").bfloat16()

@torch.compile(fullgraph=True)
def accumulate(main, x, g, ends):
    gg_runtime.grouped_mm(g.mT, x, offs=ends, out=main, beta=1.0)
    return main.abs().sum()

main = torch.ones(4, 384, 256, device="cuda")
for times in (1, 2, 3):
    accumulate(main, x, g, ends)
    expected = times * gg_runtime.grouped_mm(g.mT, x, offs=ends, out_dtype=torch.float32) + 1
    torch.testing.assert_close(main, expected, rtol=1e-5, atol=1e-2)
"""

INFERENCE = """
def layer(x, ids, weights, w1, w2):
    routing = gg_runtime.route(ids, 4)
    h = gg_runtime.grouped_mm(x, w1.mT, offs=routing.ends, a_index=routing.token, activation="swiglu")
    y = gg_runtime.grouped_mm(h, w2.mT, offs=routing.ends)
    return gg_runtime.combine(y, routing.inverse, weights) + gg_runtime.fused_experts(x, w1.mT, w2.mT, weights, ids)

torch.manual_seed(0)
x = torch.randn(100, 256, device="cuda").bfloat16()
w1, w2 = (torch.randn(shape, device="cuda").bfloat16() / 16 for shape in ((4, 512, 256), (4, 256, 256)))
ids, weights = torch.randint(0, 5, (100, 2), device="cuda"), torch.rand(100, 2, device="cuda")
given = x, ids, weights, w1, w2
for mode in ("default", "reduce-overhead"):
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(*given), layer(*given), rtol=1e-2, atol=1e-2)
assert counters["inductor"]["cudagraph_skips"] == 0, counters["inductor"]
"""

EXPORTED = """
import tempfile
class Block(torch.nn.Module):
    def forward(self, *given):
        return block(*given)

given = operands()
with torch.no_grad():
    program = torch.export.export(Block(), given)
    assert torch.equal(program.module()(*given), block(*given))
"""


FP8 = """
torch.manual_seed(0)
ends = torch.tensor([7, 7, 300], dtype=torch.int32, device="cuda")
B = torch.randn(3, 256, 512, device="cuda").to(torch.float8_e4m3fn).mT
one = torch.tensor(0.5, device="cuda")
rows, columns = torch.rand(300, device="cuda"), torch.rand(3, 256, device="cuda")
blocks = torch.rand(300, 4, device="cuda"), torch.rand(3, 2, 4, device="cuda")

def product(a, b, scale_a, scale_b):
    return gg_runtime.grouped_mm(a, b, offs=ends, scale_a=scale_a, scale_b=scale_b)

for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    A = torch.randn(300, 512, device="cuda").to(dtype)
    for scales in ((one, one), (rows, columns), blocks):
        made = torch.compile(product, fullgraph=True)(A, B, *scales)
        assert made.dtype is torch.bfloat16 and torch.equal(made, product(A, B, *scales))

def quantized(x):
    q, scales = gg_runtime.quantize_1x128(x)
    return product(q, B, scales, blocks[1])

x = torch.randn(300, 512, device="cuda").bfloat16()
for mode in ("default", "reduce-overhead"):
    compiled = torch.compile(quantized, fullgraph=True, mode=mode)
    for factor in (1, 2, 0.5, 1):
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(x * factor), quantized(x * factor))
assert counters["inductor"]["cudagraph_skips"] == 0, counters["inductor"]
"""


SCRIPTS = {
    "whole_graphs": WHOLE_GRAPHS,
    "graph_trees": GRAPH_TREES,
    "accumulation": ACCUMULATION,
    "inference": INFERENCE,
    "exported": EXPORTED,
    "fp8": FP8,
}


@inductor_process.needs_inductor
@pytest.mark.parametrize("name", SCRIPTS)
def test_with_inductor(name, tmp_path):
    inductor_process.run(PRELUDE + SCRIPTS[name], tmp_path)
