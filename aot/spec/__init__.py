"""What exists: the facts that the builder, the kernels and csrc share."""
