"""The embedded kernels' facts, by name."""

import gg_runtime

KERNELS = {kernel["name"]: kernel for kernel in gg_runtime.kernels()}
