"""Run under compute-sanitizer: kernels of every family and form on small odd sizes, checked on the CPU."""

import torch

import gg_runtime
import ragged_k_oracle
import ragged_oracle
import scaled_k_oracle
import scaled_oracle
import stack_cases
import up_projection_oracle
from cases import (
    ARTIFACTS,
    DTYPES,
    FP8_STACK_ARTIFACTS,
    MIXED_ARTIFACTS,
    RAGGED_ARTIFACTS,
    RAGGED_K_ARTIFACTS,
    SCALED_ARTIFACTS,
    SCALED_K_ARTIFACTS,
    SCALED_LIST_ARTIFACTS,
    STACK_ARTIFACTS,
    UP_ARTIFACTS,
    device_sm,
    legal,
    representatives,
)
from ragged_cases import forced

SHAPES = [(33, 41, 57), (1, 70, 129), (67, 1, 31), (130, 65, 8)]
OFFS = torch.tensor([-3, 7, 7, 100, 40, 1 << 30, 90], dtype=torch.int32)  # the first 7, 93 and all other rows
COUNTS = torch.tensor([-3, 130, 7, 0, 1 << 30], dtype=torch.int32)
UPLOADED_GROUPS = 40  # more than any kernel takes in its parameters

# Name -> kernel, dtype, other facts that its config must have. Of those that do, the smallest tile is taken.
CASES = {
    "basic": ("basic", "fp16", lambda a: a["alignment"] == 16),
    "basic, any strides": ("basic", "fp16", lambda a: a["layout"] == "strided"),
    "basic, fp8": ("basic", "e4m3", lambda a: True),
    "tma": ("tma", "fp16", lambda a: True),
    "hopper, one consumer": ("hopper", "fp16", lambda a: a["block_m"] >= 64 and a["consumers"] == 1),
    "hopper, two consumers": ("hopper", "fp16", lambda a: a["consumers"] == 2),
    "hopper, tiles summed as their transposes": ("hopper", "fp16", lambda a: a["block_m"] < 64),
    "hopper, fp8": ("hopper", "e4m3", lambda a: True),
    "basic_ragged": ("basic_ragged", "fp16", lambda a: True),
    "hopper_tensor_scales": ("hopper_tensor_scales", "e4m3", lambda a: True),
    "basic_ragged, fp8": ("basic_ragged", "e4m3", lambda a: True),
    "hopper_ragged, one consumer": ("hopper_ragged", "fp16", lambda a: a["block_m"] >= 64 and a["consumers"] == 1),
    "hopper_ragged, two consumers": ("hopper_ragged", "fp16", lambda a: a["consumers"] == 2),
    "hopper_ragged, tiles summed as their transposes": ("hopper_ragged", "fp16", lambda a: a["block_m"] < 64),
    "hopper_ragged_fitted": ("hopper_ragged_fitted", "fp16", lambda a: True),
    "hopper_ragged, fp8": ("hopper_ragged", "e4m3", lambda a: True),
    "hopper_ragged_tensor_scales": ("hopper_ragged_tensor_scales", "e4m3", lambda a: True),
    "basic_ragged_row_scales": ("basic_ragged_row_scales", "e4m3", lambda a: True),
    "basic_ragged_block_scales": ("basic_ragged_block_scales", "e4m3", lambda a: True),
    "hopper_ragged_row_scales": ("hopper_ragged_row_scales", "e4m3", lambda a: a["block_m"] >= 64),
    "hopper_ragged_block_scales": ("hopper_ragged_block_scales", "e4m3", lambda a: a["block_m"] >= 64),
    "hopper_ragged_block_scales, tiles summed as their transposes": (
        "hopper_ragged_block_scales",
        "e4m3",
        lambda a: a["block_m"] < 64,
    ),
    "basic_gated": ("basic_gated", "fp16", lambda a: True),
    "hopper_gated, one consumer": ("hopper_gated", "fp16", lambda a: a["block_m"] >= 64 and a["consumers"] == 1),
    "hopper_gated, two consumers": ("hopper_gated", "fp16", lambda a: a["consumers"] == 2),
    "hopper_gated, tiles summed as their transposes": ("hopper_gated", "fp16", lambda a: a["block_m"] < 64),
    "hopper_gated_pairs": ("hopper_gated_pairs", "fp16", lambda a: True),
    "hopper_gather": ("hopper_gather", "fp16", lambda a: a["block_m"] >= 64),
    "hopper_gather, tiles summed as their transposes": ("hopper_gather", "fp16", lambda a: a["block_m"] < 64),
    "hopper_gather_gated": ("hopper_gather_gated", "fp16", lambda a: a["block_m"] >= 64),
    "hopper_gather_gated_pairs": ("hopper_gather_gated_pairs", "fp16", lambda a: True),
    "hopper_gated_kept": ("hopper_gated_kept", "fp16", lambda a: a["block_m"] >= 64),
    "hopper_gated_kept, tiles summed as their transposes": ("hopper_gated_kept", "fp16", lambda a: a["block_m"] < 64),
    "hopper_gather_gated_kept": ("hopper_gather_gated_kept", "fp16", lambda a: a["block_m"] >= 64),
    "basic_ragged_k": ("basic_ragged_k", "fp16", lambda a: True),
    "hopper_ragged_k, one consumer": ("hopper_ragged_k", "fp16", lambda a: a["consumers"] == 1),
    "hopper_ragged_k, two consumers": ("hopper_ragged_k", "fp16", lambda a: a["consumers"] == 2),
    "hopper_ragged_k, sums that are added": ("hopper_ragged_k", "fp16", lambda a: a["out_dtype"] == "fp32"),
    "hopper_gather_k, one consumer": ("hopper_gather_k", "fp16", lambda a: a["consumers"] == 1),
    "hopper_gather_k, two consumers": ("hopper_gather_k", "fp16", lambda a: a["consumers"] == 2),
    "hopper_gather_k_b, one consumer": ("hopper_gather_k_b", "fp16", lambda a: a["consumers"] == 1),
    "hopper_gather_k_b, sums that are added": ("hopper_gather_k_b", "fp16", lambda a: a["out_dtype"] == "fp32"),
    "basic_ragged_k_block_scales": ("basic_ragged_k_block_scales", "e4m3", lambda a: True),
    "hopper_ragged_k_block_scales, one consumer": (
        "hopper_ragged_k_block_scales",
        "e4m3",
        lambda a: a["consumers"] == 1,
    ),
    "hopper_ragged_k_block_scales, sums that are added": (
        "hopper_ragged_k_block_scales",
        "e4m3",
        lambda a: (a["consumers"], a["out_dtype"]) == (2, "fp32"),
    ),
    "hopper_ragged_k_block_scales, tiles of two parts": (
        "hopper_ragged_k_block_scales",
        "e4m3",
        lambda a: a["block_n"] == 256,
    ),
    "basic_stack": ("basic_stack", "fp16", lambda a: True),
    "hopper_stack, one consumer": ("hopper_stack", "fp16", lambda a: a["block_m"] >= 64 and a["consumers"] == 1),
    "hopper_stack, two consumers": ("hopper_stack", "fp16", lambda a: a["consumers"] == 2),
    "hopper_stack, tiles summed as their transposes": ("hopper_stack", "fp16", lambda a: a["block_m"] < 64),
    "hopper_stack, rows contiguous": ("hopper_stack", "fp16", lambda a: a["layout"] == "tn"),
    "basic_stack, fp8": ("basic_stack", "e4m3", lambda a: True),
    "hopper_stack, fp8": ("hopper_stack", "e4m3", lambda a: a["block_m"] >= 64),
    "hopper_stack_tensor_scales": ("hopper_stack_tensor_scales", "e4m3", lambda a: True),
    "basic_stack_row_scales": ("basic_stack_row_scales", "e4m3", lambda a: True),
    "basic_stack_block_scales": ("basic_stack_block_scales", "e4m3", lambda a: True),
    "hopper_stack_row_scales": ("hopper_stack_row_scales", "e4m3", lambda a: a["block_m"] >= 64),
    "hopper_stack_block_scales": ("hopper_stack_block_scales", "e4m3", lambda a: a["block_m"] >= 64),
    "hopper_stack_block_scales, tiles summed as their transposes": (
        "hopper_stack_block_scales",
        "e4m3",
        lambda a: a["block_m"] < 64,
    ),
    "basic_row_scales": ("basic_row_scales", "e4m3", lambda a: True),
    "basic_block_scales": ("basic_block_scales", "e4m3", lambda a: True),
    "hopper_row_scales": ("hopper_row_scales", "e4m3", lambda a: True),
    "hopper_block_scales, 256 columns": ("hopper_block_scales", "e4m3", lambda a: a["block_n"] == 256),
    "basic_ragged_block_scales, e5m2 times e4m3": ("basic_ragged_block_scales", "e5m2", lambda a: True),
    "hopper_ragged_row_scales, e5m2 times e4m3": ("hopper_ragged_row_scales", "e5m2", lambda a: a["block_m"] >= 64),
    "hopper_ragged_block_scales, e5m2 times e4m3": ("hopper_ragged_block_scales", "e5m2", lambda a: True),
    "hopper_ragged_row_scales, 192 columns": ("hopper_ragged_row_scales", "e4m3", lambda a: a["block_n"] == 192),
    "hopper_ragged_block_scales, 192 columns": ("hopper_ragged_block_scales", "e4m3", lambda a: a["block_n"] == 192),
    "hopper_ragged_k_block_scales, 192 columns": (
        "hopper_ragged_k_block_scales",
        "e4m3",
        lambda a: a["block_n"] == 192,
    ),
    "basic_ragged_k_block_scales, e5m2 times e4m3": ("basic_ragged_k_block_scales", "e5m2", lambda a: True),
    "hopper_ragged_k_block_scales, e5m2 times e4m3": ("hopper_ragged_k_block_scales", "e5m2", lambda a: True),
    "hopper_stack_gated": ("hopper_stack_gated", "fp16", lambda a: a["block_m"] >= 64),
    "hopper_stack_gated, tiles summed as their transposes": ("hopper_stack_gated", "fp16", lambda a: a["block_m"] < 64),
    "hopper_stack_gated_pairs": ("hopper_stack_gated_pairs", "fp16", lambda a: True),
}
# Run with a list that `pack` writes to device memory, too.
UPLOADED = ("basic", "hopper, one consumer", "hopper_block_scales, 256 columns")

