"""The tuner on a GPU: every candidate is right and has a time, in passes that go on where they stopped."""

import pytest

torch = pytest.importorskip("torch")

from aot.tuning.family import Pass  # noqa: E402
from aot.tuning.gradients import Gradients  # noqa: E402
from aot.tuning.grouped import Grouped  # noqa: E402
from aot.tuning.lists import Lists  # noqa: E402
from aot.tuning.measurement import GradientProduct, GroupedProduct, ListProduct  # noqa: E402
from aot.tuning.store import Store  # noqa: E402
from aot.tuning.this_gpu import cubins, this_run  # noqa: E402

SPLITS = ("multinomial", "zipf", "half-empty")


class TwoLists(Lists):
    def units(self):
        shapes = ((256, 512, 128),) * 3, tuple((64 * i, 128, 256) for i in range(1, 41))
        return [[ListProduct(layout, one)] for layout, one in zip(("nn", "nt"), shapes)]


def grouped():
    sizes = ((16, 200, 512, 256), (3, 1000, 256, 512))
    return Grouped("ragged", [[GroupedProduct("bf16", how, *one) for how in SPLITS] for one in sizes])


def scaled():
    sizes = ((16, 200, 512, 256), (3, 1000, 256, 384))
    units = [
        [GroupedProduct("e4m3", how, *one, scales=by) for how in SPLITS] for one in sizes for by in ("row", "block")
    ]
    return Grouped("scaled", units)


def gradients():
    kinds = (("bf16", "fp32"), ("bf16", "bf16"), ("e4m3", "fp32"))
    return Gradients([GradientProduct(*kind, 3, 3 * 256, 200, 512) for kind in kinds])


@pytest.mark.parametrize(
    "family", [TwoLists(), grouped(), scaled(), gradients()], ids=["lists", "grouped", "scaled", "gradients"]
)
def test_every_kernel_is_right_and_timed_and_nothing_is_left(family, tmp_path):
    run, store = this_run(), Store(tmp_path / "kept.jsonl")
    store.start(run)
    one = Pass(family, run, store, cubins())
    candidates = [family.candidates(one.kernels, unit[0]) for unit in family.units()]
    if not any(candidates):
        pytest.skip("no kernel of this family for this GPU")
    one.measure(600, pytest.fail)
    assert one.left().left == 0
    products = sum(len(unit) * len(kernels) for unit, kernels in zip(family.units(), candidates))
    times = list(store.times())
    assert len(times) == products and all(time.us > 0.5 and time.slots > 0 for time in times)
    assert Pass(family, run, Store(store.path), cubins()).left() == one.left()
