"""Kernels that move memory and multiply nothing."""