# Tool -> cases that it cannot judge, each with the reason.
EXCLUDED: dict[str, dict[str, str]] = {
    "memcheck": {},
    # Seen on an H200: it reports the bytes by which the compiler tells each warp its part, written before and read
    # after a named barrier, in every warp-specialized kernel.
    "racecheck": {
        case: "its warps meet at barriers of some of them and at mbarriers, which racecheck does not follow"
        for case, (kernel, _, _) in CASES.items()
        if kernel.startswith("hopper")
    },
    "initcheck": {"tma": "it writes a descriptor by atomic exchanges, which initcheck takes for reads of new memory"},
    "synccheck": {},
}


def integers(rows, columns, dtype):
    return torch.randint(-2, 3, (rows, columns)).to(dtype)


def check(A, B, C) -> None:
    torch.cuda.synchronize()
    for a, b, c in zip(A, B, C):
        assert torch.equal(c.cpu().float(), (a.float() @ b.float()).to(c.dtype).float())


def on_gpu(array, transposed: bool):
    """`transposed`: with its last two dimensions laid out the other way round. No kernel of torch's runs."""
    return array.mT.contiguous().cuda().mT if transposed else array.cuda()


def poisoned(rows, columns, dtype):
    """An output that a copy has written: initcheck does not see what TMA writes, and would take it for unwritten."""
    return torch.full((rows, columns), float("nan")).to(dtype).cuda()


