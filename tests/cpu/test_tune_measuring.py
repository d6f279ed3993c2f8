"""How the tuner lays out a product's memory and checks its result: on the CPU, with plans that multiply by torch."""

from itertools import accumulate

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from aot.tuning import fused, grouped, lists, timing  # noqa: E402
from aot.tuning.layers import Layer  # noqa: E402
from aot.tuning.measurement import GroupedProduct, ListProduct  # noqa: E402

WRONG = "wrong"
NAMES = ["right", WRONG]


class PlanByTorch:
    """Takes what gg_runtime.Plan takes; `wrong` leaves the last row as it was."""

    made = []
    slots = 264

    def __init__(self, a, b, *, out, variant, offs=None, **besides):
        self.operands, self.out, self.offs, self.variant, self.besides = (a, b), out, offs, variant, besides
        PlanByTorch.made.append(self)

    def run(self):
        a, b = self.operands
        if self.besides:
            return self.run_fused(a, b)
        if self.offs is None:
            products = [(x, y, c) for x, y, c in zip(a, b, self.out)]
        else:
            starts = [0, *self.offs.tolist()]
            products = [(a[i:j], y, self.out[i:j]) for i, j, y in zip(starts, starts[1:], b)]
        before = self.last_row.clone()
        for x, y, c in products:
            c[:] = (x.float() @ y.float()).to(c.dtype)
        if self.variant == WRONG:
            self.last_row[:] = before

    def run_fused(self, a, b):
        """By the library's own product on the CPU."""
        before = self.last_row.clone()
        gg_runtime.grouped_mm(a, b, offs=self.offs, out=self.out, **self.besides)
        if self.variant == WRONG:
            self.last_row[:] = before

    @property
    def last_row(self):
        return self.out[-1] if self.offs is not None else self.out[-1][-1]


class ReplayOnce:
    """In place of a graph: a time that tells how many copies it goes round."""

    def __init__(self, calls, stream):
        self.calls = calls

    def us(self, rest=0):
        self.calls[0]()
        return 10.0 + len(self.calls)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    PlanByTorch.made.clear()
    monkeypatch.setattr(gg_runtime, "Plan", PlanByTorch)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**8, 10**9))
    for module in (lists, grouped):
        monkeypatch.setattr(module, "Replay", ReplayOnce)
        monkeypatch.setattr(module, "DEVICE", "cpu")
        monkeypatch.setattr(module, "copies_for", lambda moved, passes, most: min(most, 3))


@pytest.fixture
def said():
    return []


@pytest.mark.parametrize("layout", lists.LAYOUTS)
def test_a_list_is_multiplied_in_its_layout_and_a_wrong_kernel_is_left_out(layout, said):
    product = ListProduct(layout, ((64, 32, 16), (8, 48, 24), (64, 32, 16)))
    found = lists.Lists().measure([product], NAMES, said.append)
    assert found == {product: {"right": (264, 13.0)}}
    assert len(said) == 1 and said[0].startswith("wrong is wrong on [((64, 32, 16), 2), ((8, 48, 24), 1)]")
    copies = [plan for plan in PlanByTorch.made if plan.variant == "right"]
    assert len(copies) == 3 and len({c.data_ptr() for plan in copies for c in plan.out}) == 9
    for plan in copies:
        for a, b, (m, n, k) in zip(*plan.operands, product.shapes):
            assert (a.shape, b.shape) == ((m, k), (k, n)) and a.is_contiguous()
            assert b.is_contiguous() == (layout == "nn") and b.t().is_contiguous() == (layout == "nt")


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_grouped_products_share_one_memory_and_each_split_is_timed(dtype, said):
    units = [[GroupedProduct(dtype, how, 8, rows, 64, 32) for how in ("multinomial", "zipf")] for rows in (40, 8)]
    family = grouped.Grouped("ragged", units)
    for unit in units:
        found = family.measure(unit, NAMES, said.append)
        assert found == {product: {"right": (264, 13.0)} for product in unit}
    assert all("wrong is wrong on GroupedProduct" in line for line in said) and len(said) == 2
    plans = [plan for plan in PlanByTorch.made if plan.variant == "right"]
    assert len({plan.out.data_ptr() for plan in plans}) == 1, "the smaller one lies in the memory of the larger"
    a, b = plans[0].operands
    assert (a.shape, b.shape, plans[0].out.shape) == ((40, 32), (8, 32, 64), (40, 64)) and b.mT.is_contiguous()
    assert a.dtype == grouped.DTYPES[dtype] and plans[0].out.dtype == torch.bfloat16
    assert family.memory.offs[:8].tolist() == list(accumulate(units[1][1].group_rows)), "of the last split"


