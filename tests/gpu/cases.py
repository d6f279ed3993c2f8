"""Shapes and views that an artifact was compiled for, and those around the edges of its tiles."""

import itertools

import torch

import gg_runtime
from oracle import fill_sparse_integers

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "fp32": torch.float32,  # outputs only
    "e5m2": torch.float8_e5m2,  # A only
}
OF_B = {name: "e4m3" if name == "e5m2" else name for name in DTYPES}  # what B has, by what A has
PRIME = 257


def device_sm() -> int:
    """Of the current GPU; sm_90, to list the cases, where there is none."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return 10 * major + minor


# Those with a cubin for this GPU, and those that the driver can compile for it. What goes back through an activation,
# and what picks rows that have scales, are for no call of grouped_mm: test_down_gradient.py and test_fp8_experts.py.
OF_LAYERS = ("hopper_gather_block_scales", "hopper_gather_quantized")
ARTIFACTS = [
    artifact
    for artifact in gg_runtime.kernels()
    if artifact["form"] in ("list", "grouped")
    and artifact["epilogue"] != "gated_gradient"
    and artifact["kernel"] not in OF_LAYERS
    and (artifact["sm"] == device_sm() or artifact["ptx_bytes"])
]
SCALINGS = ("row", "block")  # whose scales are arrays of a shape of their own
MIXED_ARTIFACTS = [a for a in ARTIFACTS if (a["dtype"], a["extents"]) == ("e5m2", "m_ends")]
OF_ENDS = [a for a in ARTIFACTS if a["extents"] == "m_ends" and a not in MIXED_ARTIFACTS]
SCALED_ARTIFACTS = [artifact for artifact in OF_ENDS if artifact["scaling"] in SCALINGS]
RAGGED = [artifact for artifact in OF_ENDS if artifact not in SCALED_ARTIFACTS]
PLAIN = ("linear", "rows")
RAGGED_ARTIFACTS = [artifact for artifact in RAGGED if (artifact["epilogue"], artifact["source"]) == PLAIN]
UP_ARTIFACTS = [artifact for artifact in RAGGED if (artifact["epilogue"], artifact["source"]) != PLAIN]
OF_K_ENDS = [artifact for artifact in ARTIFACTS if artifact["extents"] == "k_ends"]
SCALED_K_ARTIFACTS = [artifact for artifact in OF_K_ENDS if artifact["scaling"] in SCALINGS]
RAGGED_K_ARTIFACTS = [artifact for artifact in OF_K_ENDS if artifact not in SCALED_K_ARTIFACTS]
OF_COUNTS = [artifact for artifact in ARTIFACTS if artifact["extents"] == "m_counts"]
FP8_STACK_ARTIFACTS = [artifact for artifact in OF_COUNTS if artifact["dtype"] == "e4m3"]
STACK_ARTIFACTS = [artifact for artifact in OF_COUNTS if artifact not in FP8_STACK_ARTIFACTS]
OF_LISTS = [artifact for artifact in ARTIFACTS if artifact["form"] == "list"]
SCALED_LIST_ARTIFACTS = [artifact for artifact in OF_LISTS if artifact["scaling"] in SCALINGS]
LIST_ARTIFACTS = [artifact for artifact in OF_LISTS if artifact not in SCALED_LIST_ARTIFACTS]


def representatives(dtype: str = "fp16", among=LIST_ARTIFACTS) -> list[dict]:
    """Of this GPU's own architecture, the smallest tile of each kernel, output, layout and alignment."""
    chosen = {}
    for artifact in sorted(among, key=lambda a: (a["block_m"] * a["block_n"], a["name"])):
        if artifact["sm"] == device_sm() and artifact["dtype"] == dtype:
            facts = tuple(artifact[fact] for fact in ("kernel", "out_dtype", "layout", "alignment"))
            chosen.setdefault(facts, artifact)
    return list(chosen.values())


def edge_shapes(artifact: dict) -> list[tuple[int, int, int]]:
    """(M, N, K) around the artifact's own tile edges, as near as its alignment allows."""
    block_m, block_n, block_k = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    rows = (1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3)
    columns = (1, block_n - 1, block_n, block_n + 1, PRIME)
    depths = itertools.cycle((1, block_k - 1, block_k, block_k + 1, 3 * block_k + 5, PRIME, 5 * block_k))
    shapes = [(m, n, next(depths)) for m, n in itertools.product(rows, columns)]
    shapes += [(block_m, block_n, k) for k in (1, block_k + 1, 4 * block_k - 1)]
    return [legal(artifact, shape) for shape in shapes]


def legal(artifact: dict, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The shape with each extent that the artifact needs in whole 16 bytes rounded up to that."""
    if artifact["alignment"] < 16:
        return shape
    m, n, k = shape
    layout, dtype = artifact["layout"], DTYPES[artifact["dtype"]]
    n = round_up(n, DTYPES[artifact["out_dtype"]])
    return (
        round_up(m, dtype) if layout[0] == "t" else m,
        round_up(n, dtype) if layout[1] == "n" else n,
        round_up(k, dtype) if layout[0] == "n" or layout[1] == "t" else k,
    )


def per_16_bytes(dtype) -> int:
    return 16 // dtype.itemsize


def round_up(extent: int, dtype) -> int:
    """To the next multiple of 16 bytes of elements."""
    return -(-extent // per_16_bytes(dtype)) * per_16_bytes(dtype)


def pitch(artifact: dict, extent: int, dtype) -> tuple[int, int, int]:
    """Leading stride, unit stride and offset for `extent` elements in a row, with a gap.

    Aligned artifacts get 16-byte starts and leading strides; others odd ones; strided ones no unit stride.
    """
    unit = 2 if artifact["layout"] == "strided" else 1
    if artifact["alignment"] >= 16:
        return round_up(extent, dtype) + per_16_bytes(dtype), unit, per_16_bytes(dtype)
    return unit * extent + 3, unit, 1


def row_major(shapes, dtype=torch.float16, fill=fill_sparse_integers):
    """A and B of a list, each matrix in memory of its own."""
    A = [torch.empty(m, k, device="cuda", dtype=dtype) for m, n, k in shapes]
    B = [torch.empty(k, n, device="cuda", dtype=dtype) for m, n, k in shapes]
    fill([*A, *B])
    return A, B


class List:
    """A problem list in two arenas, laid out as an artifact needs it; leading strides leave a gap."""

    def __init__(self, artifact: dict, shapes, arenas):
        self.artifact, (self.inputs, self.outputs) = artifact, arenas
        dtype, out_dtype = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]]
        layout = artifact["layout"]
        row_major_A, row_major_B = layout[0] in "ns", layout[-1] in "nd"
        self.A = [self.matrix(self.inputs, m, k, dtype, row_major_A) for m, n, k in shapes]
        self.B = [self.matrix(self.inputs, k, n, dtype, row_major_B) for m, n, k in shapes]
        self.C = [self.matrix(self.outputs, m, n, out_dtype, True) for m, n, k in shapes]

    def matrix(self, arena, rows, columns, dtype, row_major):
        leading, unit, offset = pitch(self.artifact, columns if row_major else rows, dtype)
        return arena.matrix(rows, columns, dtype, (leading, unit) if row_major else (unit, leading), offset)
