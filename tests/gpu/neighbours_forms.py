"""Products of the forms that neighbours.py does not make itself, with a thousand groups, each checked once."""

import torch

import gg_runtime
import ragged_k_oracle
import scaled_k_oracle
import scaled_oracle
import stack_cases
from cases import (
    DTYPES,
    FP8_STACK_ARTIFACTS,
    RAGGED_K_ARTIFACTS,
    SCALED_ARTIFACTS,
    SCALED_K_ARTIFACTS,
    SCALED_LIST_ARTIFACTS,
    STACK_ARTIFACTS,
)
from ragged_cases import forced
from scaled_oracle import powers_of_two, sparse_integers

GROUPS, M, N, K = 1000, 16, 64, 128


def extremes() -> list[dict]:
    """The smallest and the largest tile of each kernel that TMA serves."""
    forms = (SCALED_ARTIFACTS, SCALED_LIST_ARTIFACTS, STACK_ARTIFACTS, FP8_STACK_ARTIFACTS)
    found: dict[str, list[dict]] = {}
    for artifact in [one for form in (*forms, RAGGED_K_ARTIFACTS, SCALED_K_ARTIFACTS) for one in form]:
        if artifact["addressing"] == "host_descriptors":
            found.setdefault(artifact["kernel"], []).append(artifact)
    for tiles in found.values():
        tiles.sort(key=lambda artifact: (artifact["block_m"] * artifact["block_n"], artifact["name"]))
    return [artifact for tiles in found.values() for artifact in (tiles[0], tiles[-1])]


def integers(artifact, *shape):
    """A quarter is not zero, so that sums are exact in any output."""
    return sparse_integers(*shape, device="cuda").float().to(DTYPES[artifact["dtype"]])


def scales(*shapes):
    return [powers_of_two(shape, "cuda") for shape in shapes]


def ends(each: int):
    return torch.arange(each, GROUPS * each + 1, each, device="cuda", dtype=torch.int32)


def empty(artifact, *shape):
    return torch.full(shape, float("nan"), device="cuda").to(DTYPES[artifact["out_dtype"]])


def checked(artifact) -> tuple:
    """(run, out) of a product by this artifact, which has run once and was right."""
    if artifact["form"] == "list":
        return scaled_list(artifact)
    of = {"m_ends": scaled_rows, "m_counts": stack, "k_ends": ragged_k}[artifact["extents"]]
    return of(artifact)


def scaled_list(artifact) -> tuple:
    A, B = integers(artifact, GROUPS, M, K), integers(artifact, GROUPS, N, K)
    shapes = scaled_oracle.list_shapes(artifact["scaling"], M, N, K)
    of_a, of_b = scales(*((GROUPS, *shape) for shape in shapes))
    out = empty(artifact, GROUPS, M, N)
    given = {"scale_a": [*of_a], "scale_b": [*of_b], "variant": artifact["name"]}
    plan = gg_runtime.Plan([*A], [*B.mT], out=[*out], **given)
    plan.run()
    for i in range(0, GROUPS, 37):
        scaled_oracle.assert_exact(out[i], *scaled_oracle.of_one(A[i], B[i].mT, of_a[i], of_b[i]))
    return plan.run, out


def scaled_rows(artifact) -> tuple:
    A, B, offs = integers(artifact, GROUPS * M, K), integers(artifact, GROUPS, N, K).mT, ends(M)
    of = scales(*scaled_oracle.shapes(artifact["scaling"], GROUPS * M, GROUPS, N, K))
    out = empty(artifact, GROUPS * M, N)

    def run():
        forced(artifact, A, B, offs=offs, out=out, out_dtype=out.dtype, scale_a=of[0], scale_b=of[1])

    run()
    scaled_oracle.assert_exact(out, A, B, offs, *of)
    return run, out


def stack(artifact) -> tuple:
    gated, layout = stack_cases.is_gated(artifact), artifact["layout"]
    A = integers(artifact, GROUPS, K, M).mT if layout[0] == "t" else integers(artifact, GROUPS, M, K)
    B = integers(artifact, GROUPS, N, K).mT if layout[1] == "t" else integers(artifact, GROUPS, K, N)
    out = empty(artifact, GROUPS, M, N // 2 if gated else N)
    counts = torch.full((GROUPS,), M, device="cuda", dtype=torch.int32)
    order = stack_cases.orders(artifact)[0]
    given = {"counts": counts, "out": out, "activation": "swiglu" if gated else None, "gate_up": order}
    of = []
    if artifact["dtype"] == "e4m3":
        of = scales(*scaled_oracle.stack_shapes(artifact["scaling"], GROUPS, M, N, K))
        given = {"counts": counts, "out": out, "scale_a": of[0], "scale_b": of[1]}

    def run():
        forced(artifact, A, B, **given)

    run()
    if of:
        scaled_oracle.assert_stack_exact(out, A, B, counts, *of)
    elif gated:
        stack_cases.assert_activated(out, A, B, counts, None, "swiglu", order)
    else:
        stack_cases.assert_exact(out, A, B, counts, None)
    return run, out


def ragged_k(artifact) -> tuple:
    """Rows of either matrix by an index are those in their own order."""
    each = 128
    total, offs = GROUPS * each, ends(each)
    layout = artifact["layout"]
    A = integers(artifact, total, M).mT if layout[0] == "t" else integers(artifact, M, total)
    B = integers(artifact, N, total).mT if layout[1] == "t" else integers(artifact, total, N)
    out = empty(artifact, GROUPS, M, N)
    given = {"offs": offs, "out": out}
    places = torch.arange(total, device="cuda")
    given |= {"indexed": {"a_index": places}, "indexed_b": {"b_index": places}}.get(artifact["source"], {})
    of = []
    if artifact["scaling"] == "block":
        of = scales((M, GROUPS), (GROUPS, N))
        given |= {"scale_a": of[0], "scale_b": of[1], "k_alignment": 128}

    def run():
        forced(artifact, A, B, **given)

    run()
    if of:
        scaled_k_oracle.assert_exact(out, A, B, offs, *of, alignment=128)
    else:
        ragged_k_oracle.assert_exact(out, A, B, offs)
    return run, out
