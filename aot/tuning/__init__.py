"""A guest of the finished wheel: measures its kernels on a GPU and writes the tables that selection reads."""
