"""The CPU path, in the arithmetic of the arrays' own framework. Arguments were checked before they come here."""

from .layers import activation_gradient, combine, fused_experts, route
from .products import Activation, Others, group_gemm, grouped_mm
from .scales import quantize_1x128

__all__ = [
    "Activation",
    "Others",
    "activation_gradient",
    "combine",
    "fused_experts",
    "group_gemm",
    "grouped_mm",
    "quantize_1x128",
    "route",
]
