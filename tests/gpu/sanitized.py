"""Run under compute-sanitizer: a kernel of each layout and alignment on odd sizes, checked on the CPU."""

import gg_runtime
import torch
from cases import DTYPES, legal, representatives

SHAPES = [(33, 41, 57), (1, 70, 129), (67, 1, 31), (130, 65, 8)]


def integers(rows, columns, dtype):
    return torch.randint(-2, 3, (rows, columns)).to(dtype)


def check(A, B, C) -> None:
    torch.cuda.synchronize()
    for a, b, c in zip(A, B, C):
        assert torch.equal(c.cpu(), (a.float() @ b.float()).to(c.dtype))


def run(artifact, shapes) -> None:
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    shapes = [legal(artifact, shape) for shape in shapes]
    A = [integers(m, k, dtype) for m, n, k in shapes]
    B = [integers(k, n, dtype) for m, n, k in shapes]
    on_gpu_A = [a.t().contiguous().cuda().t() if layout[0] == "t" else a.cuda() for a in A]
    on_gpu_B = [b.t().contiguous().cuda().t() if layout in ("nt", "tt") else b.cuda() for b in B]
    check(A, B, gg_runtime.Plan(on_gpu_A, on_gpu_B, variant=artifact["name"]).run())


def main() -> None:
    torch.manual_seed(0)
    for artifact in representatives():
        run(artifact, SHAPES)
    A, B = [integers(9, 24, torch.bfloat16)] * 40, [integers(24, 16, torch.bfloat16)] * 40
    check(A, B, gg_runtime.group_gemm([a.cuda() for a in A], [b.cuda() for b in B]))
    print("all right", flush=True)
