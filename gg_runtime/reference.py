"""The CPU path: a loop of the framework's own matrix product. Arguments were checked before they come here."""

import collections
import itertools
import numbers
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .arrays import is_list
from .frameworks import dtype_like
from .reference_activations import GATED, activated, activated_with_slopes, joined
from .reference_scales import Scales, k_blocks, product_of_k_blocks, quantize_1x128, scaled_product, scales_of

_LARGEST_E4M3 = 448.0


class Activation(NamedTuple):
    """What becomes of the sums of `grouped_mm`: its arguments of these names."""

    activation: str | None = None
    gate_up: str = "gate_first"
    preactivation: Any = None


_NOTHING = Activation()


class Others(NamedTuple):
    """What else `grouped_mm` takes: its arguments of these names."""

    b_index: Any = None
    counts: Any = None
    alpha: Any = 1.0
    beta: Any = 0.0
    k_alignment: int = 1


_NO_OTHERS = Others()


def group_gemm(
    group_A: Sequence[Any],
    group_B: Sequence[Any],
    out: Sequence[Any] | None,
    out_dtype: str,
    scale_a: Any = None,
    scale_b: Any = None,
) -> list[Any]:
    """C[i] = A[i] @ B[i] for matrices on the CPU, accumulated in float32, scaled, and rounded once to `out_dtype`.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    by_list = is_list(scale_a)
    given: Sequence[Any] = (*scale_a, *scale_b) if by_list else (scale_a, scale_b)
    _check_one_framework("group_gemm", *group_A, *group_B, *(out or ()), *given)
    scales = None if by_list else _scales(scale_a, scale_b)
    outputs: list[Any] = []
    for i, (a, b) in enumerate(zip(group_A, group_B)):
        if by_list:
            of = (_float32(scale_a[i]), _float32(scale_b[i]))
            sums = scaled_product(_float32(a), _float32(b), *of, _namespace(a))
        else:
            sums = _scaled(_float32(a) @ _float32(b), scales, i)
        outputs.append(_rounded(sums, a, out_dtype))
    if out is None:
        return outputs
    for product, c in zip(outputs, out):
        c[...] = product
    return list(out)


def grouped_mm(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out: Any,
    out_dtype: str,
    scale_a: Any = None,
    scale_b: Any = None,
    a_index: Any = None,
    after: Activation = _NOTHING,
    others: Others = _NO_OTHERS,
) -> Any:
    """Each group's product, in the form that the ranks tell, scaled, plus its bias, activated, rounded once.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    factors = [factor for factor in (others.alpha, others.beta) if not isinstance(factor, numbers.Real)]
    _check_one_framework(
        "grouped_mm", mat_a, mat_b, offs, bias, out, scale_a, scale_b, a_index, after.preactivation, others.b_index,
        others.counts, *factors,
    )  # fmt: skip
    scales = scales_of(scale_a, scale_b) or _scales(scale_a, scale_b)
    if mat_a.ndim == 3 and mat_b.ndim == 3:
        return _stack_product(mat_a, mat_b, bias, out, out_dtype, after, others.counts, scales)
    if mat_b.ndim == 2 and mat_a.ndim == 3:
        sums = _grouped_sums(_float32(mat_b).T, mat_a.swapaxes(-1, -2), offs, None, None).T
        return _written(_row_major(sums), mat_a, out, out_dtype)
    if mat_b.ndim == 2:
        a, b = _rows_of(mat_a.T, a_index).T, _rows_of(mat_b, others.b_index)
        by_block = scales_of(scale_a, scale_b)
        sums = _sums_of_ragged_k(a, b, offs, others.k_alignment, by_block)
        sums = _scaled(sums, None if by_block else _scales(scale_a, scale_b), 0)
        return _written(_accumulated(sums, out, others), mat_a, out, out_dtype)
    sums = _grouped_sums(_rows_of(mat_a, a_index), mat_b, offs, bias, scales)
    if after.preactivation is not None:
        after.preactivation[...] = _rounded(sums, mat_a, out_dtype)
    if after.activation is not None:
        sums = activated(sums, after.activation, after.gate_up, _namespace(mat_a))
    return _written(sums, mat_a, out, out_dtype)


def _written(sums: Any, like: Any, out: Any, out_dtype: str) -> Any:
    """The sums rounded, in `out` if it is given."""
    product = _rounded(sums, like, out_dtype)
    if out is None:
        return product
    out[...] = product
    return out


