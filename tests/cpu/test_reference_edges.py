"""Edges of the CPU path: outputs of other frameworks, nothing to multiply, what is rounded, what a Plan keeps."""

import numpy as np
import pytest

import gg_runtime

torch = pytest.importorskip("torch")

from train_oracle import make  # noqa: E402


def test_no_matrices_that_are_gated():
    a, b = torch.zeros(0, 5, 9).half(), torch.zeros(0, 9, 8).half()
    assert gg_runtime.grouped_mm(a, b, activation="swiglu").shape == (0, 5, 4)


def test_new_outputs_of_ragged_columns_are_row_major():
    a, b, offs = torch.ones(2, 5, 9).half(), torch.ones(9, 20).half(), torch.tensor([4, 18]).int()
    assert gg_runtime.grouped_mm(a, b, offs=offs).is_contiguous()
    assert gg_runtime.grouped_mm(a.numpy(), b.numpy(), offs=offs.numpy()).flags.c_contiguous


def test_an_output_of_another_framework_is_refused():
    y, inverse = torch.zeros(6, 8).half(), torch.zeros(3, 2, dtype=torch.int32)
    with pytest.raises(TypeError, match="must be of one"):
        gg_runtime.combine(y, inverse, out=np.zeros((3, 8), np.float16))


def test_rows_that_are_weighted_first_are_rounded_before_they_are_multiplied():
    """With one slot a token it is the layer of rows that the caller has weighted and rounded."""
    given = make(k=1, tokens=40, dropped=False)
    weights = given.pop("topk_weights")
    rows = (given["x"].float() * weights).bfloat16()
    found = gg_runtime.fused_experts(**given, topk_weights=weights, apply_router_weight_on_input=True)
    assert torch.equal(found, gg_runtime.fused_experts(**given | {"x": rows}, topk_weights=torch.ones_like(weights)))


def test_a_plan_keeps_the_matrices_that_it_was_made_of():
    A, B, one = [torch.ones(2, 8).half()], [torch.ones(8, 4).half()], [torch.ones(2)]
    plan = gg_runtime.Plan(A, B)
    A[0], B[0] = torch.zeros(2, 8).half(), torch.zeros(8, 4).half()
    assert plan.run()[0].eq(8).all()
    fp8 = [torch.ones(2, 16).to(torch.float8_e4m3fn)], [torch.ones(16, 16).to(torch.float8_e4m3fn)]
    plan = gg_runtime.Plan(*fp8, scale_a=one, scale_b=[torch.ones(16)])
    one[0] = torch.zeros(2)
    assert plan.run()[0].eq(16).all()
