"""Grouped GEMM from kernels compiled ahead of time: nothing is compiled, tuned, downloaded or written at run time."""

from ._version import __version__
from .errors import ArtifactError, CudaError, UnsupportedError
from .grouped_gemm import Plan, group_gemm, group_gemm_fn
from .inventory import Explanation, explain, kernels, manifest, preload, verify

__all__ = [
    "ArtifactError",
    "CudaError",
    "Explanation",
    "Plan",
    "UnsupportedError",
    "__version__",
    "explain",
    "group_gemm",
    "group_gemm_fn",
    "kernels",
    "manifest",
    "preload",
    "verify",
]