def _row_major(sums: Any) -> Any:
    """A copy that lies as new outputs do, for frameworks in which that can be told."""
    if _is_torch(sums):
        return sums.contiguous()
    arrays = _namespace(sums)
    return arrays.ascontiguousarray(sums) if hasattr(arrays, "ascontiguousarray") else sums


def _sums_of_ragged_k(a: Any, b: Any, offs: Any, alignment: int, scales: Scales | None) -> Any:
    """[E, M, N] in float32, of columns of a and rows of b: those past the last end are in no sum."""
    arrays = _namespace(a)
    parts: list[Any] = []
    start = block = 0
    for end in offs.tolist():
        end = min(max(end, start), b.shape[0])
        end = min(-(-end // alignment) * alignment, b.shape[0])
        if scales is None:
            parts.append(a[:, start:end] @ b[start:end])
        else:
            parts.append(product_of_k_blocks(a[:, start:end], b[start:end], scales, block))
        start, block = end, block + k_blocks(end - start)
    return arrays.stack(parts) if parts else _zeros(a, (0, a.shape[0], b.shape[1]))


def _accumulated(sums: Any, out: Any, others: Others) -> Any:
    """alpha * sums + beta * out in float32; where beta is 0 `out` is not read."""
    alpha, beta = (_number(factor, sums) for factor in (others.alpha, others.beta))
    return alpha * sums + beta * _float32(out) if float(beta) != 0 else alpha * sums


def _number(factor: Any, like: Any) -> Any:
    """A factor in float32: a number, or an array of one element."""
    if isinstance(factor, numbers.Real):
        return _namespace(like).asarray(factor, dtype=_namespace(like).float32, **_on_cpu(like))
    return _float32(factor).reshape(())


def _stack_product(
    mat_a: Any, mat_b: Any, bias: Any, out: Any, out_dtype: str, after: Activation, counts: Any, scales: Any
) -> Any:
    """mat_a[g] @ mat_b[g] of each group, its first counts[g] rows; the others are zeros in a new output."""
    products: list[Any] = []
    rows = mat_a.shape[1]
    kept = [rows] * mat_a.shape[0] if counts is None else [min(max(count, 0), rows) for count in counts.tolist()]
    for group, count in enumerate(kept):
        of_rows = scales.a[group, :count] if isinstance(scales, Scales) else None
        sums = _group_sums(_float32(mat_a[group, :count]), mat_b, scales, group, of_rows)
        sums = sums if bias is None else sums + _float32(bias[group])
        if after.activation is not None:
            sums = activated(sums, after.activation, after.gate_up, _namespace(mat_a))
        if out is None:
            rest = _zeros(mat_a, (rows - count, sums.shape[1]))
            products.append(_rounded(_namespace(mat_a).concatenate([sums, rest]), mat_a, out_dtype))
        else:
            out[group, :count] = _rounded(sums, mat_a, out_dtype)
    if out is not None:
        return out
    columns = mat_b.shape[2] // (2 if after.activation in GATED else 1)
    return (
        _namespace(mat_a).stack(products) if products else _rounded(_zeros(mat_a, (0, rows, columns)), mat_a, out_dtype)
    )


def _on_cpu(like: Any) -> dict[str, str]:
    """Where new arrays go: torch has a default device, which may be another than the CPU."""
    return {"device": "cpu"} if _is_torch(like) else {}


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    """In float32, of the framework of `like`."""
    arrays = _namespace(like)
    return arrays.zeros(shape, dtype=arrays.float32, **_on_cpu(like))


def _rows_of(mat_a: Any, index: Any) -> Any:
    """Its rows in float32, or those that the index names: zeros where it names none."""
    rows = _float32(mat_a)
    if index is None:
        return rows
    arrays = _namespace(mat_a)
    kept = (index >= 0) & (index < rows.shape[0])
    if rows.shape[0] == 0:
        return _zeros(rows, (index.shape[0], rows.shape[1]))
    return arrays.where(kept[:, None], rows[arrays.where(kept, index, 0)], 0.0)


def _grouped_sums(a: Any, mat_b: Any, offs: Any, bias: Any, scales: Any) -> Any:
    """[rows, N] in float32."""
    arrays = _namespace(a)
    parts: list[Any] = []
    start = 0
    for group, end in enumerate(offs.tolist()):
        end = min(max(end, start), a.shape[0])
        of_rows = scales.a[start:end] if isinstance(scales, Scales) else None
        part = _group_sums(a[start:end], mat_b, scales, group, of_rows)
        parts.append(part if bias is None else part + _float32(bias[group]))
        start = end
    parts.append(_zeros(a, (a.shape[0] - start, mat_b.shape[2])))
    return arrays.concatenate(parts)


def _group_sums(a: Any, mat_b: Any, scales: Any, group: int, of_rows: Any) -> Any:
    """a @ mat_b[group] in float32, scaled: `of_rows` are the scales of a's rows, where they have some."""
    b = _float32(mat_b[group])
    if of_rows is None:
        return _scaled(a @ b, scales, group)
    return scaled_product(a, b, _float32(of_rows), _float32(scales.b[group]), _namespace(a))


def route(topk_ids: Any, experts: int, expert_map: Any) -> tuple[Any, ...]:
    """(ends, token, slot, inverse) of the slots sorted by expert, as `gg_runtime.Routing` has them.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    _check_one_framework("route", topk_ids, expert_map)
    tokens, slots = topk_ids.shape
    groups: list[int] = topk_ids.reshape(-1).tolist()
    if expert_map is not None:
        known: list[int] = expert_map.tolist()
        groups = [known[expert] if 0 <= expert < len(known) else -1 for expert in groups]
    groups = [group if 0 <= group < experts else experts for group in groups]
    order = sorted(range(len(groups)), key=groups.__getitem__)
    counts = collections.Counter(groups)
    ends = list(itertools.accumulate(counts[group] for group in range(experts)))
    kept = ends[-1]
    slot = order[:kept] + [-1] * (len(order) - kept)
    token = [place // slots if place >= 0 else -1 for place in slot]
    inverse = [-1] * len(order)
    for place, entry in enumerate(order[:kept]):
        inverse[entry] = place
    made = (ends, (experts,)), (token, (-1,)), (slot, (-1,)), (inverse, (tokens, slots))
    return tuple(_int32(values, topk_ids).reshape(shape) for values, shape in made)


def combine(y: Any, inverse: Any, weights: Any, add: Any, scale: float, out: Any, out_dtype: str) -> Any:
    """Each token's rows of y, weighted, scaled and summed in float32 in the order of its slots, plus `add`.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    _check_one_framework("combine", y, inverse, weights, add, out)
    arrays, rows = _namespace(y), _float32(y)
    tokens, slots = inverse.shape
    sums = _zeros(y, (tokens, y.shape[1]))
    for j in range(slots if rows.shape[0] else 0):
        kept = (inverse[:, j] >= 0) & (inverse[:, j] < rows.shape[0])
        row = rows[arrays.where(kept, inverse[:, j], 0)]
        term = row if weights is None else row * _float32(weights)[:, j, None]
        sums = sums + arrays.where(kept[:, None], term, 0.0)
    sums = sums * arrays.asarray(scale, dtype=arrays.float32)
    result = _rounded(sums if add is None else sums + _float32(add), y, out_dtype)
    if out is None:
        return result
    out[...] = result
    return out


def fused_experts(
    x: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: str | None,
    gate_up: str,
    b1: Any,
    b2: Any,
    expert_map: Any,
    weights_on_input: bool,
    add: Any,
    scale: float,
    out: Any,
    out_dtype: str,
    w1_scale: Any = None,
    w2_scale: Any = None,
) -> Any:
    """The layer of `gg_runtime.fused_experts`, with the roundings of its kernels.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    _check_one_framework(
        "fused_experts", x, w1, w2, topk_weights, topk_ids, b1, b2, expert_map, add, out, w1_scale, w2_scale
    )  # named for the layer, before the parts check their own
    ends, token, slot, inverse = route(topk_ids, w1.shape[0], expert_map)
    kept = int(ends[-1])
    rows = x[token[:kept]]
    weights = _float32(topk_weights).reshape(-1)[slot[:kept]] if weights_on_input else None
    if w1_scale is not None:
        after = Activation(activation, gate_up)
        y = _quantized_products(rows, weights, (w1, w1_scale, b1), (w2, w2_scale, b2), ends, after, out_dtype)
    else:
        if weights is not None:
            rows = _rounded(_float32(rows) * weights[:, None], x, out_dtype)
        inner = grouped_mm(rows, w1, ends, b1, None, out_dtype, after=Activation(activation, gate_up))
        y = grouped_mm(inner, w2, ends, b2, None, out_dtype)
    return combine(y, inverse, None if weights_on_input else topk_weights, add, scale, out, out_dtype)


def _quantized_products(
    rows: Any, weights: Any, up: Sequence[Any], down: Sequence[Any], ends: Any, after: Activation, out_dtype: str
) -> Any:
    """The rows that come out of a layer with e4m3 weights. up, down: weights, their scales, biases.

    `weights`: of the rows that go in, or None.
    """
    q, scales = quantize_1x128(rows)
    if weights is not None:
        scales = scales * weights[:, None]
    sums = grouped_mm(q, up[0], ends, up[2], None, out_dtype, scales, up[1])
    sums = _float32(sums)
    if after.activation is not None:
        sums = activated(sums, after.activation, after.gate_up, _namespace(rows))
    q, scales = quantize_1x128(sums)
    return grouped_mm(q, down[0], ends, down[2], None, out_dtype, scales, down[1])


def activation_gradient(
    z: Any,
    dh: Any,
    weights: Any,
    slot: Any,
    ends: Any,
    activation: str | None,
    gate_up: str,
    scale: float,
    dz: Any,
    h: Any,
    dweights: Any,
    out_dtype: str,
) -> None:
    """Writes `dz`, `h` and `dweights` of `gg_runtime.activation_gradient`, with the roundings of its kernel.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    _check_one_framework("activation_gradient", z, dh, weights, slot, ends, dz, h, dweights)
    arrays = _namespace(z)
    rows = z.shape[0] if ends is None else min(z.shape[0], max(int(ends[-1]), 0))
    gradient = _float32(dh[:rows])
    value, by_gate, by_up = activated_with_slopes(_float32(z[:rows]), activation, gate_up, arrays)
    factor = arrays.asarray(scale, dtype=arrays.float32)
    places: Any = None if slot is None else slot[:rows]
    if weights is not None:
        flat = _float32(weights).reshape(-1)
        known = (places >= 0) & (places < flat.shape[0])
        factor = factor * arrays.where(known, flat[arrays.where(known, places, 0)], 0.0)[:, None] if len(flat) else 0.0
    if dweights is not None:
        total = arrays.asarray(scale, dtype=arrays.float32) * (value * gradient).sum(1)
        known = (places >= 0) & (places < dweights.shape[0] * dweights.shape[1])
        dweights.reshape(-1)[places[known]] = total[known]
    if h is not None:
        h[:rows] = _rounded(factor * value, z, out_dtype)
    by_gate, by_up = (factor * gradient * slope if slope is not None else None for slope in (by_gate, by_up))
    dz[:rows] = _rounded(joined(by_gate, by_up, gate_up, arrays), z, out_dtype)


def _int32(values: list[int], like: Any) -> Any:
    """A list as an array of the framework of `like`, on the CPU."""
    arrays = _namespace(like)
    return arrays.asarray(values, dtype=arrays.int32, **_on_cpu(like))


def _check_one_framework(function: str, *given: Any) -> None:
    if len({_is_torch(array) for array in given if array is not None}) > 1:
        raise TypeError(
            f"{function}: torch tensors and other arrays are in one call; on the CPU the framework multiplies, so all "
            "must be of one: convert with torch.from_numpy or .numpy()"
        )
    for array in given:
        if array is not None and not _is_torch(array) and not hasattr(array, "astype"):
            raise TypeError(
                f"{function}: on the CPU arrays are multiplied by their framework, and a {type(array).__name__} has no "
                "astype and @; pass torch tensors or NumPy arrays"
            )


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _namespace(array: Any) -> Any:
    """The module of the functions for arrays of this kind."""
    if _is_torch(array):
        return sys.modules["torch"]
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    import numpy

    return numpy


def _float32(array: Any) -> Any:
    return array.detach().float() if _is_torch(array) else array.astype("float32")


def _scales(scale_a: Any, scale_b: Any) -> Any:
    """The factor of each product, or one for all; None for 1."""
    given = [_float32(scale).reshape(-1) for scale in (scale_a, scale_b) if scale is not None]
    if len(given) == 2:
        return given[0] * given[1]
    return given[0] if given else None


def _scaled(product: Any, scales: Any, index: int) -> Any:
    return product if scales is None else product * scales[index if len(scales) > 1 else 0]


def _rounded(product: Any, like: Any, dtype: str) -> Any:
    """`product` as kernels write it: float8_e4m3fn has no infinity, what is too large becomes its largest value."""
    if dtype == "float8_e4m3fn":
        product = product.clip(-_LARGEST_E4M3, _LARGEST_E4M3)
    return product.to(getattr(_namespace(like), dtype)) if _is_torch(like) else product.astype(dtype_like(like, dtype))
