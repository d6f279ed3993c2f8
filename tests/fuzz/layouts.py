"""Where the matrices of a problem lie in a block of memory, with room around each that nobody may touch."""

import random
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "e4m3": 1, "fp32": 4, "int32": 4}
OTHER_FORMS = ("ragged_k", "ragged_n", "stack")
ZONE_BYTES = 512  # before the first matrix and after the last
SCALE_BLOCK = 128  # of K, and of N, that a scale of blocks is for


@dataclass
class Stack:
    """Matrices of one size, `pitch` elements apart from `start` on."""

    start: int
    count: int
    pitch: int
    shape: tuple[int, int]
    strides: tuple[int, int]


def lay_out(sizes, order: str, view: str, element_bytes: int) -> tuple[list[Stack], int]:
    """A stack for each (count, rows, columns), and how many bytes they need. `order`: "n" is row-major.

    Views: "aligned" has starts and leading strides on 16 bytes, "odd" has neither, "strided" no unit stride besides.
    """
    per_16_bytes = 16 // element_bytes
    zone = ZONE_BYTES // element_bytes
    stacks, end = [], zone
    for number, rows, columns in sizes:
        inner, outer = (columns, rows) if order == "n" else (rows, columns)
        unit = 2 if view == "strided" else 1
        leading = unit * inner + 3
        if view == "aligned":
            leading = (ceil(inner / per_16_bytes) + 1) * per_16_bytes
        reach = leading * (outer - 1) + unit * (inner - 1) + 1
        pitch = (ceil(reach / per_16_bytes) + 4) * per_16_bytes
        strides = (leading, unit) if order == "n" else (unit, leading)
        stacks.append(Stack(end + (view != "aligned"), number, pitch, (rows, columns), strides))
        end += number * pitch + zone
    return stacks, ceil(end * element_bytes / 512) * 512


def list_layouts(spec: dict) -> tuple[list[Stack], list[Stack], int, list[Stack], int]:
    """Stacks of A and of B in one block, its bytes; stacks of C in another, its bytes."""
    element, out_element = ELEMENT_BYTES[spec["dtype"]], ELEMENT_BYTES[spec["out"]]
    classes, (a_order, b_order) = spec["classes"], spec["layout"]
    A, a_bytes = lay_out([(g, m, k) for m, n, k, g in classes], a_order, spec["view"], element)
    B, b_bytes = lay_out([(g, k, n) for m, n, k, g in classes], b_order, spec["view"], element)
    for stack in B:
        stack.start += a_bytes // element
    C, c_bytes = lay_out([(g, m, n) for m, n, k, g in classes], spec["out_order"], spec["view"], out_element)
    return A, B, a_bytes + b_bytes, C, c_bytes


def ragged_layouts(spec: dict) -> tuple[list[Stack], list[Stack], int, list[Stack], int]:
    element, out_element = ELEMENT_BYTES[spec["dtype"]], ELEMENT_BYTES[spec["out"]]
    rows, n, k, experts = (spec[name] for name in ("rows", "n", "k", "experts"))
    a_order, b_order = spec["layout"]
    A, a_bytes = lay_out([(1, rows, k)], a_order, spec["view"], element)
    B, b_bytes = lay_out([(experts, k, n)], b_order, spec["view"], element)
    B[0].start += a_bytes // element
    C, c_bytes = lay_out([(1, rows, n)], "n", spec["view"], out_element)
    return A, B, a_bytes + b_bytes, C, c_bytes


