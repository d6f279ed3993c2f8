"""The kernels, as Triton source. Each file holds one entry point of the file's name."""