def run_list(artifact, shapes) -> None:
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    shapes = [legal(artifact, shape) for shape in shapes]
    A = [integers(m, k, dtype) for m, n, k in shapes]
    B = [integers(k, n, dtype) for m, n, k in shapes]
    on_gpu_A = [on_gpu(a, layout[0] == "t") for a in A]
    on_gpu_B = [on_gpu(b, layout in ("nt", "tt")) for b in B]
    out = [poisoned(m, n, DTYPES[artifact["out_dtype"]]) for m, n, k in shapes]
    plan = gg_runtime.Plan(on_gpu_A, on_gpu_B, out=out, variant=artifact["name"])
    assert plan.by_value == (len(shapes) <= 8)
    check(A, B, plan.run())


def run_ragged(artifact, shape) -> None:
    """Rows of 7 groups, of which 4 are empty, and nothing past them; with a bias."""
    dtype, layout, out_dtype = DTYPES[artifact["dtype"]], artifact["layout"], DTYPES[artifact["out_dtype"]]
    rows, n, k = legal(artifact, shape)
    A, B = integers(rows, k, dtype), torch.stack([integers(k, n, dtype) for _ in OFFS])
    bias = integers(len(OFFS), n, out_dtype)
    C = forced(
        artifact, on_gpu(A, layout[0] == "t"), on_gpu(B, layout in ("nt", "tt")), offs=OFFS.cuda(), bias=bias.cuda(),
        out=poisoned(rows, n, out_dtype), out_dtype=out_dtype,
    )  # fmt: skip
    torch.cuda.synchronize()
    ragged_oracle.assert_exact(C.cpu(), A, B, OFFS, bias=bias)