def other_layouts(spec: dict) -> tuple[list[Stack], list[Stack], int, list[Stack], int]:
    """Of ragged K, ragged columns and stacks. An operand whose rows come by an index has `sources` of them."""
    element, out_element = ELEMENT_BYTES[spec["dtype"]], ELEMENT_BYTES[spec["out"]]
    experts, m, n = spec["experts"], spec.get("m"), spec.get("n")
    if spec["kind"] == "stack":
        sizes = (experts, m, spec["k"]), (experts, spec["k"], n), (experts, m, n)
    elif spec["kind"] == "ragged_n":
        sizes = (experts, m, spec["k"]), (1, spec["k"], spec["rows"]), (1, m, spec["rows"])
    else:
        along_a, along_b = (spec["sources" if name in spec["index"] else "rows"] for name in "ab")
        sizes = (1, m, along_a), (1, along_b, n), (experts, m, n)
    orders = (*spec["layout"], spec["out_order"])
    (A, a_bytes), (B, b_bytes), (C, c_bytes) = (
        lay_out([size], order, spec["view"], bytes_each)
        for size, order, bytes_each in zip(sizes, orders, (element, element, out_element))
    )
    B[0].start += a_bytes // element
    return A, B, a_bytes + b_bytes, C, c_bytes


GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")


def up_columns(spec: dict) -> int:
    """Of w1 of a layer."""
    return spec["inner"] * (2 if spec["activation"] in GATED else 1)


def layer_layouts(spec: dict) -> tuple[list[Stack], list[Stack], int, list[Stack], int]:
    """x, then w1 and w2 in one block; the output in another."""
    element, experts, hidden = ELEMENT_BYTES[spec["dtype"]], spec["experts"], spec["hidden"]
    x, x_bytes = lay_out([(1, spec["rows"], hidden)], "n", spec["view"], element)
    sizes = [(experts, hidden, up_columns(spec)), (experts, spec["inner"], hidden)]
    weights, weight_bytes = lay_out(sizes, spec["layout"][1], spec["view"], element)
    for stack in weights:
        stack.start += x_bytes // element
    out, out_bytes = lay_out([(1, spec["rows"], hidden)], "n", spec["view"], element)
    return x, weights, x_bytes + weight_bytes, out, out_bytes


def layouts(spec: dict):
    of_kind = {"list": list_layouts, "ragged": ragged_layouts, "layer": layer_layouts}
    return of_kind.get(spec["kind"], other_layouts)(spec)


def scale_shapes(spec: dict) -> list[tuple[int, ...]]:
    """Of scale_a and scale_b of ragged rows, a ragged K or a stack; none where the spec has no scales."""
    mode = spec.get("scales", "")
    if not mode:
        return []
    if spec["kind"] == "ragged_k":
        blocks = spec["rows"] // SCALE_BLOCK + spec["experts"]
        return [(1, 1), (1, 1)] if mode == "tensor" else [(spec["m"], blocks), (blocks, spec["n"])]
    groups, n = spec["experts"], spec["n"]
    rows = (groups, spec["m"]) if spec["kind"] == "stack" else (spec["rows"],)
    blocks = ceil(spec["k"] / SCALE_BLOCK), ceil(n / SCALE_BLOCK)
    return {
        "tensor": [(1,), (groups,)],
        "row": [rows, (groups, n)],
        "block": [(*rows, blocks[0]), (groups, blocks[1], blocks[0])],
    }[mode]


def list_scale_shapes(spec: dict) -> list[list[tuple[int, ...]]]:
    """Of scale_a[i] and scale_b[i] of each class of a list; none where the spec has no lists of scales."""
    if not spec.get("scales"):
        return []

    def blocks(size: int) -> int:
        return ceil(size / SCALE_BLOCK)

    if spec["scales"] == "row":
        return [[(m,) for m, *_ in spec["classes"]], [(n,) for _, n, *_ in spec["classes"]]]
    of_a = [(m, blocks(k)) for m, _, k, _ in spec["classes"]]
    return [of_a, [(blocks(n), blocks(k)) for _, n, k, _ in spec["classes"]]]


def kernel_prefixes(spec: dict, family: str) -> tuple[str, ...]:
    """What the names of the family's variants for the problem begin with."""
    mode = spec.get("scales", "")
    if spec["kind"] != "ragged_k" and mode in ("row", "block"):
        return (f"{family}_{mode}_scales_sm",)
    return f"{family}_sm", f"{family}_tensor_scales_sm"


def adds(spec: dict) -> bool:
    """Whether outputs are added to: a call without the problem's own has nothing to add to."""
    return bool(spec.get("beta"))


