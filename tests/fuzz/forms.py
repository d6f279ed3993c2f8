"""Ragged K, ragged columns and stacks: their operands, what is filled with the data, and their products in float64."""

import torch

from fuzz import layouts, scales

# Of the sum of magnitudes, by input bytes: for float32 sums in any order, see tests/gpu/oracle.py.
SLACK = {1: 2**-11, 2: 1e-5}
NAN = float("nan")
NAN_BITS = {1: 0x7F, 2: 0x7FFF, 4: 0x7FFFFFFF}  # of every dtype of so many bytes, and not those of a poisoned output
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
LARGEST_E4M3 = 448.0


def prepare(problem) -> None:
    spec, device = problem.spec, problem.inputs.bytes.device
    (a,), (b,), (c,) = problem.A, problem.B, problem.outputs.stacks
    problem.operands = a if spec["kind"] != "ragged_k" else a[0], b if spec["kind"] == "stack" else b[0]
    problem.out = [c[0] if spec["kind"] == "ragged_n" else c]
    problem.allowed = [torch.zeros_like(reference) for reference in problem.reference]  # for each element
    problem.offs = problem.counts = problem.index = problem.alpha = problem.beta = problem.bias = None
    ends = torch.empty(spec["experts"], dtype=torch.int32, device=device)
    if spec["kind"] != "stack":
        problem.offs = problem.keywords["offs"] = ends
    elif spec["masked"]:
        problem.counts = problem.keywords["counts"] = ends
    if spec["kind"] == "stack" and spec["bias"]:
        bits = problem.noise.slice(spec["out"], {"seed": spec["p"], "normal": False}, spec["experts"] * spec["n"])
        problem.bias = bits.clone().view(problem.out_dtype).view(spec["experts"], spec["n"])
    if spec["kind"] == "ragged_k":
        prepare_ragged_k(problem, spec, device)
    problem.asked = dict(problem.keywords)  # `explain` takes no bias
    if problem.bias is not None:
        problem.keywords["bias"] = problem.bias


def prepare_ragged_k(problem, spec: dict, device) -> None:
    if spec["out"] != spec["dtype"]:
        problem.keywords["out_dtype"] = problem.out_dtype
    if spec["index"]:
        dtype = torch.int64 if spec["wide_index"] else torch.int32
        problem.index = torch.empty(spec["rows"], dtype=dtype, device=device)
        problem.keywords |= {f"{name}_index": problem.index for name in spec["index"]}
    problem.alpha, problem.beta = spec["alpha"], spec["beta"]
    if spec["on_device"]:
        problem.alpha, problem.beta = (torch.empty(1, device=device) for _ in range(2))
    if spec["on_device"] or problem.alpha != 1:
        problem.keywords["alpha"] = problem.alpha
    if layouts.adds(spec):
        problem.keywords["beta"] = problem.beta
    if spec["dtype"] == "e4m3":
        problem.keywords["k_alignment"] = spec["k_alignment"]
    exact = {"seed": spec["p"], "normal": False}
    problem.before = problem.noise.slice(spec["out"], exact, problem.out[0].numel()).view(problem.out_dtype)
    problem.before = problem.before.view(problem.out[0].shape)


def put_before(problem) -> None:
    """What outputs that are added to hold before a call."""
    problem.out[0].copy_(problem.before)


def fill(problem, data: dict) -> None:
    """Ends, counts, indices and factors; NaN in what no sum may take."""
    spec, seed = problem.spec, data["seed"]
    a, b = problem.operands
    if problem.counts is not None:
        problem.counts.copy_(torch.tensor(layouts.row_counts(spec, seed), dtype=torch.int32), non_blocking=True)
        a.view(INTEGERS[a.itemsize]).masked_fill_(~computed_rows(problem), NAN_BITS[a.itemsize])
    if spec["kind"] == "stack":
        scales.fill(problem, seed)
    if problem.counts is not None:
        scales.spoil_unused(problem, ~computed_rows(problem)[..., 0])
    if problem.offs is None:
        return
    ends = layouts.group_ends(spec, seed)
    problem.offs.copy_(torch.tensor(ends, dtype=torch.int32), non_blocking=True)
    problem.ends = layouts.clamped_ends(ends, spec["rows"], spec.get("k_alignment", 1))
    fill_scales(problem, data)
    past = slice(problem.ends[-1], None)
    if spec["kind"] == "ragged_n":
        b[:, past] = NAN
        return
    if "a" not in spec["index"]:
        a[:, past] = NAN
    if "b" not in spec["index"]:
        b[past] = NAN
    if problem.index is not None:
        index = torch.tensor(layouts.row_index(spec, seed), dtype=torch.int64)
        problem.index.copy_(index.to(problem.index.dtype), non_blocking=True)
    if spec["on_device"]:
        for factor, value in zip((problem.alpha, problem.beta), layouts.factors(seed)):
            factor.fill_(value)


