"""torchtitan's GroupedExperts through gg_runtime on the GPU: a layer that trains beside the loop, and CUDA graphs."""

import pytest

import inductor_process

torch = pytest.importorskip("torch")

import torchtitan_like as titan  # noqa: E402

SIZES = (128, 96, 16, 4)
KINDS = ("replaced", "ours")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"before": True, "padding": 7}], ids=["", "weights before, padded"])
def test_a_layer_learns_as_it_does_with_the_loop(kind, options):
    exact, usual = (
        titan.trained("loop", SIZES, dtype=dtype, device="cuda", **options) for dtype in (torch.float32, torch.bfloat16)
    )
    titan.assert_learns_alike(titan.trained(kind, SIZES, device="cuda", **options), usual, exact)


COMPILED = """
import torch
import torchtitan_like as titan

options = {{"fullgraph": True, "mode": "reduce-overhead"}}
ours = titan.trained({kind!r}, {sizes}, device="cuda", compiled=options)
assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
usual, exact = (
    titan.trained("loop", {sizes}, dtype=dtype, device="cuda") for dtype in (torch.bfloat16, torch.float32)
)
titan.assert_learns_alike(ours, usual, exact)
"""


@inductor_process.needs_inductor
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_layer_learns_under_cuda_graphs(kind, tmp_path):
    inductor_process.run(COMPILED.format(kind=kind, sizes=SIZES), tmp_path)
