"""vLLM's layer of Triton kernels, as the package `vllm_moe` has it (kernels-community/vllm-moe), where that is there.

One config serves both of its products, as in vLLM. It is chosen anew for each layer, by the time of the two. The
products alone are timed too: the package is of an older version of vLLM, whose other kernels may be faster by now.
"""

import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from .layer_shapes import LayerShape
from .layer_workload import LayerWorkload
from .timing import Graph, enough, interleaved_us

try:
    fused_moe: Any = importlib.import_module("vllm_moe.fused_moe")
except ImportError:
    fused_moe = None

Config = dict[str, int]
Written = tuple[torch.Tensor, Callable[[], torch.Tensor]]
NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
FEW_ROWS = 32  # of an expert, and fewer
# Those that win in vLLM's own tables for an H100 and an H200, and some around them.
OF_FEW_ROWS = (
    (16, 64, 128, 1, 4, 3), (16, 64, 128, 1, 4, 5), (16, 64, 256, 1, 4, 2), (16, 64, 256, 1, 4, 3),
    (16, 128, 64, 1, 4, 5), (16, 128, 128, 1, 4, 2), (16, 128, 128, 1, 4, 3), (16, 128, 128, 16, 4, 4),
    (16, 256, 64, 1, 8, 4), (16, 256, 128, 1, 8, 2), (32, 128, 128, 1, 4, 3), (32, 64, 128, 1, 4, 4),
)  # fmt: skip
OF_MANY_ROWS = (
    (64, 128, 64, 1, 4, 3), (64, 128, 64, 16, 4, 4), (64, 128, 128, 16, 4, 3), (64, 256, 64, 16, 4, 4),
    (64, 256, 64, 16, 8, 4), (128, 128, 64, 16, 4, 3), (128, 128, 64, 16, 8, 4), (128, 256, 64, 1, 8, 3),
    (128, 256, 64, 1, 8, 4), (128, 256, 64, 16, 8, 4), (128, 256, 64, 32, 8, 4),
)  # fmt: skip
TUNING_US, TUNING_REPEATS = 5_000, 3


def has(shape: LayerShape) -> bool:
    """Whether it is there and computes this layer."""
    simple = shape.activation == "swiglu" and shape.gate_up == "gate_first" and not shape.biased
    return fused_moe is not None and simple and not shape.transposed


def configs(shape: LayerShape) -> list[Config]:
    few = shape.rows <= FEW_ROWS * shape.experts
    return [dict(zip(NAMES, one)) for one in (OF_FEW_ROWS if few else OF_MANY_ROWS)]


class Layer:
    def __init__(self, own: LayerWorkload):
        self.own = own
        self.w1, self.w2 = own.w1.mT, own.w2.mT
        self.config = self.tuned()

    def tuned(self) -> Config:
        """The fastest of those that run."""
        graphs: dict[int, Graph] = {}
        given = configs(self.own.shape)
        for index, config in enumerate(given):
            try:
                call = self.products(config)[0]
                graphs[index] = Graph([call], least=enough(call, TUNING_US))
            except Exception as error:  # more shared memory than there is
                print(f"  vLLM {config}: {type(error).__name__}", flush=True)
        us = dict(zip(graphs, interleaved_us(list(graphs.values()), TUNING_REPEATS)))
        return given[min(us, key=lambda index: us[index])]

    def whole(self) -> Callable[[], torch.Tensor]:
        own, chosen = self.own, self.config
        arguments = (own.x, self.w1, self.w2, own.weights, own.ids)

        def call() -> torch.Tensor:
            with mock.patch.object(fused_moe, "try_get_optimal_moe_config", return_value=chosen):
                return fused_moe.fused_experts_impl(*arguments)

        return call

    def products(self, config: Config | None = None) -> tuple[Callable[[], None], list[Written]]:
        """The call of both, without routing, activation and sum; each output with what makes its reference."""
        own, shape, chosen = self.own, self.own.shape, dict(config or self.config)
        inverse = own.routing.inverse.long().flatten()
        sorted_ids = fused_moe.moe_align_block_size(own.ids, chosen["BLOCK_SIZE_M"], shape.experts)
        inner = own.inner[inverse]  # rows lie in the order of slots
        z, y = (own.x.new_empty(shape.tokens, shape.top_k, w.shape[1]) for w in (self.w1, self.w2))

        def product(a: torch.Tensor, w: torch.Tensor, out: torch.Tensor, weighted: bool, top_k: int) -> None:
            fused_moe.invoke_fused_moe_kernel(
                a, w, out, None, None, None, own.weights, *sorted_ids, weighted, top_k, chosen,
                compute_type=fused_moe.tl.bfloat16, use_fp8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
            )  # fmt: skip

        def call() -> None:
            product(own.x, self.w1, z, False, shape.top_k)
            product(inner, self.w2, y, True, 1)

        weights = own.weights.flatten()[:, None]
        return call, [
            (z.flatten(0, 1), lambda: own.z[inverse]),
            (y.flatten(0, 1), lambda: own.y[inverse] * weights),
        ]
