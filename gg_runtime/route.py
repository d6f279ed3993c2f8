"""Tokens sorted by the experts that they chose."""

from typing import Any, NamedTuple

from . import _C, by_torch, reference
from ._C import OnCpu
from .arrays import Array


class Routing(NamedTuple):
    """Where each slot of each token goes when slots are sorted by expert. Slot j of token t has the number t * k + j.

    All are int32. The slots of an expert keep their order. Places from ends[-1] on belong to dropped slots.

    Attributes:
        ends: [experts], the place at which each expert's slots end: the `offs` of `grouped_mm`.
        token: [tokens * k], the token of each place; -1 from ends[-1] on.
        slot: [tokens * k], the slot of each place; -1 from ends[-1] on.
        inverse: [tokens, k], the place of each slot; -1 where it was dropped. `combine` takes it.
    """

    ends: Any
    token: Any
    slot: Any
    inverse: Any


@by_torch.traced_by_torch
def route(topk_ids: Array, experts: int, expert_map: Array | None = None) -> Routing:
    """Sorts the slots of tokens by expert, stably: one kernel launch, or two above some hundred tokens.

    A slot whose expert is not in [0, experts) is dropped: -1, a sentinel of expert parallelism, or anything else.

    Args:
        topk_ids: [tokens, k], int32 or int64, contiguous: the experts that each token chose. Any values.
        experts: how many there are here, 1 to 1023.
        expert_map: [known], int32 or int64, contiguous, on the same device: expert_map[id] takes the place of an id in
            [0, known); every other id is dropped. For experts that are spread over GPUs: the local index, or -1.

    Arrays are those that `group_gemm` takes, on a GPU or the CPU. The launches go to the current stream of topk_ids'
    framework and device, wait for nothing, and may be captured in a CUDA graph; a replay reads the ids anew. The result
    is the same, bit for bit, in every run.

    Returns:
        Routing: new int32 arrays.

    Raises:
        ValueError: a shape, stride, device or number of experts that does not fit.
        TypeError: another dtype, or something that is no array.
        UnsupportedError, ArtifactError, CudaError: as `grouped_mm` raises them.
    """
    made = _C.route(topk_ids, experts, expert_map)
    if made is ...:
        return by_torch.traced().route(topk_ids, experts, expert_map)
    if type(made) is OnCpu:
        made = reference.route(topk_ids, experts, expert_map)
    return Routing(*made)
