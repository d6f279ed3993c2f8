"""scaled_grouped_mm: torch's signature, recipes by torch's enums and by name, and what it refuses."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import scaled_oracle  # noqa: E402
from scaled_oracle import E4M3, assert_exact, powers_of_two, sparse_integers  # noqa: E402

F = torch.nn.functional
OFFS = torch.tensor([5, 5, 17, 24], dtype=torch.int32)
RECIPES = {
    "tensor": ("TensorWise", "TensorWise"),
    "row": ("RowWise", "RowWise"),
    "block": ("BlockWise1x128", "BlockWise128x128"),
}
SIZES = [(200, 300), (128, 128), (16, 1024), (129, 257)]


def enums(names):
    """Members of torch's own enum, where this torch has it."""
    if not hasattr(F, "ScalingType"):
        pytest.skip("this torch has no ScalingType")
    return [getattr(F.ScalingType, name) for name in names]


def operands(mode: str, n=200, k=300, rows=24):
    A, B = sparse_integers(rows, k, device="cpu"), sparse_integers(4, n, k, device="cpu").mT
    shapes = ((1,), (4,)) if mode == "tensor" else scaled_oracle.shapes(mode, rows, 4, n, k)
    return A, B, [powers_of_two(shape, "cpu") for shape in shapes]


def as_torch_has_them(mode: str, scale_b):
    """torch's order of dimensions of scale_b is mat_b's, [K, N]."""
    return scale_b.mT if mode == "block" else scale_b


def by_rows(mode: str, of, A, B):
    """The same scales for scaled_oracle, which knows rows and blocks."""
    return (of[0].expand(len(A)), of[1][:, None].expand(-1, B.shape[2])) if mode == "tensor" else of


@pytest.mark.skipif(not hasattr(F, "scaled_grouped_mm"), reason="this torch has no scaled_grouped_mm")
def test_the_signature_is_torchs():
    ours, theirs = (
        inspect.signature(function).parameters for function in (gg_runtime.scaled_grouped_mm, F.scaled_grouped_mm)
    )
    assert [(p.name, p.kind) for p in ours.values()] == [(p.name, p.kind) for p in theirs.values()]
    defaults = [(mine.default, other.default) for mine, other in zip(ours.values(), theirs.values())]
    same = [pair for pair in defaults if pair != ("bfloat16", torch.bfloat16)]
    assert len(same) == len(defaults) - 1 and all(mine == other for mine, other in same)


@pytest.mark.parametrize("by_name", [True, False], ids=["names", "enums"])
@pytest.mark.parametrize("n, k", SIZES)
@pytest.mark.parametrize("mode", RECIPES)
def test_each_recipe_is_a_mode_of_grouped_mm(mode, n, k, by_name):
    A, B, of = operands(mode, n, k)
    recipe_a, recipe_b = RECIPES[mode] if by_name else enums(RECIPES[mode])
    given = A, B, of[0], recipe_a, as_torch_has_them(mode, of[1]), recipe_b
    C = gg_runtime.scaled_grouped_mm(*given, offs=OFFS)
    assert C.dtype is torch.bfloat16
    assert_exact(C, A, B, OFFS, *by_rows(mode, of, A, B))
    lists = [[one] if position > 1 else one for position, one in enumerate(given)]
    bias = torch.randint(-9, 10, (4, n)).float()
    C = gg_runtime.scaled_grouped_mm(*lists, [], None, bias, OFFS, torch.float32, (-1, -2), True)
    assert_exact(C, A, B, OFFS, *by_rows(mode, of, A, B), bias=bias)


def test_blocks_along_k_may_be_filled_up_as_torchs_are():
    A, B, (of_a, of_b) = operands("block", 200, 700)
    assert of_b.shape == (4, 2, 6)
    filled = torch.full((4, 8, 2), float("nan"))
    filled[:, :6] = of_b.mT
    C = gg_runtime.scaled_grouped_mm(A, B, of_a, *RECIPES["block"][:1], filled, RECIPES["block"][1], offs=OFFS)
    assert_exact(C, A, B, OFFS, of_a, of_b)