def run_plain_tiles(artifact) -> None:
    """Tiles of `hopper_ragged_fitted` that do not fit their group, between some that do. A bias would rule them out."""
    sizes, dtype = [250, 20, 384, 190, 128], DTYPES[artifact["dtype"]]
    rows, n, k = legal(artifact, (sum(sizes), 521, 520))
    A, B = integers(rows, k, dtype), torch.stack([integers(k, n, dtype) for _ in sizes])
    offs = torch.tensor(sizes).cumsum(0).int()
    out = poisoned(rows, n, DTYPES[artifact["out_dtype"]])
    C = forced(artifact, A.cuda(), on_gpu(B, artifact["layout"] == "nt"), offs=offs.cuda(), out=out)
    torch.cuda.synchronize()
    ragged_oracle.assert_exact(C.cpu(), A, B, offs)


def run_scaled(artifact, shape) -> None:
    """The same with scales by row or by block: powers of two, so that sums are exact. A may be of e5m2."""
    layout, out_dtype = artifact["layout"], DTYPES[artifact["out_dtype"]]
    rows, n, k = legal(artifact, shape)
    A = scaled_oracle.sparse_integers(rows, k, device="cpu").float().to(DTYPES[artifact["dtype"]])
    B = scaled_oracle.sparse_integers(len(OFFS), k, n, device="cpu")
    shapes = scaled_oracle.shapes(artifact["scaling"], rows, len(OFFS), n, k)
    scales = [scaled_oracle.powers_of_two(one, "cpu") for one in shapes]
    C = forced(
        artifact, on_gpu(A, layout[0] == "t"), on_gpu(B, layout in ("nt", "tt")), offs=OFFS.cuda(),
        out=poisoned(rows, n, out_dtype), out_dtype=out_dtype, scale_a=scales[0].cuda(), scale_b=scales[1].cuda(),
    )  # fmt: skip
    torch.cuda.synchronize()
    scaled_oracle.assert_exact(C.cpu(), A, B, OFFS, *scales)