def has_gradients(spec: dict) -> bool:
    """Of 16-bit products that give their own dtype, with no argument that has no gradient."""
    is_plain = not spec.get("masked") and not spec.get("index") and not adds(spec)
    is_plain = is_plain and spec.get("alpha", 1) == 1 and not spec.get("on_device")
    return is_plain and spec["dtype"] in ("fp16", "bf16") and spec["out"] == spec["dtype"]


def layer_keywords(spec: dict) -> dict:
    """Arguments of fused_experts that are no arrays."""
    keywords = {"activation": spec["activation"], "gate_up": spec["gate_up"], "batch_invariant": spec["invariant"]}
    return keywords | {"swiglu_limit": spec.get("limit"), "apply_router_weight_on_input": spec["on_input"]}


def workspace_bytes(spec: dict, workspace_of) -> int:
    """By gg_runtime.fused_experts_workspace, for all rows at once."""
    sizes = (spec["rows"], spec["k"], spec["experts"], spec["hidden"], spec["inner"])
    return workspace_of(*sizes, activation=spec["activation"])


def max_rows(spec: dict, pick: int) -> int | None:
    """Of one call: bits are those of all rows at once where the call is batch-invariant."""
    return [None, 7 * spec["k"], 50 * spec["k"]][pick // 2 % 3] if spec["invariant"] else None


def chosen_experts(spec: dict, seed: int) -> list[list[int]]:
    """topk_ids of a layer: mostly any experts, sometimes one for all; some that are not here."""
    numbers, experts = random.Random(seed), spec["experts"]
    low, high = numbers.choice([(0, experts - 1), (-1, experts), (-(2**31), 2**31 - 1), (experts - 1, experts - 1)])
    return [[numbers.randint(low, high) for _ in range(spec["k"])] for _ in range(spec["rows"])]


def places(spec: dict) -> list[tuple[int, int]]:
    """(class, member) of each group of a list, in its order."""
    all_places = [(number, member) for number, entry in enumerate(spec["classes"]) for member in range(entry[3])]
    random.Random(spec["order"]).shuffle(all_places)
    return all_places


def row_counts(spec: dict, seed: int) -> list[int]:
    """counts of a masked stack: mostly up to all rows; sometimes negative, or more than there are."""
    numbers, most = random.Random(seed), spec["m"]
    low, high = numbers.choice([(0, most), (0, most), (0, 1), (most, most), (-5, most + 5), (-(2**31), 2**31 - 1)])
    return [numbers.randint(low, high) for _ in range(spec["experts"])]


def row_index(spec: dict, seed: int) -> list[int]:
    """Of rows that are `sources`; some are of nobody."""
    numbers, sources = random.Random(seed), spec["sources"]
    low, high = numbers.choice([(0, sources - 1), (-1, sources), (-(2**31), 2**31 - 1), (sources - 1, sources - 1)])
    return [numbers.randint(low, high) for _ in range(spec["rows"])]


def factors(seed: int) -> tuple[float, float]:
    """alpha and beta that lie on the device: powers of two and small, so that exact sums stay exact."""
    numbers = random.Random(seed)
    return numbers.choice([1.0, 0.5, -2.0, 0.0]), numbers.choice([1.0, 1.0, -1.0, 0.5, 0.0])


def group_ends(spec: dict, seed: int) -> list[int]:
    """offs of a ragged problem: often any split, sometimes none: falling, negative, past the rows."""
    numbers, rows, experts = random.Random(seed), spec["rows"], spec["experts"]
    if numbers.random() < 0.15:
        return [numbers.randint(-5, rows + 5) for _ in range(experts)]
    sizes = [0] * experts
    for _ in range(rows - (numbers.randint(0, rows) if numbers.random() < 0.3 else 0)):
        sizes[numbers.randrange(experts)] += 1
    return list(accumulate(sizes))


def clamped_ends(offs: list[int], rows: int, alignment: int = 1) -> list[int]:
    """What offs mean: an end before the one before it, or past the rows, counts as that; one that is no multiple of
    the alignment as the next."""
    ends = [min(max(end, 0), rows) for end in accumulate(offs, max)]
    return [min(ceil(end / alignment) * alignment, rows) for end in ends]
