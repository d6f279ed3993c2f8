"""What grouped_mm cannot do on a GPU is refused by name, before anything is written."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import device_sm  # noqa: E402

ROWS, N, K, E = 64, 48, 32, 4


def ones(*shape, dtype=torch.bfloat16, device="cuda"):
    return torch.ones(shape, device=device, dtype=dtype)


def ends(dtype=torch.int32, device="cuda"):
    return torch.tensor([16, 16, 40, 64], dtype=dtype, device=device)


def refused(error, match, **changes):
    """A call that is right but for `changes`; what it would write stays."""
    operands = {"mat_a": ones(ROWS, K), "mat_b": ones(E, K, N), "offs": ends(), **changes}
    written = operands.get("out")
    before = None if written is None else written.clone()
    with pytest.raises(error, match=match):
        gg_runtime.grouped_mm(operands.pop("mat_a"), operands.pop("mat_b"), **operands)
    torch.cuda.synchronize()
    assert written is None or torch.equal(written, before)


@pytest.mark.parametrize("name", ["mat_b", "offs", "bias", "out"])
def test_an_operand_on_the_cpu(name):
    arrays = {"mat_b": ones(E, K, N), "offs": ends(), "bias": ones(E, N), "out": ones(ROWS, N)}
    refused(ValueError, rf"{name}.*CPU", **{name: arrays[name].cpu()})


def test_inputs_on_the_cpu_with_offs_on_the_gpu():
    A, B = ones(ROWS, K, device="cpu"), ones(E, K, N, device="cpu")
    refused(ValueError, "offs is on cuda:0 but mat_a is on the CPU", mat_a=A, mat_b=B)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8, torch.float32], ids=str)
def test_offs_of_another_dtype(dtype):
    refused(TypeError, "offs.*int32", offs=ends(dtype))


def test_offs_that_do_not_count_the_groups():
    for offs in (ends()[:3], ends().repeat(2), ends()[:0], ends().view(2, 2), ends().repeat(2)[::2], None):
        refused(ValueError, "offs", offs=offs)


def test_dtypes():
    refused(TypeError, "mat_b has dtype float16", mat_b=ones(E, K, N, dtype=torch.float16))
    refused(TypeError, "out has dtype float16", out=ones(ROWS, N, dtype=torch.float16))
    refused(TypeError, "bias has dtype float16", bias=ones(E, N, dtype=torch.float16))
    refused(ValueError, "out_dtype is float32", out_dtype=torch.float32)
    for dtype in (torch.float32, torch.float64, torch.int8, torch.float8_e5m2):
        refused(TypeError, "mat_a", mat_a=ones(ROWS, K).to(dtype), mat_b=ones(E, K, N).to(dtype))


def test_shapes():
    refused(ValueError, "K=", mat_b=ones(E, K + 1, N))
    refused(ValueError, r"out.*\[64, 48\]", out=ones(ROWS, N + 1))
    refused(ValueError, r"bias.*\[4, 48\]", bias=ones(E, N + 1))
    refused(ValueError, "bias", bias=ones(N))


def test_ends_that_a_form_has_no_use_for_or_lacks():
    refused(ValueError, "offs", mat_a=ones(E, ROWS, K))  # a stack
    for mat_a, mat_b in ((ones(ROWS, K), ones(K, N)), (ones(E, ROWS, K), ones(K, N)), (ones(ROWS, K), ones(E, K, N))):
        refused(ValueError, "offs is missing", mat_a=mat_a, mat_b=mat_b, offs=None)


@pytest.mark.parametrize("operand", ["mat_a", "mat_b", "offs", "bias"])
@pytest.mark.parametrize("shift", [0, 1, 40])
def test_an_output_that_shares_memory(operand, shift):
    buffer = torch.ones(4 * ROWS * N, device="cuda", dtype=torch.bfloat16)
    views = {
        "mat_a": lambda part: part[: ROWS * K].view(ROWS, K),
        "mat_b": lambda part: part[: E * K * N].view(E, K, N),
        "offs": lambda part: part[: 2 * E].view(torch.int32),
        "bias": lambda part: part[: E * N].view(E, N),
    }
    shared = views[operand](buffer[2 * shift :])
    refused(ValueError, f"out shares memory with {operand}", out=buffer[: ROWS * N].view(ROWS, N), **{operand: shared})


def test_an_output_whose_elements_share_memory():
    for out in (ones(1, N).expand(ROWS, N), ones(ROWS + N - 1).as_strided((ROWS, N), (1, 1))):
        refused(ValueError, "out has elements that share memory", out=out)


def test_an_output_that_requires_grad():
    out = ones(ROWS, N).requires_grad_()
    refused(ValueError, "out requires grad", out=out)
    with torch.no_grad():
        gg_runtime.grouped_mm(ones(ROWS, K), ones(E, K, N), offs=ends(), out=out)
    assert bool((out.detach() == K).all())


def test_scales():
    refused(ValueError, "scale_a.*float8_e4m3fn", scale_a=ones(1, dtype=torch.float32))
    refused(ValueError, "scale_b.*float8_e4m3fn", scale_b=ones(E, dtype=torch.float32))


@pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")
@pytest.mark.parametrize("name, counts", [("scale_a", (0, 2, E)), ("scale_b", (0, 2, E + 1))])
def test_scales_of_e4m3(name, counts):
    e4m3 = {"mat_a": ones(ROWS, K).to(torch.float8_e4m3fn), "mat_b": ones(E, K, N).to(torch.float8_e4m3fn)}
    for count in counts:
        refused(ValueError, name, **e4m3, **{name: ones(count, dtype=torch.float32)})
    refused(ValueError, f"{name}.*CPU", **e4m3, **{name: ones(1, dtype=torch.float32, device="cpu")})
    refused(TypeError, f"{name}.*float32", **e4m3, **{name: ones(1)})
    refused(TypeError, "out", **e4m3, out=ones(ROWS, N, dtype=torch.float64))


def test_an_unknown_variant():
    with pytest.raises(ValueError, match="no_such_kernel"):
        gg_runtime._C.grouped_mm(ones(ROWS, K), ones(E, K, N), offs=ends(), variant="no_such_kernel")


def test_inputs_that_require_grad_are_taken_while_nothing_is_recorded():
    A, B = ones(ROWS, K).requires_grad_(), torch.nn.Parameter(ones(E, K, N))
    with pytest.raises(RuntimeError, match=r"mat_a requires grad.*torch.no_grad\(\).*mat_a.detach\(\)"):
        gg_runtime.grouped_mm(A, B, offs=ends(), out=ones(ROWS, N))
    with torch.no_grad():
        C = gg_runtime.grouped_mm(A, B, offs=ends())
    assert type(C) is torch.Tensor and not C.requires_grad and bool((C == K).all())


def test_a_call_after_refusals_works():
    assert bool((gg_runtime.grouped_mm(ones(ROWS, K), ones(E, K, N), offs=ends()) == K).all())
