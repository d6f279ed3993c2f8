"""Operands by address and stride, loaded as pointers: any layout, any alignment."""
