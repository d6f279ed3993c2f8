"""Sums of e4m3 products are moved to float32 often enough: the error does not grow with their length.

A tensor core of sm_90 keeps about 13 bits of a running sum of e4m3 products, whatever the type of the accumulator. A
kernel that adds up all of K there is off by some percent at K = 16384 (a model of that arithmetic gives a relative RMS
error of 4e-2 for inputs with a mean of half their deviation). One that moves its sum to float32 every 128 products, as
ours must, is off by as much as a sum of 128 is (1e-4 in the model) at any K, because errors of the parts are unrelated.

So a kernel is measured against itself at K = 128, with a margin of 3, and the order of the float32 sums adds at most 32
times what torch's float32 product of the same inputs is off. That product alone sets no bound: its error is 1e-6, which
no kernel on these tensor cores reaches even at K = 128.
"""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import ARTIFACTS, FP8_STACK_ARTIFACTS, RAGGED_ARTIFACTS, device_sm  # noqa: E402
from fp8_errors import relative_rms  # noqa: E402
from ragged_cases import as_offs, forced  # noqa: E402

# The output dtype does not change the sums; float32 shows them. Kernels with scales of rows or blocks: test_fp8_scales.
SUMMING = [
    a
    for a in ARTIFACTS
    if (a["sm"], a["dtype"], a["out_dtype"], a["scaling"]) == (device_sm(), "e4m3", "fp32", "tensor")
]
SHORT, LONG, SIZE = 128, 16384, 256


def inputs(k: int):
    """[SIZE, k] and [k, SIZE], both with k contiguous."""
    A, B = ((torch.randn(SIZE, k, device="cuda") + 0.5).to(torch.float8_e4m3fn) for _ in range(2))
    return A, B.t()


def product(artifact: dict, A, B):
    if artifact in RAGGED_ARTIFACTS:
        return forced(artifact, A, B[None], offs=as_offs([SIZE]), out_dtype=torch.float32)
    if artifact in FP8_STACK_ARTIFACTS:
        return forced(artifact, A[None], B[None], out_dtype=torch.float32)[0]
    (C,) = gg_runtime.Plan([A], [B], out_dtype=torch.float32, variant=artifact["name"]).run()
    return C


@pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")
def test_there_are_kernels_to_look_at():
    kernels = {artifact["kernel"] for artifact in SUMMING}
    plain = {"basic", "hopper", "basic_ragged", "hopper_ragged", "basic_stack", "hopper_stack"}
    assert kernels == plain | {f"hopper_{form}tensor_scales" for form in ("", "ragged_", "stack_")}


@pytest.mark.parametrize("artifact", SUMMING, ids=lambda artifact: artifact["name"])
def test_long_sums_are_as_exact_as_short_ones(artifact):
    errors = {}
    for k in (SHORT, LONG):
        A, B = inputs(k)
        exact = A.double() @ B.double()
        errors[k] = relative_rms(product(artifact, A, B), exact)
        in_float32 = relative_rms(A.float() @ B.float(), exact)
    assert errors[SHORT] <= 2**-11, f"a sum of {SHORT} products has a relative RMS error of {errors[SHORT]:.1e}"
    assert errors[LONG] <= 3 * errors[SHORT] + 32 * in_float32, (
        f"relative RMS error {errors[LONG]:.1e} at K={LONG} against {errors[SHORT]:.1e} at K={SHORT} and "
        f"{in_float32:.1e} of a float32 product: sums are not moved to float32 often enough"
    )
