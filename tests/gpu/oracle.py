"""What the right answer is, and how far from it a result may be."""

import torch

RELATIVE_SLACK = 1e-5  # of the sum of magnitudes: float32 accumulation in another order


def fill_normal(matrices) -> None:
    for matrix in matrices:
        matrix.normal_()


def fill_sparse_integers(matrices, seed: int = 0) -> None:
    """Integers in [-2, 2], three quarters zero: every order of summation gives the same bits."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for matrix in matrices:
        values = torch.randint(-2, 3, matrix.shape, device="cuda", generator=generator)
        kept = torch.rand(matrix.shape, device="cuda", generator=generator) < 0.25
        matrix.copy_(values * kept)


def exact_products(group_A, group_B) -> list:
    return [(a.float() @ b.float()).to(a.dtype) for a, b in zip(group_A, group_B)]


def assert_exact(outputs, group_A, group_B) -> None:
    """Equal to the last bit, for inputs of `fill_sparse_integers`."""
    expected = exact_products(group_A, group_B)
    assert len(outputs) == len(expected)
    if all(torch.equal(c, e) for c, e in zip(outputs, expected)):
        return
    for i, (c, e) in enumerate(zip(outputs, expected)):
        wrong = (c != e).nonzero()
        assert len(wrong) == 0, (
            f"group {i}, {list(group_A[i].shape)} @ {list(group_B[i].shape)}: {len(wrong)} elements differ, "
            f"first at {wrong[0].tolist()}: {c[tuple(wrong[0])].item()} instead of {e[tuple(wrong[0])].item()}"
        )


def assert_close(outputs, group_A, group_B) -> None:
    """No element further from the float32 product than twice what torch's own product of the same dtype is."""
    assert len(outputs) == len(group_A)
    margins = []
    for c, a, b in zip(outputs, group_A, group_B):
        if c.numel() == 0:
            continue
        wide_a, wide_b = a.float(), b.float()
        expected = wide_a @ wide_b
        allowed = 2 * ((a @ b).float() - expected).abs().max() + RELATIVE_SLACK * (wide_a.abs() @ wide_b.abs()).max()
        margins.append(allowed - (c.float() - expected).abs().max())
    worst = torch.stack(margins) if margins else torch.zeros(1)
    # NaN is not >= 0, so a result that was never written fails as well.
    assert bool((worst >= 0).all()), f"margins of the groups with elements: {worst.tolist()}"