@pytest.mark.parametrize("besides", fused.BESIDES, ids="-".join)
def test_what_a_fused_kernel_does_besides_is_asked_of_it_and_checked(besides, said):
    epilogue, source = besides
    unit = [GroupedProduct("bf16", how, 8, 40, 64, 32, epilogue, source) for how in ("multinomial", "zipf")]
    found = grouped.Grouped("fused", [unit]).measure(unit, NAMES, said.append)
    assert found == {product: {"right": (264, 13.0)} for product in unit}
    assert len(said) == 1 and said[0].startswith("wrong is wrong on GroupedProduct")
    plan = PlanByTorch.made[0]
    a, b = plan.operands
    assert (len(a), b.shape) == (10 if source == "indexed" else 40, (8, 32, 64))
    assert b.is_contiguous() == (epilogue == "gated_pairs") and b.mT.is_contiguous() != b.is_contiguous()
    assert plan.out.shape == (40, 64 if epilogue == "linear" else 32)
    assert ("a_index" in plan.besides, "activation" in plan.besides) == (source == "indexed", epilogue != "linear")


def test_an_index_rises_within_each_group_and_picks_rows_that_are_there():
    product = GroupedProduct("bf16", "zipf", 8, 400, 64, 32, "linear", "indexed")
    index, first = grouped.routed_rows(product), 0
    assert len(index) == 400 and set(index.tolist()) <= set(range(100))
    for rows in product.group_rows:
        mine = index[first : first + rows].tolist()
        assert mine == sorted(mine)
        first += rows


def test_fused_units_are_the_same_each_time_and_have_every_kind_of_product_early():
    units = fused.units()
    assert units == fused.units() and len({unit[0] for unit in units}) == len(units) > 100
    assert {(unit[0].epilogue, unit[0].source) for unit in units[:40]} == set(fused.BESIDES)


def test_weights_that_do_not_fit_are_passed_over(said, monkeypatch):
    units = list(Layer(8, 64, 32, (8,)).products()) + list(Layer(64, 4096, 1024, (8,)).products())
    family = grouped.Grouped("layers", units)
    monkeypatch.setattr(grouped, "MOST_WEIGHT_BYTES", 10**6)
    assert len(family.measure(units[0], ["right"], said.append)) == 2 and not said
    assert family.measure(units[1], ["right"], said.append) == {}
    assert said == ["64 experts, N 4096, K 1024: weights do not fit this GPU's memory"]


def test_a_race_times_again_only_what_comes_near_the_best():
    times = {"best": [9.0, 12.0, 10.0, 11.0], "near": [10.0, 9.0, 9.0, 9.0], "far": [20.0]}

    class Replay:
        def __init__(self, name):
            self.left = list(times[name])

        def us(self, rest=0):
            return self.left.pop(0)

    assert timing.race({name: Replay(name) for name in times}, 1000) == {"best": 11.0, "near": 9.0, "far": 20.0}


def test_the_grid_is_the_same_each_time_and_bf16_comes_first():
    found = grouped.grid()
    assert found == grouped.grid() and len(found) == len(set(found)) > 200
    dtypes = [product.dtype for product in found]
    assert dtypes == sorted(dtypes) and {product.split for product in found} == set(grouped.SPLITS)
    assert all(product.flop <= grouped.LARGEST_FLOP for product in found)


def test_lists_are_the_same_each_time_and_start_with_those_of_the_benchmark():
    from benchmarks.shapes import LISTS

    every = lists.lists()
    assert every == lists.lists() and every[: len(LISTS)] == [tuple(shapes) for shapes in LISTS.values()]
    assert all(ListProduct("nn", shapes).flop <= lists.LARGEST_FLOP for shapes in every)
