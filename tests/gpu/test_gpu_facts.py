"""What the driver tells of this GPU, on which the choice of a kernel rests."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from aot.spec.gpus import measured_gpus  # noqa: E402


def test_the_driver_tells_clock_and_memory_rate():
    facts = gg_runtime._C.device(torch.cuda.current_device())
    assert facts["clock_mhz"] > 100 and facts["memory_gb_s"] > 10


def test_the_table_has_the_facts_that_the_driver_tells_of_the_measured_gpu():
    """On another GPU: that it gets no measured row."""
    facts = gg_runtime._C.device(torch.cuda.current_device())
    rows, weights = torch.empty(4096, 512, device="cuda", dtype=torch.float16), torch.empty(8, 512, 512).half().cuda()
    offs = torch.full((8,), 4096, device="cuda", dtype=torch.int32)
    reason = gg_runtime.explain(rows, weights, offs=offs).reason  # ragged rows, whose costs every measured GPU has
    known = {(gpu.gpu, gpu.multiprocessors): gpu for gpu in measured_gpus().values()}
    if gpu := known.get((facts["name"], facts["multiprocessors"])):
        for fact in ("sm", "kernels_sm", "clock_mhz", "memory_gb_s"):
            assert facts[fact] == pytest.approx(getattr(gpu, fact), rel=0.01), fact
        assert "scaled to" not in reason
    else:
        assert "scaled to" in reason or "rough rates" in reason


@pytest.mark.parametrize("sizes", [[(512, 512, 512)] * 4, [(128, 8192, 8192)] * 4])
def test_a_description_with_the_drivers_facts_gets_the_same_answer(sizes):
    facts = gg_runtime._C.device(torch.cuda.current_device())
    keys = ("sm", "multiprocessors", "shared_bytes_per_block", "name", "clock_mhz", "memory_gb_s")
    A = [torch.empty(m, k, device="cuda", dtype=torch.float16) for m, n, k in sizes]
    B = [torch.empty(k, n, device="cuda", dtype=torch.float16) for m, n, k in sizes]
    own = gg_runtime.explain(A, B)
    assert gg_runtime.explain(A, B, device={key: facts[key] for key in keys}) == own
