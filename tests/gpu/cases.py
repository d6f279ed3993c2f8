"""Shapes and views that an artifact was compiled for, and those around the edges of its tiles."""

import itertools

import gg_runtime
import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
PRIME = 257


def device_sm() -> int:
    """Of the current GPU; sm_90, to list the cases, where there is none."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return 10 * major + minor


# Those with a cubin for this GPU, and those that the driver can compile for it.
LIST_ARTIFACTS = [
    artifact
    for artifact in gg_runtime.kernels()
    if artifact["kernel"] != "pack" and (artifact["sm"] == device_sm() or artifact["ptx_bytes"])
]


def representatives(dtype: str = "fp16") -> list[dict]:
    """For this GPU's own architecture: the artifact with the smallest tile of each kernel, layout and alignment."""
    chosen = {}
    for artifact in sorted(LIST_ARTIFACTS, key=lambda a: (a["block_m"] * a["block_n"], a["name"])):
        if artifact["sm"] == device_sm() and artifact["dtype"] == dtype:
            chosen.setdefault((artifact["kernel"], artifact["layout"], artifact["alignment"]), artifact)
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
    """The shape with each extent that the artifact needs to be a multiple of 8 rounded up to one."""
    if artifact["alignment"] < 16:
        return shape
    m, n, k = shape
    layout = artifact["layout"]
    k_is_contiguous = layout[0] == "n" or layout[1] == "t"
    return (round_up(m) if layout[0] == "t" else m, round_up(n), round_up(k) if k_is_contiguous else k)


def round_up(extent: int) -> int:
    """To the next multiple of 8, 16 bytes of elements."""
    return -(-extent // 8) * 8


class List:
    """A problem list in two arenas, laid out as an artifact needs it; leading strides leave a gap."""

    def __init__(self, artifact: dict, shapes, arenas):
        self.artifact, (self.inputs, self.outputs) = artifact, arenas
        dtype = DTYPES[artifact["dtype"]]
        layout = artifact["layout"]
        row_major_A, row_major_B = layout[0] in "ns", layout[-1] in "nd"
        self.A = [self.matrix(self.inputs, m, k, dtype, row_major_A) for m, n, k in shapes]
        self.B = [self.matrix(self.inputs, k, n, dtype, row_major_B) for m, n, k in shapes]
        self.C = [self.matrix(self.outputs, m, n, dtype, True) for m, n, k in shapes]

    def matrix(self, arena, rows, columns, dtype, row_major):
        """Aligned artifacts get 16-byte starts and leading strides; others odd ones; strided ones no unit stride."""
        unit = 2 if self.artifact["layout"] == "strided" else 1
        extent = unit * (columns if row_major else rows)
        if self.artifact["alignment"] >= 16:
            leading, offset = round_up(extent) + 8, 8
        else:
            leading, offset = extent + 3, 1
        return arena.matrix(rows, columns, dtype, (leading, unit) if row_major else (unit, leading), offset)
