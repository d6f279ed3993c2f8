"""What a problem's outputs should be, computed by torch beside it, and how far off they may be."""

import torch

from fuzz import forms, layers, layouts, scales

RELATIVE_SLACK = {1: 2**-11, 2: 1e-5}  # of the sum of magnitudes, by input bytes: see tests/gpu/oracle.py
LARGEST_E4M3 = 448.0


def prepare(problem) -> None:
    """Operands as the library takes them, and room for references; all of it lives as long as the problem."""
    device, stacks = problem.inputs.bytes.device, problem.outputs.stacks
    problem.keywords = {"out_dtype": problem.out_dtype} if problem.dtype is torch.float8_e4m3fn else {}
    problem.reference = [torch.empty(stack.shape, device=device) for stack in stacks]
    problem.kept = [torch.empty(stack.shape, dtype=problem.outputs.bits.dtype, device=device) for stack in stacks]
    tolerances = 0 if problem.kind == "list" else 1  # for each matrix, or for each row
    problem.allowed = [torch.zeros(stack.shape[tolerances], device=device) for stack in stacks]
    if problem.kind == "list":
        prepare_list(problem)
        problem.asked = dict(problem.keywords)
    elif problem.kind == "layer":
        layers.prepare(problem)
    elif problem.kind in layouts.OTHER_FORMS:
        scales.prepare(problem)
        forms.prepare(problem)
    else:
        scales.prepare(problem)
        prepare_ragged(problem)
        problem.asked = {name: value for name, value in problem.keywords.items() if name != "bias"}


def prepare_list(problem) -> None:
    spec = problem.spec
    problem.places = layouts.places(spec)

    def in_order(stacks) -> list:
        matrices = [list(stack.unbind()) for stack in stacks]
        return [matrices[number][member] for number, member in problem.places]

    problem.operands = in_order(problem.A), in_order(problem.B)
    problem.out = in_order(problem.outputs.stacks)
    scales.prepare_list(problem, in_order)


def prepare_ragged(problem) -> None:
    spec, device = problem.spec, problem.inputs.bytes.device
    problem.offs = torch.empty(spec["experts"], dtype=torch.int32, device=device)
    problem.bias = None
    if spec["bias"]:
        exact = {"seed": spec["p"], "normal": False}
        bits = problem.noise.slice(spec["out"], exact, spec["experts"] * spec["n"])
        problem.bias = bits.clone().view(problem.out_dtype).view(spec["experts"], spec["n"])
        problem.keywords["bias"] = problem.bias
    problem.operands = problem.A[0][0], problem.B[0]
    problem.keywords["offs"] = problem.offs
    problem.out = [problem.outputs.stacks[0][0]]


def fill(problem, data: dict) -> None:
    problem.data, problem.stale = data, True
    if problem.kind == "layer":
        layers.fill(problem, data)
    if problem.kind == "list":
        scales.fill(problem, data["seed"])
    if problem.kind in layouts.OTHER_FORMS:
        forms.fill(problem, data)
    if problem.kind == "ragged":
        problem.ends = layouts.group_ends(problem.spec, data["seed"])
        problem.offs.copy_(torch.tensor(problem.ends, dtype=torch.int32), non_blocking=True)
        scales.fill(problem, data["seed"])
        rows = torch.arange(problem.spec["rows"], device=problem.offs.device)
        last = layouts.clamped_ends(problem.ends, problem.spec["rows"])[-1]
        scales.spoil_unused(problem, rows >= last)


def put_before(problem) -> None:
    """What outputs that are added to hold before a call."""
    if layouts.adds(problem.spec):
        forms.put_before(problem)


def rounded(problem, sums):
    if problem.out_dtype is torch.float8_e4m3fn:
        sums = sums.clamp(-LARGEST_E4M3, LARGEST_E4M3)
    return sums.to(problem.out_dtype).float()


