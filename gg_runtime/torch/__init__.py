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

import torch

from . import eager, experts, gradients, refusals

__all__ = ["eager", "experts", "gradients", "refusals"]

if hasattr(torch.library, "register_autograd"):  # since torch 2.4; an older one has gradients alone
    from . import expert_ops, ops, traced

    __all__ += ["expert_ops", "ops", "traced"]
