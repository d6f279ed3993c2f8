"""Epilogues: what becomes of a tile's sums before they are rounded and stored. A file for each of EPILOGUES."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .gated import Gated
from .gated_kept import GatedKept
from .gated_pairs import GatedPairs
from .gated_quantized import GatedQuantized
from .linear import Linear


@gluon.jit
def make_epilogue(EPILOGUE: gl.constexpr):
    """The policy of that name for the `hopper` kernels; linear.py says what it has to answer."""
    if EPILOGUE == "linear":
        return Linear()
    elif EPILOGUE == "gated":
        return Gated()
    elif EPILOGUE == "gated_kept":
        return GatedKept()
    elif EPILOGUE == "gated_quantized":
        return GatedQuantized()
    else:
        gl.static_assert(EPILOGUE == "gated_pairs", "aot/kernels/epilogues/__init__.py has no such epilogue")
        return GatedPairs()
