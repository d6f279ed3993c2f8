"""What the right answer is, and how far from it a result may be."""

import torch

RELATIVE_SLACK = 1e-5  # of the sum of magnitudes: float32 accumulation in another order
# The same for e4m3: a tensor core of sm_90 aligns the 32 products of a step, and the sum so far, to the largest of them
# and keeps 13 bits below its leading one; a sum is moved to float32 after at most 4 such steps.
E4M3_SLACK = 2**-11


def fill_normal(matrices) -> None:
    for matrix in matrices:
        matrix.copy_(torch.randn(matrix.shape, device="cuda"))  # normal_ does not take float8


def fill_sparse_integers(matrices, seed: int = 0) -> None:
    """Integers in [-2, 2], three quarters zero: every order of summation gives the same bits."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for matrix in matrices:
        values = torch.randint(-2, 3, matrix.shape, device="cuda", generator=generator)
        kept = torch.rand(matrix.shape, device="cuda", generator=generator) < 0.25
        matrix.copy_((values * kept).float())  # not every torch makes float8 of integers


def sparse_integers(*shape, dtype):
    """A new array of them, other ones for another shape."""
    array = torch.empty(shape, device="cuda", dtype=dtype)
    fill_sparse_integers([array], seed=sum(shape))
    return array


def exact_products(group_A, group_B, dtype=None) -> list:
    """Of `dtype`; of the inputs' by default."""
    return [(a.float() @ b.float()).to(dtype or a.dtype) for a, b in zip(group_A, group_B)]


def assert_exact(outputs, group_A, group_B) -> None:
    """Equal to the last bit, for inputs of `fill_sparse_integers`."""
    expected = exact_products(group_A, group_B, outputs[0].dtype if outputs else None)
    assert len(outputs) == len(expected)
    if all(torch.equal(c.float(), e.float()) for c, e in zip(outputs, expected)):
        return
    for i, (c, e) in enumerate(zip(outputs, expected)):
        c, e = c.float(), e.float()
        wrong = (c != e).nonzero()
        assert len(wrong) == 0, (
            f"group {i}, {list(group_A[i].shape)} @ {list(group_B[i].shape)}: {len(wrong)} elements differ, "
            f"first at {wrong[0].tolist()}: {c[tuple(wrong[0])].item()} instead of {e[tuple(wrong[0])].item()}"
        )


def allowed_error(a, b, expected, dtype):
    """Twice what torch's own product of the same dtypes is off at most, and the slack; one number.

    torch has no e4m3 product of any shape and layout: there, the rounding to `dtype` stands for it.
    """
    is_e4m3 = a.dtype is torch.float8_e4m3fn
    theirs = expected.to(dtype) if is_e4m3 else a @ b
    slack = E4M3_SLACK if is_e4m3 else RELATIVE_SLACK
    return 2 * (theirs.float() - expected).abs().max() + slack * (a.float().abs() @ b.float().abs()).max()


def assert_close(outputs, group_A, group_B) -> None:
    """No element further from the float32 product than twice what torch's own product of the same dtype is."""
    assert len(outputs) == len(group_A)
    margins = []
    for c, a, b in zip(outputs, group_A, group_B):
        if c.numel() == 0:
            continue
        expected = a.float() @ b.float()
        margins.append(allowed_error(a, b, expected, c.dtype) - (c.float() - expected).abs().max())
    worst = torch.stack(margins) if margins else torch.zeros(1)
    # NaN is not >= 0, so a result that was never written fails as well.
    assert bool((worst >= 0).all()), f"margins of the groups with elements: {worst.tolist()}"