def first_blocks(ends: list[int]) -> list[int]:
    """Of each group, and behind the last."""
    counts = [-(-(end - start) // 128) for start, end in zip([0, *ends], ends)]
    return [sum(counts[:group]) for group in range(len(ends) + 1)]


def fill_scales(problem, data: dict) -> None:
    """Powers of two where products are exact; NaN of blocks that no group has."""
    generator = torch.Generator().manual_seed(data["seed"])
    for scale, of_blocks in zip(problem.scales, (1, 0)):
        values = torch.rand(scale.shape, generator=generator)
        values = 0.5 + values if data["normal"] else 2.0 ** (3 * values).floor() / 2
        if problem.spec["scales"] == "block":
            used = first_blocks(problem.ends)[-1]
            values.narrow(of_blocks, used, scale.shape[of_blocks] - used).fill_(NAN)
        scale.copy_(values, non_blocking=True)


def scaled(problem, a, b):
    """Operands times their scales, in the groups' K; past it as they are."""
    starts, first = [0, *problem.ends[:-1]], first_blocks(problem.ends)
    of_a, of_b = (scale.double() for scale in problem.scales)
    a, b = a.clone(), b.clone()
    for group, (start, end) in enumerate(zip(starts, problem.ends)):
        block = first[group] + torch.arange(end - start, device=a.device) // 128
        block = block if problem.spec["scales"] == "block" else torch.zeros_like(block)
        a[:, start:end] *= of_a[:, block]
        b[start:end] *= of_b[block]
    return a, b


def computed_rows(problem):
    """[E, M, 1]: which rows of a masked stack are."""
    rows = torch.arange(problem.spec["m"], device=problem.counts.device)
    return (rows < problem.counts[:, None])[..., None]


def picked(rows, index):
    """Rows of `rows`, zeros where the index names none."""
    inside = (index >= 0) & (index < len(rows))
    return torch.where(inside[:, None], rows[torch.where(inside, index, 0).long()], 0)


def product(kind: str, a, b, ends, bias):
    """Any form but lists, with the ends of its groups on the host; recorded by torch."""
    if kind == "stack":
        return a @ b if bias is None else a @ b + bias[:, None]
    spans = [slice(start, end) for start, end in zip([0, *ends], ends)]
    if kind == "ragged_k":
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if kind == "ragged_n":
        parts = [a[group] @ b[:, span] for group, span in enumerate(spans)]
        return torch.cat([*parts, a.new_zeros(a.shape[1], b.shape[1] - ends[-1])], dim=1)
    parts = [a[span] @ b[group] + (0 if bias is None else bias[group]) for group, span in enumerate(spans)]
    return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[2])])


def sums(problem, magnitudes: bool = False):
    """alpha * products + beta * what was there, `problem.times` times over; or the magnitudes of what is summed."""
    spec = problem.spec
    a, b = (operand.double() for operand in problem.operands)
    bias = None if problem.bias is None else problem.bias.double()
    if "a" in spec.get("index", ""):
        a = picked(a.mT, problem.index).mT
    if "b" in spec.get("index", ""):
        b = picked(b, problem.index)
    if problem.scales:
        a, b = (scales.scaled if problem.kind == "stack" else scaled)(problem, a, b)
    if magnitudes:
        a, b, bias = a.abs(), b.abs(), None if bias is None else bias.abs()
    made = product(problem.kind, a, b, getattr(problem, "ends", None), bias)
    if problem.alpha is None:
        return made
    alpha, beta = problem.alpha, problem.beta
    found = problem.before.double() if layouts.adds(spec) else 0
    if magnitudes:
        alpha, beta, found = abs(alpha), abs(beta), abs(found)
    for _ in range(problem.times):
        found = alpha * made + (beta * found if layouts.adds(spec) else 0)
    return found


def refresh(problem) -> None:
    exact = sums(problem).view(problem.reference[0].shape)
    if problem.out_dtype is torch.float8_e4m3fn:
        exact = exact.clamp(-LARGEST_E4M3, LARGEST_E4M3)
    if not problem.data["normal"]:
        problem.reference[0].copy_(exact.to(problem.out_dtype))
        return
    facts = torch.finfo(problem.out_dtype)
    allowed = facts.eps / 2 * exact.abs().clamp(min=facts.tiny) + exact.abs() * 2.0**-23  # kept in float32
    slack = SLACK[problem.dtype.itemsize] * sums(problem, magnitudes=True).view(exact.shape)
    problem.allowed[0].copy_(allowed + slack * (1 + facts.eps))
    problem.reference[0].copy_(exact)


def wrong(problem, values, is_given: bool):
    """Which elements of the output are off. Rows past the counts are as they were: all ones where the output was
    given, which is another NaN than that of a product."""
    off = (values.float() - problem.reference[0]).abs()
    allowed = problem.allowed[0] if problem.data["normal"] else 0.0
    is_wrong = ~(off <= allowed)  # NaN is not <= anything
    if problem.counts is None:
        return is_wrong
    touched = values.view(INTEGERS[values.itemsize]) != -1 if is_given else torch.zeros_like(is_wrong)
    return torch.where(computed_rows(problem), is_wrong, touched)


def compared_bits(problem, bits):
    """Those that are the same each time: not of rows that are not computed."""
    return bits if problem.counts is None else bits.masked_fill(~computed_rows(problem), 0)
