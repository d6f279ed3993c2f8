"""The checks of guard_pages.py for fp8 kernels with scales: of rows and columns, of blocks, or one."""

import torch

import fp8_experts_oracle
import gg_runtime
import scaled_oracle
from cases import DTYPES, OF_B, legal
from ragged_cases import forced
from scaled_oracle import powers_of_two, sparse_integers

GARBAGE = [-1, 2**31 - 1, 5]
AS_IT_WAS = -448.0  # in every stack before a call; all dtypes hold it


def integers(array) -> None:
    array.copy_(sparse_integers(*array.shape, device="cuda").float())


def placed_scales(pages, shapes, at_end) -> list:
    """Of rows and of columns of the product, each between pages of its own."""
    scales = [page.array(*shape, dtype=torch.float32, at_end=at_end) for page, shape in zip(pages, shapes)]
    for scale in scales:
        scale.copy_(powers_of_two(scale.shape, "cuda"))
    return scales


def matrices(artifact, pages, at_end, *shapes) -> tuple:
    """A, B^T and C, filled."""
    dtypes = [DTYPES[one] for one in (artifact["dtype"], OF_B[artifact["dtype"]], artifact["out_dtype"])]
    A, B, C = (page.array(*shape, dtype=dtype, at_end=at_end) for page, shape, dtype in zip(pages, shapes, dtypes))
    integers(A)
    integers(B)
    return A, B, C


def edge(artifact, row_tiles: int) -> tuple[int, int, int]:
    """One past so many row tiles, a column tile and two blocks of K."""
    return legal(artifact, (row_tiles * artifact["block_m"] + 1, artifact["block_n"] + 1, 257))


def check_rows(artifact, pages, at_end) -> None:
    """The rows once filled by the groups to the last one, once ended by a tail; offs that hold anything."""
    rows, n, k = edge(artifact, 2)
    A, B, C = matrices(artifact, pages, at_end, (rows, k), (3, n, k), (rows, n))
    offs = pages[3].array(3, dtype=torch.int32, at_end=at_end)
    mode, block = artifact["scaling"], artifact["block_m"]
    shapes = ((1,), (3,)) if mode == "tensor" else scaled_oracle.shapes(mode, rows, 3, n, k)
    of = placed_scales(pages[4:], shapes, at_end)
    known = [of[0].expand(rows), of[1][:, None].expand(3, n)] if mode == "tensor" else of
    for ends in ([1, block + 1, rows], [block - 1, block - 1, rows - 1], GARBAGE):
        offs.copy_(torch.tensor(ends))
        C.copy_(torch.full(C.shape, float("nan")))
        forced(artifact, A, B.mT, offs=offs, out=C, out_dtype=C.dtype, scale_a=of[0], scale_b=of[1])
        torch.cuda.synchronize()
        scaled_oracle.assert_exact(C, A, B.mT, offs, *known)


def check_stack(artifact, pages, at_end) -> None:
    """Masked and batched, as in guard_pages.py."""
    m, n, k = edge(artifact, 1)
    A, B, C = matrices(artifact, pages, at_end, (3, m, k), (3, n, k), (3, m, n))
    counts = pages[3].array(3, dtype=torch.int32, at_end=at_end)
    of = placed_scales(pages[4:], scaled_oracle.stack_shapes(artifact["scaling"], 3, m, n, k), at_end)
    for stated in (None, [1, artifact["block_m"], m], [m, -5, 1 << 30], [1 << 30, m - 1, 1]):
        counts.copy_(torch.tensor(stated or [0, 0, 0]))
        C.copy_(torch.full(C.shape, AS_IT_WAS))
        given = counts if stated else None
        forced(artifact, A, B.mT, counts=given, out=C, scale_a=of[0], scale_b=of[1])
        torch.cuda.synchronize()
        scaled_oracle.assert_stack_exact(C, A, B.mT, given, *of, as_it_was=AS_IT_WAS)


def check_list(artifact, pages, at_end) -> None:
    m, n, k = edge(artifact, 1)
    A, B, C = matrices(artifact, pages, at_end, (m, k), (n, k), (m, n))
    of = placed_scales(pages[4:], scaled_oracle.list_shapes(artifact["scaling"], m, n, k), at_end)
    C.copy_(torch.full(C.shape, float("nan")))
    scales = {"scale_a": [of[0]], "scale_b": [of[1]]}
    gg_runtime.Plan([A], [B.mT], out=[C], variant=artifact["name"], **scales).run()
    torch.cuda.synchronize()
    scaled_oracle.assert_exact(C, *scaled_oracle.of_one(A, B.mT, *of))


def check_experts(pages, at_end) -> None:
    """A layer with e4m3 weights and scales of blocks, for each kernel of the up projection: with batch_invariant few
    rows take the kernels of many."""
    tokens, k, experts, hidden, inner = 300, 4, 4, 272, 128
    bias = torch.zeros(experts, 2 * inner, device="cuda", dtype=torch.bfloat16)
    for kernel, options in (
        ("hopper_gather_quantized", {}),
        ("hopper_gather_block_scales", {"b1": bias}),
        ("hopper_ragged_block_scales", {"b1": bias, "apply_router_weight_on_input": True}),
    ):
        x = pages[0].array(tokens, hidden, dtype=torch.bfloat16, at_end=at_end)
        w1, w2 = (
            page.array(experts, n, depth, dtype=torch.float8_e4m3fn, at_end=at_end)
            for page, n, depth in ((pages[1], 2 * inner, hidden), (pages[2], hidden, inner))
        )
        s1, s2 = (
            page.array(experts, *blocks, dtype=torch.float32, at_end=at_end)
            for page, blocks in ((pages[3], (2, 3)), (pages[4], (3, 1)))
        )
        out = pages[5].array(tokens, hidden, dtype=torch.bfloat16, at_end=at_end)
        weights = pages[6].array(tokens, k, dtype=torch.float32, at_end=at_end)
        ids = pages[7].array(tokens, k, dtype=torch.int64, at_end=at_end)
        needed = gg_runtime.fused_experts_workspace(tokens, k, experts, hidden, inner, use_fp8_w8a8=True)
        workspace = pages[8].array(needed, dtype=torch.uint8, at_end=at_end)
        for array in (x, w1, w2, s1, s2, weights):
            array.copy_(torch.rand(array.shape, device="cuda") / 8 + 1 / 64)
        ids.copy_(torch.randint(-(2**62), 2**62, ids.shape, device="cuda"))
        ids[::2] = torch.randint(-2, experts + 2, ids[::2].shape, device="cuda")
        workspace.fill_(0xFF)  # NaN, as numbers of 16 and of 8 bits
        given = {"w1_scale": s1, "w2_scale": s2, **options}
        memory = {"out": out, "workspace": workspace, "batch_invariant": True}
        plan = gg_runtime.ExpertsPlan(x, w1.mT, w2.mT, weights, ids, **memory, **given)
        assert any(name.startswith(kernel) for name in plan.variants), plan.variants
        plan.run()
        torch.cuda.synchronize()
        fp8_experts_oracle.assert_layer(out, x, w1.mT, w2.mT, weights, ids, **given)
