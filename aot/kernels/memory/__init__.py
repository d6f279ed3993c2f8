"""Kernels that move words and multiply nothing."""
