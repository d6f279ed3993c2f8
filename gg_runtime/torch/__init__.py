"""Gradients of `group_gemm` and `grouped_mm`, and what torch.compile and torch.export see of this library.

Nothing here needs to be called: the functions of gg_runtime come here by themselves where torch has to take part. After
`import gg_runtime.torch` the ops are there by name, `torch.ops.gg_runtime.grouped_mm` and so on, which an exported
program needs that is loaded in a new process.

    eager      gradients by torch.autograd.Function, outside of torch's dispatcher
    gradients  what they are: products again
    traced     what torch.compile reads in place of the functions of gg_runtime
    ops        the ops that it finds there, with their shapes and gradients
    experts    a layer with gradients, and float32 main gradients; expert_ops: the same as ops
    refusals   what has no gradient, and what to write instead
"""

from . import eager, expert_ops, experts, gradients, ops, refusals, traced

__all__ = ["eager", "expert_ops", "experts", "gradients", "ops", "refusals", "traced"]
