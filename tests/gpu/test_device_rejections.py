"""What cannot be multiplied on a GPU is refused by name, before anything is written."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402


def matrix(rows=64, columns=64, dtype=torch.float16, device="cuda"):
    return torch.ones(rows, columns, device=device, dtype=dtype)


def overlapping(shift):
    """Two matrices [64, 64] of one buffer, `shift` elements apart."""
    buffer = torch.ones(2 * 64 * 64, device="cuda", dtype=torch.float16)
    return buffer[: 64 * 64].view(64, 64), buffer[shift : shift + 64 * 64].view(64, 64)


def refused(error, match, A, B, out=None):
    for call in (gg_runtime.group_gemm, gg_runtime.Plan):
        before = [c.clone() for c in out or []]
        with pytest.raises(error, match=match):
            call(A, B, out=out)
        assert all(torch.equal(c, old) for c, old in zip(out or [], before))


def test_mixed_devices():
    refused(ValueError, r"B\[0\] is on the CPU", [matrix()], [matrix(device="cpu")])
    refused(ValueError, r"A\[1\] is on the CPU", [matrix(), matrix(device="cpu")], [matrix(), matrix()])
    refused(ValueError, r"out\[0\] is on the CPU", [matrix()], [matrix()], [matrix(device="cpu")])


def test_dtypes():
    refused(TypeError, "bfloat16", [matrix()], [matrix(dtype=torch.bfloat16)])
    refused(TypeError, "float8_e4m3fn", [matrix()], [matrix().to(torch.float8_e4m3fn)])
    for dtype in (torch.float32, torch.float64, torch.int8, torch.float8_e5m2):
        refused(TypeError, r"A\[0\]", [matrix().to(dtype)], [matrix().to(dtype)])
    refused(TypeError, r"out\[0\]", [matrix()], [matrix()], [matrix(dtype=torch.float32)])


def test_shapes():
    refused(ValueError, r"B\[1\] has K=32", [matrix(), matrix()], [matrix(), matrix(rows=32)])
    refused(ValueError, "group_A has 2", [matrix(), matrix()], [matrix()])
    refused(ValueError, "3 dimensions", [matrix().view(1, 64, 64)], [matrix()])
    refused(ValueError, r"out\[0\] has shape", [matrix()], [matrix()], [matrix(rows=65)])
    refused(ValueError, "out has 2", [matrix()], [matrix()], [matrix(), matrix()])


@pytest.mark.parametrize("shift", [0, 1, 64, 64 * 64 - 1])
@pytest.mark.parametrize("operand", ["A", "B", "out"])
def test_an_output_that_shares_memory(shift, operand):
    C, other = overlapping(shift)
    A, B, out = [matrix(), matrix()], [matrix(), matrix()], [matrix(), C]
    {"A": A, "B": B, "out": out}[operand][0] = other
    refused(ValueError, r"out\[[01]\] shares memory", A, B, out)


def test_an_output_whose_elements_share_memory():
    for out in (matrix(1, 64).expand(64, 64), torch.ones(127, device="cuda").half().as_strided((64, 64), (1, 1))):
        refused(ValueError, r"out\[0\] has elements that share memory", [matrix()], [matrix()], [out])


def test_neighbours_that_share_no_element_are_taken():
    C, A = overlapping(64 * 64)
    whole = matrix(64, 128)
    gg_runtime.group_gemm([A, A, A], [matrix()] * 3, out=[C, whole[:, :64], whole[:, 64:]])
    assert bool((C == 64).all()) and bool((whole == 64).all())


def test_an_output_that_requires_grad():
    out = matrix().requires_grad_()
    with pytest.raises(ValueError, match=r"out\[0\] requires grad"):
        gg_runtime.group_gemm([matrix()], [matrix()], out=[out])
    with torch.no_grad():
        gg_runtime.group_gemm([matrix()], [matrix()], out=[out])
    assert bool((out.detach() == 64).all())


def test_an_unknown_variant():
    with pytest.raises(ValueError, match="no_such_kernel"):
        gg_runtime.Plan([matrix()], [matrix()], variant="no_such_kernel")


def test_a_call_after_refusals_works():
    (C,) = gg_runtime.group_gemm([matrix()], [matrix()])
    assert bool((C == 64).all())