def run_scaled_stack(artifact, shape) -> None:
    """Stacks in e4m3, masked with counts that hold anything and batched; NaN in the scales of rows past a count."""
    m, n, k = legal(artifact, shape)
    out_dtype, groups = DTYPES[artifact["out_dtype"]], len(COUNTS)
    A = scaled_oracle.sparse_integers(groups, m, k, device="cpu")
    B = scaled_oracle.sparse_integers(groups, k, n, device="cpu")
    shapes = scaled_oracle.stack_shapes(artifact["scaling"], groups, m, n, k)
    of_a, of_b = (scaled_oracle.powers_of_two(one, "cpu") for one in shapes)
    for counts in (None, COUNTS):
        if counts is not None and of_a.ndim > 1:
            for group, count in enumerate(scaled_oracle.clamped(counts, groups, m)):
                of_a[group, count:] = float("nan")
        out = torch.full((groups, m, n), -448.0).to(out_dtype).cuda()
        forced(
            artifact, A.cuda(), on_gpu(B, artifact["layout"] == "nt"), out=out, out_dtype=out_dtype,
            counts=None if counts is None else counts.cuda(), scale_a=of_a.cuda(), scale_b=of_b.cuda(),
        )  # fmt: skip
        torch.cuda.synchronize()
        scaled_oracle.assert_stack_exact(out.cpu(), A, B, counts, of_a, of_b, as_it_was=-448.0)


def run_scaled_list(artifact, shapes) -> None:
    out_dtype, described = DTYPES[artifact["out_dtype"]], artifact["addressing"] == "host_descriptors"
    shapes = [legal(artifact, shape) for shape in shapes]
    A = [scaled_oracle.sparse_integers(m, k, device="cpu") for m, n, k in shapes]
    B = [scaled_oracle.sparse_integers(k, n, device="cpu") for m, n, k in shapes]
    of = [[scaled_oracle.powers_of_two(one, "cpu") for one in scaled_oracle.list_shapes(artifact["scaling"], *shape)]
          for shape in shapes]  # fmt: skip
    plan = gg_runtime.Plan(
        [a.cuda() for a in A], [on_gpu(b, described) for b in B], out=[poisoned(m, n, out_dtype) for m, n, k in shapes],
        scale_a=[one.cuda() for one, _ in of], scale_b=[one.cuda() for _, one in of], variant=artifact["name"],
    )  # fmt: skip
    C = plan.run()
    torch.cuda.synchronize()
    for c, a, b, (of_a, of_b) in zip(C, A, B, of):
        scaled_oracle.assert_exact(c.cpu(), *scaled_oracle.of_one(a, b, of_a, of_b))


def run_ragged_k(artifact, shape) -> None:
    """K of 7 groups, of which 4 are empty; sums of float32 are added to the output."""
    dtype, layout, out_dtype = DTYPES[artifact["dtype"]], artifact["layout"], DTYPES[artifact["out_dtype"]]
    total, n, m = shape
    m, n, _ = legal(artifact, (m, n, total))
    A, B = integers(m, total, dtype), integers(total, n, dtype)
    before = torch.stack([integers(m, n, out_dtype) for _ in OFFS])
    adds = out_dtype is torch.float32
    C = before.cuda() if adds else torch.full_like(before, float("nan")).cuda()
    given, index = {}, torch.arange(total - 1, -1, -1)  # rows the other way round
    if artifact["source"] != "rows":
        given["a_index" if artifact["source"] == "indexed" else "b_index"] = index.cuda()
    forced(
        artifact, on_gpu(A, layout[0] == "t"), on_gpu(B, layout in ("nt", "tt")), offs=OFFS.cuda(), out=C,
        alpha=0.5, beta=1.0 if adds else 0.0, **given,
    )  # fmt: skip
    torch.cuda.synchronize()
    A, B = A[:, index] if "a_index" in given else A, B[index] if "b_index" in given else B
    given = {"beta": 1.0, "before": before} if adds else {}
    ragged_k_oracle.assert_exact(C.cpu(), A, B, OFFS, alpha=0.5, **given)


