"""Run under compute-sanitizer: a kernel of each layout and alignment on odd sizes, checked on the CPU."""

import gg_runtime
import ragged_oracle
import torch
from cases import DTYPES, RAGGED_ARTIFACTS, legal, representatives
from ragged_cases import forced

SHAPES = [(33, 41, 57), (1, 70, 129), (67, 1, 31), (130, 65, 8)]
OFFS = torch.tensor([-3, 7, 7, 100, 40, 1 << 30, 90], dtype=torch.int32)  # the first 7, 93 and all other rows


def integers(rows, columns, dtype):
    return torch.randint(-2, 3, (rows, columns)).to(dtype)


def check(A, B, C) -> None:
    torch.cuda.synchronize()
    for a, b, c in zip(A, B, C):
        assert torch.equal(c.cpu(), (a.float() @ b.float()).to(c.dtype))


def on_gpu(array, transposed: bool):
    """`transposed`: with its last two dimensions laid out the other way round."""
    return array.mT.contiguous().cuda().mT if transposed else array.cuda()


def run_list(artifact, shapes) -> None:
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    shapes = [legal(artifact, shape) for shape in shapes]
    A = [integers(m, k, dtype) for m, n, k in shapes]
    B = [integers(k, n, dtype) for m, n, k in shapes]
    on_gpu_A = [on_gpu(a, layout[0] == "t") for a in A]
    on_gpu_B = [on_gpu(b, layout in ("nt", "tt")) for b in B]
    check(A, B, gg_runtime.Plan(on_gpu_A, on_gpu_B, variant=artifact["name"]).run())


def run_ragged(artifact, shape) -> None:
    """Rows of 7 groups, of which 4 are empty, and nothing past them."""
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    rows, n, k = legal(artifact, shape)
    A, B = integers(rows, k, dtype), torch.stack([integers(k, n, dtype) for _ in OFFS])
    on_gpu_B = on_gpu(B, layout in ("nt", "tt"))
    out_dtype = DTYPES[artifact["out_dtype"]]
    C = forced(artifact, on_gpu(A, layout[0] == "t"), on_gpu_B, offs=OFFS.cuda(), out_dtype=out_dtype)
    torch.cuda.synchronize()
    ragged_oracle.assert_exact(C.cpu(), A, B, OFFS)


def main() -> None:
    torch.manual_seed(0)
    for artifact in representatives():
        run_list(artifact, SHAPES)
    for dtype in ("fp16", "e4m3"):
        for artifact in representatives(dtype, RAGGED_ARTIFACTS):
            run_ragged(artifact, (131, 41, 57))
    A, B = [integers(9, 24, torch.bfloat16)] * 40, [integers(24, 16, torch.bfloat16)] * 40
    check(A, B, gg_runtime.group_gemm([a.cuda() for a in A], [b.cuda() for b in B]))
    print("all right", flush=True)
