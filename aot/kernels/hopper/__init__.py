"""Warp-specialized kernels for sm_90, in Gluon: a producer warp and one or two consumer groups."""
