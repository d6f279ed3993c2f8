"""The kernels, as Triton source. Those named in variants.KERNELS are files with an entry point of the same name."""
