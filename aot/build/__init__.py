"""From variants to artifacts: compiled in processes of their own, and kept by content."""