def run_scaled_k(artifact, shape) -> None:
    """The same with scales of blocks, and ends that are whole blocks where the kernel needs them. A may be of e5m2."""
    layout, out_dtype = artifact["layout"], DTYPES[artifact["out_dtype"]]
    total, n, m = shape
    m, n, _ = legal(artifact, (m, n, total))
    A = scaled_oracle.sparse_integers(m, total, device="cpu").float().to(DTYPES[artifact["dtype"]])
    B = scaled_oracle.sparse_integers(total, n, device="cpu")
    scales = scaled_k_oracle.make_scales(m, n, scaled_k_oracle.most_blocks(total, len(OFFS)), "cpu")
    adds = artifact["addressing"] == "host_descriptors" and out_dtype is torch.float32
    before = torch.stack([integers(m, n, out_dtype) for _ in OFFS])
    C = before.cuda() if adds else torch.full_like(before, float("nan")).cuda()
    alignment = 128 if artifact["addressing"] == "host_descriptors" else 1
    forced(
        artifact, on_gpu(A, layout[0] == "t"), on_gpu(B, layout in ("nt", "tt")), offs=OFFS.cuda(), out=C, alpha=0.5,
        beta=1.0 if adds else 0.0, scale_a=scales[0].cuda(), scale_b=scales[1].cuda(), k_alignment=alignment,
    )  # fmt: skip
    torch.cuda.synchronize()
    given = {"beta": 1.0, "before": before} if adds else {}
    scaled_k_oracle.assert_exact(C.cpu(), A, B, OFFS, *scales, alignment=alignment, alpha=0.5, **given)


