"""Operands by TMA, with descriptors that each CTA makes for itself."""
