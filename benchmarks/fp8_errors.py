"""`python -m benchmarks.fp8_errors`: how exact sums of e4m3 products are, beside float64.

Ours with scales by block, by row and with one, and torch's `_scaled_mm` with exact and with fast sums; outputs in
bfloat16, whose rounding alone makes an error of 1.7e-3. "error" is that of all outputs, by their norm; "bias" the mean
of what is missing or too much, by the mean of what is right. Of data of both signs errors cancel; of one sign, as
behind an activation that gives no negative numbers, they do not.
"""

import argparse
from collections.abc import Callable

import torch

import gg_runtime

from .arguments import parsed
from .fp8_calls import E4M3, blocks

DATA: dict[str, Callable[..., torch.Tensor]] = {"both signs": torch.randn, "one sign": torch.rand}
DEPTHS = (2048, 7168)
ROWS, COLUMNS = 512, 3072


def errors(product: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    wrong = product.double() - right
    bias = (wrong * right.sign()).mean() / right.abs().mean()
    return float(torch.linalg.vector_norm(wrong) / torch.linalg.vector_norm(right)), float(bias)


def products(a: torch.Tensor, w: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Each product of a [ROWS, K] and w [COLUMNS, K], all scales 1."""

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device="cuda")

    offs = torch.tensor([ROWS], device="cuda", dtype=torch.int32)
    scales = {
        "scales of blocks": (ones(ROWS, blocks(a.shape[1])), ones(1, blocks(COLUMNS), blocks(a.shape[1]))),
        "scales of rows": (ones(ROWS), ones(1, COLUMNS)),
        "one scale": (ones(1), ones(1)),
    }

    def ours(of_a: torch.Tensor, of_b: torch.Tensor) -> torch.Tensor:
        given = {"offs": offs, "out_dtype": torch.bfloat16, "scale_a": of_a, "scale_b": of_b}
        return gg_runtime.grouped_mm(a, w[None].mT, **given)

    def torchs(fast: bool) -> torch.Tensor:
        multiply = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
        of_a, of_b = ones(ROWS, 1), ones(1, COLUMNS)
        return multiply(a, w.t(), of_a, of_b, out_dtype=torch.bfloat16, use_fast_accum=fast)

    found: dict[str, Callable[[], torch.Tensor]] = {name: lambda of=of: ours(*of) for name, of in scales.items()}
    return found | {"torch, exact sums": lambda: torchs(False), "torch, fast sums": lambda: torchs(True)}


def main() -> None:
    parsed(argparse.ArgumentParser(prog="python -m benchmarks.fp8_errors", description=__doc__))
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, gg_runtime {gg_runtime.__version__}, torch {torch.__version__}")
    for data, draw in DATA.items():
        for depth in DEPTHS:
            a, w = (draw(rows, depth, device="cuda").to(E4M3) for rows in (ROWS, COLUMNS))
            right = a.double() @ w.double().t()
            for name, product in products(a, w).items():
                error, bias = errors(product(), right)
                print(f"{data}, K {depth}: {name:18} error {error:.1e}  bias {bias:+.1e}")


if __name__ == "__main__":
    main()