def run_up(artifact, shape) -> None:
    """The same with rows by an index that holds anything and with a gated activation, where the kernel has them."""
    dtype, is_gated = DTYPES[artifact["dtype"]], artifact["epilogue"] != "linear"
    rows, n, k = legal(artifact, shape)
    n = -(-n // 16) * 16  # halves of whole 16 bytes
    order = "interleaved" if artifact["epilogue"] == "gated_pairs" else "gate_first"
    A, B = integers(rows, k, dtype), torch.stack([integers(k, n, dtype) for _ in OFFS])
    bias, index = integers(len(OFFS), n, dtype), None
    if artifact["source"] != "rows":
        index = torch.randint(-(2**62), 2**62, (rows,))
        index[::2] = torch.randint(-2, rows + 2, index[::2].shape)
    kept = poisoned(rows, n, dtype) if artifact["epilogue"] == "gated_kept" else None
    C = forced(
        artifact, A.cuda(), on_gpu(B, artifact["layout"] == "nt"), offs=OFFS.cuda(), bias=bias.cuda(),
        out=poisoned(rows, n // 2 if is_gated else n, dtype), a_index=None if index is None else index.cuda(),
        activation="swiglu" if is_gated else None, gate_up=order, preactivation=kept,
    )  # fmt: skip
    torch.cuda.synchronize()
    z = up_projection_oracle.sums(A, B, OFFS, bias=bias, index=index)
    assert kept is None or torch.equal(kept.cpu().double(), z)
    if is_gated:
        up_projection_oracle.assert_one_rounding(C.cpu(), z, "swiglu", order)
    else:
        assert torch.equal(C.cpu().double(), z)


def run_stack(artifact, shape) -> None:
    """Masked, with counts that hold anything, and batched; with a bias, and an activation where the kernel has one."""
    dtype, layout, gated = DTYPES[artifact["dtype"]], artifact["layout"], stack_cases.is_gated(artifact)
    m, n, k = stack_cases.legal(artifact, *shape, packed=True)
    order = stack_cases.orders(artifact)[0]
    A, B = (torch.stack([integers(*size, dtype) for _ in COUNTS]) for size in ((m, k), (k, n)))
    bias = integers(len(COUNTS), n, dtype)
    for counts in (COUNTS, None):
        out = torch.full((len(COUNTS), m, n // 2 if gated else n), stack_cases.AS_IT_WAS).to(dtype).cuda()
        forced(
            artifact, on_gpu(A, layout[0] == "t"), on_gpu(B, layout in ("nt", "tt")), bias=bias.cuda(), out=out,
            counts=None if counts is None else counts.cuda(), activation="swiglu" if gated else None, gate_up=order,
        )  # fmt: skip
        torch.cuda.synchronize()
        if gated:
            stack_cases.assert_activated(out.cpu(), A, B, counts, bias, "swiglu", order)
        else:
            stack_cases.assert_exact(out.cpu(), A, B, counts, bias)


def candidates(case: str) -> list[dict]:
    """The configs of this GPU's own architecture that have the facts of a case."""
    kernel, dtype, has_facts = CASES[case]
    wanted = {"kernel": kernel, "dtype": dtype, "sm": device_sm()}
    return [artifact for artifact in ARTIFACTS if wanted.items() <= artifact.items() and has_facts(artifact)]


def cases_here() -> list[str]:
    """The cases that this GPU has kernels for; on sm_90, every one whose kernel has a config of its own there."""
    found = [case for case in CASES if candidates(case)]
    own = {artifact["kernel"] for artifact in ARTIFACTS if artifact["sm"] == device_sm()}
    wanted = [case for case, (kernel, _, _) in CASES.items() if kernel in own]
    assert found and (device_sm() != 90 or found == wanted), set(wanted) - set(found)
    return found


def artifact_of(case: str) -> dict:
    """The smallest tile among a case's configs."""
    return min(candidates(case), key=lambda a: (a["block_m"] * a["block_n"] * a["block_k"], a["name"]))


def run_case(case: str) -> None:
    artifact = artifact_of(case)
    print(f"case: {case}: {artifact['name']}", flush=True)  # the reports that follow are about it
    if artifact in SCALED_K_ARTIFACTS:
        run_scaled_k(artifact, (304, 41, 57))
        return
    if artifact["extents"] == "k_ends":
        run_ragged_k(artifact, (131, 41, 57))
        return
    if artifact in FP8_STACK_ARTIFACTS:
        run_scaled_stack(artifact, (131, 41, 157))
        return
    if artifact["extents"] == "m_counts":
        run_stack(artifact, (131, 41, 57))
        return
    if artifact in SCALED_ARTIFACTS or artifact in MIXED_ARTIFACTS:
        run_scaled(artifact, (131, 41, 157))
        return
    if artifact in SCALED_LIST_ARTIFACTS:
        run_scaled_list(artifact, SHAPES)
        if case in UPLOADED:
            print(f"case: {case}, uploaded", flush=True)
            run_scaled_list(artifact, [(9 + i % 3, 32, 144) for i in range(UPLOADED_GROUPS)])
        return
    if artifact["extents"] == "m_ends":
        (run_up if artifact in UP_ARTIFACTS else run_ragged)(artifact, (131, 41, 57))
        if artifact["row_step"]:
            run_plain_tiles(artifact)
        return
    run_list(artifact, SHAPES)
    if case in UPLOADED:
        print(f"case: {case}, uploaded", flush=True)
        run_list(artifact, [(9 + i % 3, 24, 16) for i in range(UPLOADED_GROUPS)])


def run_layouts() -> None:
    """A kernel of each layout and alignment: what memcheck is fast enough for."""
    for artifact in representatives():
        run_list(artifact, SHAPES)
    for dtype in ("fp16", "e4m3"):
        for artifact in representatives(dtype, RAGGED_ARTIFACTS):
            run_ragged(artifact, (131, 41, 57))
    for artifact in representatives("fp16", RAGGED_K_ARTIFACTS):
        run_ragged_k(artifact, (131, 41, 57))
    for artifact in representatives("fp16", UP_ARTIFACTS):
        run_up(artifact, (131, 41, 57))
    for artifact in representatives("fp16", STACK_ARTIFACTS):
        run_stack(artifact, (131, 41, 57))
    for artifact in representatives("e4m3", SCALED_ARTIFACTS):
        run_scaled(artifact, (131, 41, 157))
    for artifact in representatives("e5m2", [one for one in MIXED_ARTIFACTS if one["scaling"] != "tensor"]):
        run_scaled(artifact, (131, 41, 157))
    for artifact in representatives("e4m3", FP8_STACK_ARTIFACTS):
        run_scaled_stack(artifact, (131, 41, 157))
    for artifact in representatives("e4m3", SCALED_LIST_ARTIFACTS):
        run_scaled_list(artifact, SHAPES)
    for artifact in representatives("e4m3", SCALED_K_ARTIFACTS):
        run_scaled_k(artifact, (304, 41, 57))


def run_routing() -> None:
    """Both routing kernels of each number of bins, with ids that are no experts; then sums by what they give."""
    for experts, tokens in ((5, 300), (300, 150), (700, 80)):
        ids = torch.randint(-3, experts + 3, (tokens, 8), dtype=torch.int32)
        expected = gg_runtime.route(ids, experts)
        routing = gg_runtime.route(ids.cuda(), experts)
        torch.cuda.synchronize()
        for got, want in zip(routing, expected):
            assert torch.equal(got.cpu(), want)
        for columns in (64, 41):  # with vectors and without
            y, weights = integers(tokens * 8, columns, torch.bfloat16), integers(tokens, 8, torch.float32)
            sums = gg_runtime.combine(y.cuda(), routing.inverse, weights.cuda())
            torch.cuda.synchronize()
            assert torch.equal(sums.cpu(), gg_runtime.combine(y, expected.inverse, weights))


def run_picked() -> None:
    """A layer in fp8 whose up projection picks rows by the index, beside one that takes them in order, and one whose up
    projection activates and quantizes too, which a bias would keep it from."""
    tokens, k, experts, hidden, inner = 1000, 4, 4, 272, 128
    w1, w2 = (integers(experts * n, depth, torch.float8_e4m3fn).view(experts, n, depth).cuda()
              for n, depth in ((2 * inner, hidden), (hidden, inner)))  # fmt: skip
    x, ids = integers(tokens, hidden, torch.bfloat16).cuda(), torch.randint(-1, experts + 1, (tokens, k)).cuda()
    scales = {"w1_scale": torch.ones(experts, 2, 3).cuda(), "w2_scale": torch.ones(experts, 3, 1).cuda()}
    bias = torch.zeros(experts, 2 * inner, dtype=torch.bfloat16).cuda()
    sums = []
    for kernel, options in (
        ("hopper_gather_block_scales", {"b1": bias}),
        ("hopper_ragged_block_scales", {"b1": bias, "apply_router_weight_on_input": True}),
        ("hopper_gather_quantized", {}),
    ):
        plan = gg_runtime.ExpertsPlan(x, w1.mT, w2.mT, torch.ones(tokens, k).cuda(), ids, **scales, **options)
        assert plan.variants[3].startswith(kernel), plan.variants
        sums.append(plan.run())
    torch.cuda.synchronize()
    picked, ordered, quantized = (each.cpu().double() for each in sums)
    assert torch.equal(picked, ordered)
    assert float((quantized - picked).norm() / picked.norm()) < 0.02


def main(tool: str) -> None:
    torch.manual_seed(0)
    excluded = EXCLUDED[tool]
    assert excluded.keys() <= CASES.keys()
    cases = [case for case in cases_here() if case not in excluded]
    for case in cases:
        run_case(case)
    print("case: routing", flush=True)
    run_routing()
    if tool in ("memcheck", "synccheck") and device_sm() == 90:
        print("case: rows that are picked, with scales", flush=True)
        run_picked()
    if tool == "memcheck":
        run_layouts()
    print(f"all right: {len(cases) + 1} cases", flush=True)
