"""How far e4m3 products are from those of the same inputs in float64, as a table that a failing test prints."""

import torch

from oracle import E4M3_SLACK

# Half a unit in the last place, relative to the value and at least.
ROUNDOFF = {
    torch.float32: (2**-24, 2**-150),
    torch.float16: (2**-11, 2**-25),
    torch.bfloat16: (2**-8, 2**-134),
    torch.float8_e4m3fn: (2**-4, 2**-10),
}


def relative_rms(C, exact) -> float:
    return ((C.double() - exact).square().mean() / exact.square().mean()).sqrt().item()


class ErrorTable:
    """One line a product: its greatest error as a share of what it may be, and its RMS error relative to its RMS."""

    def __init__(self):
        self.lines, self.worst = [f"{'product':50} {'of allowed':>10} {'RMS':>10}"], 0.0

    def add(self, name: str, C, A, B, factor: float = 1.0) -> None:
        """C = factor * A @ B, all of it."""
        a, b = A.double(), B.double()
        exact, magnitude = factor * (a @ b), abs(factor) * (a.abs() @ b.abs())
        relative, least = ROUNDOFF[C.dtype]
        # What is rounded is the sum with its own error.
        allowed = (relative * exact.abs() + E4M3_SLACK * magnitude) * (1 + relative) + least
        share = ((C.double() - exact).abs() / allowed).max().item()
        # NaN is more than allowed, too.
        self.worst = self.worst if share <= self.worst else share
        self.lines.append(f"{name:50} {share:10.3f} {relative_rms(C, exact):10.2e}")

    def check(self) -> None:
        assert self.worst <= 1, "\n" + "\n".join(self.lines)