def compare_with(problem, number: int, sums, magnitudes, theirs) -> None:
    """Exact data: the rounded sums, to the bit. Else twice what torch's own product is off, for each group."""
    if not problem.data["normal"]:
        problem.reference[number].copy_(rounded(problem, sums))
        problem.allowed[number].zero_()
        return
    if problem.out_dtype is torch.float8_e4m3fn:
        sums = sums.clamp(-LARGEST_E4M3, LARGEST_E4M3)
    problem.reference[number].copy_(sums)
    slack = RELATIVE_SLACK[problem.dtype.itemsize] * magnitudes
    off = (theirs - sums).abs()
    dimensions = (1, 2) if problem.kind == "list" else (2,)
    worst = 2 * off.amax(dimensions) + slack.amax(dimensions)
    problem.allowed[number].copy_(worst.view(-1))


def refresh(problem) -> None:
    """References to the data of now, on the current stream."""
    if not problem.stale:
        return
    problem.stale = False
    of_kind = {"list": refresh_list, "ragged": refresh_ragged, "layer": layers.refresh}
    of_kind.get(problem.kind, forms.refresh)(problem)


def own_product(problem, a, b, sums):
    """Of copies without gaps: torch's bfloat16 on the CPU multiplies what lies behind a row by 0, NaN too."""
    if a.dtype is torch.float8_e4m3fn:
        return rounded(problem, sums)
    return torch.matmul(a.contiguous(), b.contiguous()).float()


def refresh_list(problem) -> None:
    for number, (a, b) in enumerate(zip(problem.A, problem.B)):
        x, w = scales.scaled_class(problem, number, a.float(), b.float())
        sums = torch.bmm(x, w)
        normal = problem.data["normal"]
        magnitudes = torch.bmm(x.abs(), w.abs()) if normal else None
        compare_with(problem, number, sums, magnitudes, own_product(problem, a, b, sums) if normal else None)


def refresh_ragged(problem) -> None:
    (a,), b = problem.A[0], problem.B[0]
    factors = scales.scaled(problem, a.float(), b.float())
    sums = torch.zeros_like(problem.reference[0])
    magnitudes, theirs = torch.zeros_like(sums), torch.zeros_like(sums)
    start = 0
    for group, end in enumerate(layouts.clamped_ends(problem.ends, a.shape[0])):
        if start == end:
            continue
        rows, start = slice(start, end), end
        part = factors[0][rows] @ factors[1][group]
        bias = problem.bias[group].float() if problem.bias is not None else 0
        sums[0, rows] = part + bias
        if problem.data["normal"]:
            magnitudes[0, rows] = factors[0][rows].abs() @ factors[1][group].abs() + abs(bias)
            theirs[0, rows] = rounded(problem, own_product(problem, a[rows], b[group], part) + bias)
    compare_with(problem, 0, sums, magnitudes, theirs)


def stacked(problem, outputs) -> list:
    """The outputs, those of one size as one array."""
    if outputs is problem.out:
        return problem.outputs.stacks
    if problem.kind != "list":
        return [outputs[0].view(problem.reference[0].shape)]
    placed = dict(zip(problem.places, outputs))
    bits = problem.outputs.bits.dtype  # not every torch stacks float8
    return [torch.stack([placed[number, member].view(bits) for member in range(entry[3])]).view(problem.out_dtype)
            for number, entry in enumerate(problem.spec["classes"])]  # fmt: skip


def compared_bits(problem, bits):
    """Those that are the same each time."""
    return forms.compared_bits(problem, bits) if problem.kind in layouts.OTHER_FORMS else bits


def wrong(problem, found, is_given: bool) -> list:
    """(the outputs of a size, which of them are off) for each size. `is_given`: they are those of the problem."""
    refresh(problem)
    if problem.kind in layouts.OTHER_FORMS:
        return [(found[0], forms.wrong(problem, found[0], is_given))]
    checked = []
    for number, values in enumerate(found):
        off = (values.float() - problem.reference[number]).abs()
        allowed = problem.allowed[number]
        limit = allowed[:, None, None] if problem.kind == "list" else allowed[None, :, None]
        checked.append((values, ~(off <= limit)))  # NaN is not <= anything
    return checked
