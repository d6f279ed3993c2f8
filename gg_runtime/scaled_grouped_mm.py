"""`torch.nn.functional.scaled_grouped_mm`, by its signature, over `grouped_mm`."""

import math
from collections.abc import Sequence
from typing import Any

from .arrays import Array, ArrayT, is_list
from .grouped_mm import grouped_mm

BLOCK = 128
# The recipes of mat_a and of mat_b that there are: their names in torch.nn.functional.ScalingType.
TENSOR = ("TensorWise", "TensorWise")
ROW = ("RowWise", "RowWise")
BLOCKS = ("BlockWise1x128", "BlockWise128x128")
RECIPES = {
    TENSOR: "scale_a of 1 element, scale_b of 1 element or [E]",
    ROW: "scale_a [rows], or [E, M] of a stack, and scale_b [E, N]",
    BLOCKS: "scale_a [rows, K / 128], or [E, M, K / 128] of a stack, and scale_b [E, K / 128, N / 128], rounded up",
}


def scaled_grouped_mm(
    mat_a: ArrayT,
    mat_b: ArrayT,
    scale_a: Array | Sequence[Array],
    scale_recipe_a: Any,
    scale_b: Array | Sequence[Array],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Array | None = None,
    offs: Array | None = None,
    output_dtype: object = "bfloat16",
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> ArrayT:
    """`grouped_mm` of fp8 matrices with the signature of `torch.nn.functional.scaled_grouped_mm`.

    Recipes are members of `torch.nn.functional.ScalingType`, or their names where torch has no such enum:

        scale_recipe_a, scale_recipe_b        scale_a                                scale_b
        "TensorWise", "TensorWise"            1 element                              1 element, or [E]
        "RowWise", "RowWise"                  [rows], or [E, M] of a stack           [E, N]
        "BlockWise1x128", "BlockWise128x128"  [rows, K / 128], or [E, M, K / 128]    [E, K / 128, N / 128]

    Scales are float32 with any strides. Blocks are rounded up. As in `torch.nn.functional.scaled_mm`, scale_b of blocks
    has its dimensions in the order of mat_b: weights w [E, N, K] with scales s [E, N / 128, K / 128] go in as w.mT and
    s.mT. Blocks along K may be filled up to a multiple of 4, as torch's are; what is behind K is not read.

    Args:
        mat_a, mat_b, bias, offs: as for `grouped_mm`: ragged rows, or stacks without `offs`. With a ragged K (both
            matrices 2-D) scales have 1 element each; `grouped_mm` itself takes those of 1x128 blocks there.
        scale_a, scale_b: a tensor, or a list of one.
        swizzle_a, swizzle_b: None or SwizzleType.NO_SWIZZLE.
        output_dtype: as for `grouped_mm`; bfloat16 for None.
        contraction_dim: the dimensions of mat_a and mat_b that are K: none, or the last and the last but one.
        use_fast_accum: taken as torch has it, and not read. Sums are promoted to float32 every 128 of K.

    Returns:
        the output of `grouped_mm`.

    Raises:
        ValueError: recipes or swizzles that there are not, which it lists, or what `grouped_mm` raises.
        TypeError and others: as `grouped_mm` raises them.
    """
    recipes = _only(scale_recipe_a, "scale_recipe_a"), _only(scale_recipe_b, "scale_recipe_b")
    names = _name(recipes[0]), _name(recipes[1])
    if names not in RECIPES:
        raise ValueError(_refusal(f"there is no recipe {names[0]} for mat_a with {names[1]} for mat_b"))
    for swizzle, what in ((swizzle_a, "swizzle_a"), (swizzle_b, "swizzle_b")):
        _check_swizzle(swizzle, what)
    of_a, of_b = _only(scale_a, "scale_a"), _only(scale_b, "scale_b")
    for what, array in (("mat_a", mat_a), ("mat_b", mat_b), ("scale_a", of_a), ("scale_b", of_b)):
        if not hasattr(array, "shape"):
            raise TypeError(_refusal(f"{what} is a {type(array).__name__}, an array is needed"))
    dtype = str(getattr(mat_a, "dtype", "float8"))  # of an array that does not say, grouped_mm finds out
    if "float8" not in dtype:
        raise TypeError(
            f"scaled_grouped_mm: mat_a has dtype {dtype}; float8_e4m3fn or float8_e5m2 is needed. grouped_mm "
            "multiplies float16 and bfloat16, without scales"
        )
    _check_ragged_k(names, mat_a, mat_b, of_a, of_b)
    _check_scales(names, mat_a, of_a, of_b)
    _check_contraction(mat_a, mat_b, contraction_dim)
    return grouped_mm(
        mat_a, mat_b, offs=offs, bias=bias, out_dtype="bfloat16" if output_dtype is None else output_dtype,
        scale_a=of_a, scale_b=_scales_of_blocks(mat_b, of_b) if names == BLOCKS else of_b,
    )  # fmt: skip


def _only(given: Any, what: str) -> Any:
    """The one in a list of one."""
    if not is_list(given):
        return given
    if len(given) != 1:
        raise ValueError(_refusal(f"{what} has {len(given)} elements; one is needed"))
    return given[0]


def _name(member: Any) -> str:
    """Of a member of torch's enums, or by itself."""
    return member if isinstance(member, str) else str(getattr(member, "name", member))


def _refusal(what: str) -> str:
    known = "; ".join(f"{a} with {b}, {shapes}" for (a, b), shapes in RECIPES.items())
    return f"scaled_grouped_mm: {what}. There are, of float32 scales without swizzle: {known}"


def _check_swizzle(swizzle: Any, what: str) -> None:
    if swizzle is None or (is_list(swizzle) and not len(swizzle)):
        return
    name = _name(_only(swizzle, what))
    if name != "NO_SWIZZLE":
        raise ValueError(_refusal(f"{what} is {name}, scales are read without swizzle; pass them as they are"))


def _check_ragged_k(names: tuple[str, str], mat_a: Any, mat_b: Any, of_a: Any, of_b: Any) -> None:
    if len(mat_a.shape) != 2 or len(mat_b.shape) != 2:
        return
    if names == TENSOR and math.prod(of_a.shape) == 1 and math.prod(of_b.shape) == 1:
        return
    raise ValueError(
        f"scaled_grouped_mm: mat_a has shape {list(mat_a.shape)} and mat_b {list(mat_b.shape)}, so K is ragged, and "
        f"scales are {names[0]} {list(of_a.shape)} and {names[1]} {list(of_b.shape)}; TensorWise of 1 element each is "
        "needed there. Scales of 1x128 blocks of both matrices go to grouped_mm: scale_a [M, blocks], "
        "scale_b [blocks, N]"
    )


def _check_scales(names: tuple[str, str], mat_a: Any, of_a: Any, of_b: Any) -> None:
    """Whether the ranks of the scales, by which `grouped_mm` tells its modes apart, are those of the recipes."""
    shapes = tuple(of_a.shape), tuple(of_b.shape)
    if names == TENSOR:
        fits = math.prod(shapes[0]) == 1 and (len(shapes[1]) <= 1 or math.prod(shapes[1]) == 1)
    else:
        rows = len(mat_a.shape) - 1  # and a dimension of blocks
        fits = tuple(map(len, shapes)) == ((rows, 2) if names == ROW else (rows + 1, 3))
    if not fits:
        raise ValueError(
            _refusal(f"scale_a has shape {list(shapes[0])} and scale_b {list(shapes[1])}, which are not of {names[0]}")
        )


def _check_contraction(mat_a: Any, mat_b: Any, dimensions: Sequence[int]) -> None:
    # Not all callers check types.
    if not isinstance(dimensions, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"scaled_grouped_mm: contraction_dim is {dimensions!r}; a sequence of two dimensions is needed")
    if not len(dimensions):
        return
    ranks = len(mat_a.shape), len(mat_b.shape)
    of_k = ranks[0] - 1, ranks[1] - 2
    if len(dimensions) == 2 and all(one in (k, k - rank) for one, rank, k in zip(dimensions, ranks, of_k)):
        return
    raise ValueError(
        f"scaled_grouped_mm: contraction_dim is {list(dimensions)}; K is the last dimension of mat_a and the last but "
        f"one of mat_b, {list(of_k)}; leave it out, or transpose the matrix"
    )


def _scales_of_blocks(mat_b: Any, scale_b: Any) -> Any:
    """[E, N / 128, K / 128] of scales in the order of mat_b, [E, K / 128, N / 128], without those behind K."""
    if len(mat_b.shape) != 3:
        raise ValueError(f"scaled_grouped_mm: mat_b has shape {list(mat_b.shape)}; [E, K, N] is needed for blocks")
    groups, k_blocks, n_blocks = mat_b.shape[0], *(-(-size // BLOCK) for size in mat_b.shape[1:])
    filled = -(-k_blocks // 4) * 4
    if tuple(scale_b.shape) not in ((groups, k_blocks, n_blocks), (groups, filled, n_blocks)):
        turned = tuple(scale_b.shape) == (groups, n_blocks, k_blocks)
        raise ValueError(
            _refusal(
                f"scale_b has shape {list(scale_b.shape)}; {[groups, k_blocks, n_blocks]} is needed"
                + ("; pass scale_b.mT" if turned else "")
            )
        )
    return scale_b[:, :k_blocks].swapaxes(1, 2)