def test_no_swizzle_is_what_there_is():
    A, B, of = operands("row")
    wanted = gg_runtime.grouped_mm(A, B, offs=OFFS, scale_a=of[0], scale_b=of[1])
    swizzles = ["NO_SWIZZLE", None, [], ["NO_SWIZZLE"]]
    if hasattr(F, "SwizzleType"):
        swizzles.append(F.SwizzleType.NO_SWIZZLE)
    for swizzle in swizzles:
        C = gg_runtime.scaled_grouped_mm(A, B, of[0], "RowWise", of[1], "RowWise", swizzle, swizzle, offs=OFFS)
        assert torch.equal(C, wanted)


def refused(*given, **others) -> str:
    with pytest.raises(ValueError) as caught:
        gg_runtime.scaled_grouped_mm(*given, offs=OFFS, **others)
    return str(caught.value)


LISTED = (
    "TensorWise with TensorWise, scale_a of 1 element, scale_b of 1 element or [E]",
    "RowWise with RowWise, scale_a [rows]",
    "BlockWise1x128 with BlockWise128x128, scale_a [rows, K / 128]",
)


@pytest.mark.parametrize(
    "recipes",
    [
        ("BlockWise1x32", "BlockWise1x32"),
        ("BlockWise1x16", "BlockWise1x16"),
        ("BlockWise1x128", "BlockWise1x128"),
        ("RowWise", "TensorWise"),
        ("BlockWise128x128", "BlockWise1x128"),
    ],
)
@pytest.mark.parametrize("by_name", [True, False], ids=["names", "enums"])
def test_other_recipes_are_refused_with_a_list_of_those_there_are(recipes, by_name):
    A, B, of = operands("row")
    recipe_a, recipe_b = recipes if by_name else enums(recipes)
    text = refused(A, B, of[0], recipe_a, of[1], recipe_b)
    for word in (f"no recipe {recipes[0]} for mat_a with {recipes[1]} for mat_b", *LISTED):
        assert word in text


def test_two_levels_of_scales_and_swizzles_are_refused():
    A, B, of = operands("row")
    text = refused(
        A, B, [of[0], of[0]], ["BlockWise1x16", "TensorWise"], [of[1], of[1]], ["BlockWise1x16", "TensorWise"]
    )
    assert "scale_recipe_a has 2 elements; one is needed" in text and all(word in text for word in LISTED)
    text = refused(A, B, of[0], "RowWise", of[1], "RowWise", swizzle_b="SWIZZLE_32_4_4")
    assert "swizzle_b is SWIZZLE_32_4_4, scales are read without swizzle" in text


def test_scales_of_another_shape_are_refused():
    A, B, of = operands("block", 200, 700)
    text = refused(A, B, of[0], "BlockWise1x128", of[1], "BlockWise128x128")
    assert "scale_b has shape [4, 2, 6]; [4, 6, 2] is needed; pass scale_b.mT" in text
    text = refused(A, B, of[0], "BlockWise1x128", of[1][0], "BlockWise128x128")
    assert "scale_a has shape [24, 6] and scale_b [2, 6], which are not of BlockWise1x128" in text and LISTED[2] in text
    text = refused(A, B, of[0][:, :5], "BlockWise1x128", of[1].mT, "BlockWise128x128")
    assert text.startswith("grouped_mm: scale_a has shape [24, 5]; [24, 6] is needed")


@pytest.mark.parametrize("recipe", ["tensor", "row", "block"])
@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_scales_of_another_recipe_are_refused(recipe, scales):
    """The ranks of scales choose the kernel: what a recipe says otherwise would be multiplied by the wrong factors."""
    A, B, of = operands(scales)
    recipes = RECIPES[recipe]
    given = A, B, of[0], recipes[0], as_torch_has_them(scales, of[1]), recipes[1]
    if recipe == scales:
        gg_runtime.scaled_grouped_mm(*given, offs=OFFS)
        return
    text = refused(*given)
    assert f"which are not of {recipes[0]}" in text and str(list(of[0].shape)) in text
    assert all(word in text for word in LISTED)


