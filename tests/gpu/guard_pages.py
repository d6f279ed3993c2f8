"""Run in a child: every kernel on arrays that end, then start, where the mapped pages do; a stray byte is a fault."""

import ctypes
import functools
import math

import torch

import foreign_memory
import gg_runtime
import guard_fp8
import ragged_k_oracle
import ragged_oracle
import scaled_k_oracle
import stack_cases
import up_projection_oracle
from cases import (
    DTYPES,
    FP8_STACK_ARTIFACTS,
    LIST_ARTIFACTS,
    MIXED_ARTIFACTS,
    OF_B,
    RAGGED_ARTIFACTS,
    RAGGED_K_ARTIFACTS,
    SCALED_ARTIFACTS,
    SCALED_K_ARTIFACTS,
    SCALED_LIST_ARTIFACTS,
    STACK_ARTIFACTS,
    UP_ARTIFACTS,
    device_sm,
    legal,
)
from experts_oracle import assert_layer
from ragged_cases import forced

ARRAY_BYTES = 2 << 20  # of the largest array that is placed
PINNED, DEVICE, READ_WRITE = 1, 1, 3


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def cuda(name: str, *arguments) -> None:
    status = getattr(driver(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} returned {status}")


class Pages:
    """Device memory between two reserved, unmapped ranges of its own size."""

    def __init__(self):
        here = Location(DEVICE, 0)
        properties = Properties(type=PINNED, location=here)
        granularity, base, handle = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        cuda("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), 0)
        self.size = -(-ARRAY_BYTES // granularity.value) * granularity.value
        size, zero = ctypes.c_size_t(self.size), ctypes.c_uint64(0)
        cuda("cuMemAddressReserve", ctypes.byref(base), ctypes.c_size_t(3 * self.size), ctypes.c_size_t(0), zero, zero)
        self.start = base.value + self.size
        cuda("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), zero)
        cuda("cuMemMap", ctypes.c_uint64(self.start), size, ctypes.c_size_t(0), handle, zero)
        access = Access(here, READ_WRITE)
        cuda("cuMemSetAccess", ctypes.c_uint64(self.start), size, ctypes.byref(access), ctypes.c_size_t(1))

    def array(self, *shape, dtype, at_end, transposed=False):
        """An array without gaps, at one end of the pages; `transposed` exchanges its last two dimensions."""
        if transposed:
            *groups, rows, columns = shape
            return self.array(*groups, columns, rows, dtype=dtype, at_end=at_end).transpose(-2, -1)
        size = dtype.itemsize * math.prod(shape)
        return foreign_memory.tensor(self.start + (self.size - size if at_end else 0), shape, dtype)


def fill(inputs, output) -> None:
    for array in inputs:
        array.copy_(torch.randint(-2, 3, array.shape, device="cuda").float())
    output.fill_(float("nan"))


def operands(artifact, pages, at_end, rows, n, k, groups=()):
    """A [rows, k], B [*groups, k, n] and the output, filled."""
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    A = pages[0].array(rows, k, dtype=dtype, at_end=at_end, transposed=layout[0] == "t")
    B = pages[1].array(*groups, k, n, dtype=dtype, at_end=at_end, transposed=layout in ("nt", "tt"))
    C = pages[2].array(rows, n, dtype=DTYPES[artifact["out_dtype"]], at_end=at_end)
    fill((A, B), C)
    return A, B, C


def edge(artifact, row_tiles: int) -> tuple[int, int, int]:
    """One past so many row tiles, one column tile and one step."""
    return legal(artifact, (row_tiles * artifact["block_m"] + 1, artifact["block_n"] + 1, artifact["block_k"] + 1))


def check_list(artifact, pages, at_end) -> None:
    A, B, C = operands(artifact, pages, at_end, *edge(artifact, 1))
    gg_runtime.Plan([A], [B], out=[C], variant=artifact["name"]).run()
    torch.cuda.synchronize()
    assert torch.equal(C.float(), (A.float() @ B.float()).to(C.dtype).float()), artifact["name"]


def check_ragged(artifact, pages, at_end) -> None:
    """The rows once filled by the groups to the last one, once ended by a tail."""
    A, B, C = operands(artifact, pages, at_end, *edge(artifact, 2), groups=(3,))
    offs = pages[3].array(3, dtype=torch.int32, at_end=at_end)
    bias = pages[4].array(3, C.shape[1], dtype=C.dtype, at_end=at_end)
    bias.copy_(torch.randint(-2, 3, bias.shape, device="cuda"))
    rows, block = A.shape[0], artifact["block_m"]
    for ends in ([1, block + 1, rows], [block - 1, block - 1, rows - 1]):
        offs.copy_(torch.tensor(ends))
        C.fill_(float("nan"))
        forced(artifact, A, B, offs=offs, bias=bias, out=C)
        torch.cuda.synchronize()
        ragged_oracle.assert_exact(C, A, B, offs, bias=bias)


def check_ragged_k(artifact, pages, at_end) -> None:
    """K once filled by the groups to the last one, once ended by a tail; float32 sums are added to the output too."""
    dtype, out_dtype, layout = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]], artifact["layout"]
    total, block = 2 * artifact["block_k"] + 1, artifact["block_k"]
    m, n, _ = legal(artifact, (artifact["block_m"] + 1, artifact["block_n"] + 1, total))
    of_a, of_b = (total // 2 if artifact["source"] == side else total for side in ("indexed", "indexed_b"))
    A = pages[0].array(m, of_a, dtype=dtype, at_end=at_end, transposed=layout[0] == "t")
    B = pages[1].array(of_b, n, dtype=dtype, at_end=at_end, transposed=layout in ("nt", "tt"))
    C = pages[2].array(3, m, n, dtype=out_dtype, at_end=at_end)
    places = pages[5].array(total, dtype=torch.int64, at_end=at_end)
    places.copy_(torch.randint(-(2**62), 2**62, places.shape, device="cuda"))
    places[::2] = torch.randint(-2, total // 2 + 2, places[::2].shape, device="cuda")
    by_index = {"rows": {}, "indexed": {"a_index": places}, "indexed_b": {"b_index": places}}[artifact["source"]]
    offs = pages[3].array(3, dtype=torch.int32, at_end=at_end)
    alpha = pages[4].array(1, dtype=torch.float32, at_end=at_end)
    alpha.fill_(0.5)
    fill((A, B), C)
    for ends in ([1, block + 1, total], [block - 1, block - 1, total - 1]):
        offs.copy_(torch.tensor(ends))
        for beta in (0.0, 1.0) if out_dtype is torch.float32 else (0.0,):
            before = torch.randint(-9, 9, C.shape, device="cuda").float()
            C.copy_(before if beta else torch.full_like(before, float("nan")))
            forced(artifact, A, B, offs=offs, out=C, alpha=alpha, beta=beta, **by_index)
            torch.cuda.synchronize()
            seen = picked(A.mT, places).mT if of_a < total else A, picked(B, places) if of_b < total else B
            ragged_k_oracle.assert_exact(C, *seen, offs, alpha=0.5, beta=beta, before=before)


def check_scaled_k(artifact, pages, at_end) -> None:
    """The same with scales of blocks: as many as K has, and as many as groups may have."""
    dtype, layout = artifact["dtype"], artifact["layout"]
    dtypes = [DTYPES[one] for one in (dtype, OF_B[dtype], artifact["out_dtype"])]
    m, n, total = legal(artifact, (artifact["block_m"] + 1, artifact["block_n"] + 1, 257))
    A = pages[0].array(m, total, dtype=dtypes[0], at_end=at_end, transposed=layout[0] == "t")
    B = pages[1].array(total, n, dtype=dtypes[1], at_end=at_end, transposed=layout in ("nt", "tt"))
    C = pages[2].array(3, m, n, dtype=dtypes[2], at_end=at_end)
    offs = pages[3].array(3, dtype=torch.int32, at_end=at_end)
    alignment = 128 if artifact["addressing"] == "host_descriptors" else 1
    fill((A, B), C)
    for ends in ([1, 129, total], [127, 127, total - 1], [-1, 2**31 - 1, 5]):
        offs.copy_(torch.tensor(ends))
        for blocks in (-(-total // 128), scaled_k_oracle.most_blocks(total, 3)):
            shapes = (m, blocks), (blocks, n)
            scales = [page.array(*shape, dtype=torch.float32, at_end=at_end) for page, shape in zip(pages[4:], shapes)]
            for scale, values in zip(scales, scaled_k_oracle.make_scales(m, n, blocks, "cuda")):
                scale.copy_(values)
            C.fill_(float("nan"))
            given = {"scale_a": scales[0], "scale_b": scales[1], "k_alignment": alignment}
            forced(artifact, A, B, offs=offs, out=C, **given)
            torch.cuda.synchronize()
            scaled_k_oracle.assert_exact(C, A, B, offs, *scales, alignment=alignment)


def picked(rows, index):
    """Rows by an index, zeros where it names none."""
    inside = (index >= 0) & (index < len(rows))
    return torch.where(inside[:, None], rows[torch.where(inside, index, 0)], 0)


def check_up(artifact, pages, at_end) -> None:
    """The same with rows by an index that holds anything, and with gate and up where they lie."""
    rows, n, k = edge(artifact, 2)
    n, is_gated = -(-n // 16) * 16, artifact["epilogue"] != "linear"  # halves of whole 16 bytes
    dtype, by_columns = DTYPES[artifact["dtype"]], artifact["layout"] == "nt"
    keeps = artifact["epilogue"] == "gated_kept"
    orders = ["gate_first", "up_first", "interleaved"] if by_columns and not keeps else ["gate_first", "up_first"]
    for order in ["interleaved"] if artifact["epilogue"] == "gated_pairs" else orders:
        for index in {"rows": [False], "indexed": [True], "either": [False, True]}[artifact["source"]]:
            A = pages[0].array(rows // 2 if index else rows, k, dtype=dtype, at_end=at_end)
            B = pages[1].array(3, k, n, dtype=dtype, at_end=at_end, transposed=by_columns)
            C = pages[2].array(rows, n // 2 if is_gated else n, dtype=dtype, at_end=at_end)
            offs = pages[3].array(3, dtype=torch.int32, at_end=at_end)
            bias = pages[4].array(3, n, dtype=dtype, at_end=at_end)
            fill((A, B, bias), C)
            offs.copy_(torch.tensor([artifact["block_m"] - 1, artifact["block_m"] - 1, rows - 1]))
            places = pages[5].array(rows, dtype=torch.int64, at_end=at_end) if index else None
            if index:
                places.copy_(torch.randint(-(2**62), 2**62, places.shape, device="cuda"))
                places[::2] = torch.randint(-2, len(A) + 2, places[::2].shape, device="cuda")
            given = {"offs": offs, "bias": bias, "a_index": places, "gate_up": order}
            if keeps:
                given["preactivation"] = pages[6].array(rows, n, dtype=dtype, at_end=at_end)
                given["preactivation"].fill_(float("nan"))
            forced(artifact, A, B, out=C, activation="swiglu" if is_gated else None, **given)
            torch.cuda.synchronize()
            z = up_projection_oracle.sums(A, B, offs, bias=bias, index=places)
            assert not keeps or torch.equal(given["preactivation"].double(), z), artifact["name"]
            if is_gated:
                up_projection_oracle.assert_one_rounding(C, z, "swiglu", order)
            else:
                assert torch.equal(C.double(), z), artifact["name"]


def check_stack(artifact, pages, at_end) -> None:
    """Masked and batched; the last group's rows end, and the first one's start, where the pages do."""
    dtype, layout, gated = DTYPES[artifact["dtype"]], artifact["layout"], stack_cases.is_gated(artifact)
    block = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    m, n, k = stack_cases.legal(artifact, *(size + 1 for size in block), packed=True)
    for order in stack_cases.orders(artifact):
        A = pages[0].array(3, m, k, dtype=dtype, at_end=at_end, transposed=layout[0] == "t")
        B = pages[1].array(3, k, n, dtype=dtype, at_end=at_end, transposed=layout in ("nt", "tt"))
        C = pages[2].array(3, m, n // 2 if gated else n, dtype=dtype, at_end=at_end)
        counts = pages[3].array(3, dtype=torch.int32, at_end=at_end)
        bias = pages[4].array(3, n, dtype=dtype, at_end=at_end)
        fill((A, B, bias), C)
        for stated in (None, [1, block[0], m], [m, -5, 1 << 30], [1 << 30, m - 1, 1]):
            counts.copy_(torch.tensor(stated or [0, 0, 0]))
            C.fill_(stack_cases.AS_IT_WAS)
            given = {"counts": counts if stated else None, "bias": bias}
            forced(artifact, A, B, out=C, activation="swiglu" if gated else None, gate_up=order, **given)
            torch.cuda.synchronize()
            if gated:
                stack_cases.assert_activated(C, A, B, *given.values(), "swiglu", order)
            else:
                stack_cases.assert_exact(C, A, B, *given.values())


def check_routing(pages, at_end) -> None:
    """Ids, maps and places that hold anything."""
    for tokens, experts in ((37, 7), (3000, 7), (900, 300), (500, 900)):
        ids = pages[0].array(tokens, 8, dtype=torch.int64, at_end=at_end)
        expert_map = pages[1].array(40, dtype=torch.int32, at_end=at_end)
        ids.copy_(torch.randint(-(2**62), 2**62, ids.shape, device="cuda"))
        ids[::2] = torch.randint(-2, 45, ids[::2].shape, device="cuda")
        expert_map.copy_(torch.randint(-(2**31), 2**31 - 1, (40,), device="cuda"))
        expert_map[::3] = torch.arange(14, device="cuda") % experts
        routing = gg_runtime.route(ids, experts, expert_map)
        torch.cuda.synchronize()
        for got, want in zip(routing, gg_runtime.route(ids.cpu(), experts, expert_map.cpu())):
            assert torch.equal(got.cpu(), want)


def check_combine(pages, at_end) -> None:
    for columns, dtype in ((1024, torch.bfloat16), (517, torch.float16), (8, torch.bfloat16)):
        y = pages[0].array(50, columns, dtype=dtype, at_end=at_end)
        inverse = pages[1].array(33, 5, dtype=torch.int32, at_end=at_end)
        weights = pages[2].array(33, 5, dtype=torch.float32, at_end=at_end)
        add = pages[3].array(33, columns, dtype=dtype, at_end=at_end)
        out = pages[4].array(33, columns, dtype=dtype, at_end=at_end)
        for array in (y, weights, add):
            array.copy_(torch.randint(-2, 3, array.shape, device="cuda"))
        inverse.copy_(torch.randint(-(2**31), 2**31 - 1, inverse.shape, device="cuda"))
        inverse[::2] = torch.randint(-3, 53, inverse[::2].shape, device="cuda", dtype=torch.int32)
        out.fill_(float("nan"))
        gg_runtime.combine(y, inverse, weights, add=add, out=out)
        torch.cuda.synchronize()
        want = gg_runtime.combine(y.cpu(), inverse.cpu(), weights.cpu(), add=add.cpu())
        assert torch.equal(out.cpu(), want)


def check_experts(pages, at_end) -> None:
    """Layers whose ids and map hold anything; sizes that TMA reads, and odd ones. All memory is between guard pages."""
    for tokens, hidden, inner, on_input in ((37, 64, 32, False), (900, 72, 48, True), (37, 75, 61, True)):
        shapes = [(tokens, hidden), (6, hidden, 2 * inner), (6, inner, hidden), (6, 2 * inner), (6, hidden)]
        made = zip(pages, shapes)
        x, w1, w2, b1, b2 = (page.array(*shape, dtype=torch.bfloat16, at_end=at_end) for page, shape in made)
        out = pages[5].array(tokens, hidden, dtype=torch.bfloat16, at_end=at_end)
        weights = pages[6].array(tokens, 5, dtype=torch.float32, at_end=at_end)
        ids = pages[7].array(tokens, 5, dtype=torch.int64, at_end=at_end)
        needed = gg_runtime.fused_experts_workspace(tokens, 5, 6, hidden, inner)
        workspace = pages[8].array(needed, dtype=torch.uint8, at_end=at_end)
        for array in (x, w1, w2, b1, b2, weights):
            array.copy_(torch.randn(array.shape, device="cuda") / 8)
        ids.copy_(torch.randint(-(2**62), 2**62, ids.shape, device="cuda"))
        ids[::2] = torch.randint(-2, 9, ids[::2].shape, device="cuda")
        workspace.fill_(0xFF)  # NaN, as numbers of 16 bits
        layer = [x, w1, w2, weights, ids]
        options = {"b1": b1, "b2": b2, "apply_router_weight_on_input": on_input}
        gg_runtime.fused_experts(*layer, **options, out=out, workspace=workspace)
        torch.cuda.synchronize()
        assert_layer(out, *layer, **options, rounded_sums=True)


def check_up_projection(pages, at_end) -> None:
    """An index that holds anything; sizes that fill no tile of `gather` and `activate`, aligned and not."""
    forms = ((520, 1032, "gate_first"), (515, 518, "up_first"), (64, 1040, "interleaved"), (61, 66, "interleaved"))
    for k, n, order in forms:
        A = pages[0].array(37, k, dtype=torch.bfloat16, at_end=at_end)
        index = pages[1].array(29, dtype=torch.int64, at_end=at_end)
        offs = pages[2].array(3, dtype=torch.int32, at_end=at_end)
        kept = pages[3].array(29, n, dtype=torch.bfloat16, at_end=at_end)
        out = pages[4].array(29, n // 2, dtype=torch.bfloat16, at_end=at_end)
        B = torch.randint(-2, 3, (3, k, n), device="cuda").bfloat16()
        A.copy_((torch.rand(A.shape, device="cuda") < 0.1).float())
        index.copy_(torch.randint(-(2**62), 2**62, index.shape, device="cuda"))
        index[::2] = torch.randint(-2, 40, index[::2].shape, device="cuda")
        offs.copy_(torch.tensor([5, 5, 27]))
        for array in (kept, out):
            array.fill_(float("nan"))
        given = {"offs": offs, "a_index": index, "activation": "swiglu", "gate_up": order}
        gg_runtime.grouped_mm(A, B, out=out, preactivation=kept, **given)
        torch.cuda.synchronize()
        z = up_projection_oracle.sums(A, B, offs, index=index)
        assert torch.equal(kept.double(), z)
        up_projection_oracle.assert_one_rounding(out, z, "swiglu", order)


def around_products() -> None:
    torch.ones(1, device="cuda")
    pages = [Pages() for _ in range(9)]
    for at_end in (True, False):
        check_up_projection(pages, at_end)
        check_routing(pages, at_end)
        check_combine(pages, at_end)
        check_experts(pages, at_end)
        if device_sm() == 90:
            guard_fp8.check_experts(pages, at_end)
    print("routing, combining and layers stayed inside", flush=True)


CHECKS = {
    "list": (LIST_ARTIFACTS, check_list),
    "scaled_list": (SCALED_LIST_ARTIFACTS, guard_fp8.check_list),
    "ragged": (RAGGED_ARTIFACTS, check_ragged),
    "scaled": ([*SCALED_ARTIFACTS, *MIXED_ARTIFACTS], guard_fp8.check_rows),
    "up": (UP_ARTIFACTS, check_up),
    "ragged_k": (RAGGED_K_ARTIFACTS, check_ragged_k),
    "scaled_k": (SCALED_K_ARTIFACTS, check_scaled_k),
    "stack": (STACK_ARTIFACTS, check_stack),
    "fp8_stack": (FP8_STACK_ARTIFACTS, guard_fp8.check_stack),
}


def main(form: str) -> None:
    torch.ones(1, device="cuda")  # makes the primary context current
    pages = [Pages() for _ in range(7)]
    chosen, check = CHECKS[form]
    for artifact in chosen:
        for at_end in (True, False):
            print(artifact["name"], "at the end" if at_end else "at the start", flush=True)
            check(artifact, pages, at_end)
    print(f"{len(chosen)} {form} kernels stayed inside", flush=True)


def overrun() -> None:
    """The detector's own test: rows that are not mapped are read."""
    torch.ones(1, device="cuda")
    pages = Pages()
    A = foreign_memory.tensor(pages.start + pages.size - 2 * 64 * 64, (65, 64))
    gg_runtime.group_gemm([A], [torch.ones(64, 64, device="cuda", dtype=torch.float16)])
    torch.cuda.synchronize()
