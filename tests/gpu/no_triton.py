"""Makes `import triton` fail, as in the deployments that the wheel is for."""

import sys


def install() -> None:
    """None in sys.modules is how Python records that a module must not be imported; torch asks before it imports."""
    sys.modules["triton"] = None