def test_what_is_no_array_is_refused_by_its_name():
    A, B, of = operands("row")
    for changed, what in (
        ({0: [A]}, "mat_a is a list"),
        ({1: None}, "mat_b is a NoneType"),
        ({2: None}, "scale_a is a NoneType"),
        ({4: 1.0}, "scale_b is a float"),
    ):
        given = [A, B, of[0], "RowWise", of[1], "RowWise"]
        for place, other in changed.items():
            given[place] = other
        with pytest.raises(TypeError, match=what):
            gg_runtime.scaled_grouped_mm(*given, offs=OFFS)
    with pytest.raises(TypeError, match="contraction_dim is 1; a sequence of two dimensions is needed"):
        gg_runtime.scaled_grouped_mm(A, B, of[0], "RowWise", of[1], "RowWise", offs=OFFS, contraction_dim=1)


@pytest.mark.parametrize("dimensions", [(1, 1), (-1, -2), [1, -2]])
def test_the_contraction_is_along_the_last_dimension_and_the_last_but_one(dimensions):
    A, B, of = operands("row")
    wanted = gg_runtime.grouped_mm(A, B, offs=OFFS, scale_a=of[0], scale_b=of[1])
    given = A, B, of[0], "RowWise", of[1], "RowWise"
    assert torch.equal(gg_runtime.scaled_grouped_mm(*given, offs=OFFS, contraction_dim=dimensions), wanted)
    for other in ((0, 1), (1, 2), (1,), (3, 4), (5, 4)):
        assert f"contraction_dim is {list(other)}" in refused(*given, contraction_dim=other)


@pytest.mark.parametrize("by_name", [True, False], ids=["names", "enums"])
@pytest.mark.parametrize("mode", RECIPES)
def test_it_is_one_graph_of_torch_compile(mode, by_name):
    A, B, of = operands(mode)
    recipe_a, recipe_b = RECIPES[mode] if by_name else enums(RECIPES[mode])

    def product(a, b, of_a, of_b):
        return gg_runtime.scaled_grouped_mm(a, b, of_a, recipe_a, of_b, recipe_b, offs=OFFS) * 1

    given = A, B, of[0], as_torch_has_them(mode, of[1])
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), product(*given))


def test_what_is_not_fp8_goes_to_grouped_mm():
    A, B, of = operands("row")
    assert A.dtype is E4M3
    with pytest.raises(TypeError, match=r"mat_a has dtype torch.bfloat16; float8_e4m3fn .* is needed. grouped_mm"):
        gg_runtime.scaled_grouped_mm(A.bfloat16(), B.bfloat16(), of[0], "RowWise", of[1], "RowWise", offs=OFFS)


def ragged_k():
    """[16, total] and [total, 32], of which K is ragged."""
    return sparse_integers(16, 256, device="cpu"), sparse_integers(32, 256, device="cpu").mT, OFFS * 8


def test_a_ragged_k_takes_one_scale_each():
    A, B, offs = ragged_k()
    one, two = torch.tensor([0.5]), torch.tensor(2.0)
    C = gg_runtime.scaled_grouped_mm(A, B, one, "TensorWise", two, "TensorWise", offs=offs)
    assert torch.equal(C, gg_runtime.grouped_mm(A, B, offs=offs))


@pytest.mark.parametrize(
    ("recipe", "scales"),
    [("RowWise", [(16,), (4, 32)]), ("RowWise", [(64,), (128,)]), ("TensorWise", [(1,), (4,)])],
)
def test_other_scales_of_a_ragged_k_are_refused(recipe, scales):
    A, B, offs = ragged_k()
    of = [torch.ones(shape) for shape in scales]
    with pytest.raises(ValueError) as caught:
        gg_runtime.scaled_grouped_mm(A, B, of[0], recipe, of[1], recipe, offs=offs)
    assert str(caught.value) == (
        f"scaled_grouped_mm: mat_a has shape [16, 256] and mat_b [256, 32], so K is ragged, and scales are {recipe} "
        f"{list(scales[0])} and {recipe} {list(scales[1])}; TensorWise of 1 element each is needed there. Scales of "
        "1x128 blocks of both matrices go to grouped_mm: scale_a [M, blocks], scale_b [blocks, N]"
    )
