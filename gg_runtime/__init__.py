"""Grouped GEMM from kernels compiled ahead of time: nothing is compiled, tuned, downloaded or written at run time."""

try:
    # First, so that its absence is not reported as something else's.
    from . import _C  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError(
        f"gg_runtime's extension cannot be loaded: {error}. In a source checkout, which has none, run `make build` and "
        "start Python in another folder; elsewhere, install a wheel for this Python (cp3xx) and platform"
    ) from error

from ._version import __version__
from .combine import combine
from .errors import ArtifactError, CudaError, UnsupportedError
from .experts_plan import ExpertsPlan
from .explain_experts import ExpertsExplanation, explain_experts
from .fused_experts import fused_experts, fused_experts_workspace
from .group_gemm import group_gemm, group_gemm_fn
from .grouped_mm import grouped_mm
from .inventory import Explanation, explain, kernels, manifest, preload, verify
from .plan import Plan
from .quantize import quantize_1x128
from .route import Routing, route
from .scaled_grouped_mm import scaled_grouped_mm

__all__ = [
    "ArtifactError",
    "CudaError",
    "ExpertsExplanation",
    "ExpertsPlan",
    "Explanation",
    "Plan",
    "Routing",
    "UnsupportedError",
    "__version__",
    "combine",
    "explain",
    "explain_experts",
    "fused_experts",
    "fused_experts_workspace",
    "group_gemm",
    "group_gemm_fn",
    "grouped_mm",
    "kernels",
    "manifest",
    "preload",
    "quantize_1x128",
    "route",
    "scaled_grouped_mm",
    "verify",
]
