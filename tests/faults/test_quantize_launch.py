"""quantize_1x128 up to the driver: the kernel, its arguments, its grid, its outputs."""

import pytest

from embedded import KERNELS
from faults.experts import given_to
from faults.fake_driver import SM_80, assert_says

CALL = """
    import torch
    x = torch.Tensor({rows}, {columns}, dtype=torch.{dtype}, address=fresh_address())
    {change}
    q, scales = gg_runtime.quantize_1x128(x)
    report([x.facts(), q.facts(), scales.facts(), str(q.dtype), str(scales.dtype)])
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("columns", "change", "alignment"),
    [(400, "", 16), (392, "", 2), (1, "", 2), (400, "x.strides = (1, 37)", 2), (400, "x.address += 2", 2),
     (400, "x.strides = (408, 1)", 16), (400, "x.strides = (401, 1)", 2)],
)  # fmt: skip
def test_it_hands_over_what_it_was_given(fake_cuda, dtype, columns, change, alignment):
    ran = fake_cuda.run(CALL.format(rows=37, columns=columns, dtype=dtype, change=change))
    (launch,) = ran.launches
    x, q, scales, q_dtype, scales_dtype = ran.reported[0]
    kernel = KERNELS[f"quantize_sm90_{'fp16' if dtype == 'float16' else 'bf16'}_a{alignment}"]
    assert (launch["symbol"], ran.hash_of(launch)) == ("quantize", kernel["cubin_sha256"])
    blocks = -(-columns // 128)
    assert (q_dtype, q["shape"], q["strides"]) == ("torch.float8_e4m3fn", [37, columns], [columns, 1])
    assert (scales_dtype, scales["shape"], scales["strides"]) == ("torch.float32", [37, blocks], [blocks, 1])
    assert launch["grid"] == [-(-37 // kernel["block_m"]) * blocks, 1, 1] and kernel["block_n"] == 128
    found = given_to(launch)
    given = {
        "y": x["address"], "y_row": x["strides"][0], "y_col": x["strides"][1], "out": q["address"],
        "out_row": columns, "scales": scales["address"], "scale_row": blocks, "scale_col": 1, "rows": 37,
        "columns": columns,
    }  # fmt: skip
    assert found == dict.fromkeys(found, 0) | given


@pytest.mark.parametrize(
    ("rows", "columns", "grid"), [(10_000, 1000, 16), (10_000, 128, 20), (40, 128, 2), (40, 9000, 71)]
)
def test_programs_that_the_gpu_holds_at_once_or_one_for_each_column_of_blocks(fake_cuda, rows, columns, grid):
    ran = fake_cuda.run(CALL.format(rows=rows, columns=columns, dtype="float16", change=""), FAKE_CUDA_SMS=10)
    assert ran.launches[0]["grid"] == [grid, 1, 1], "2 on each of 10 multiprocessors"


@pytest.mark.parametrize("sizes", [(0, 128), (37, 0)])
def test_nothing_is_launched_where_there_is_nothing(fake_cuda, sizes):
    ran = fake_cuda.run(CALL.format(rows=sizes[0], columns=sizes[1], dtype="float16", change=""))
    assert ran.launches == [] and ran.reported[0][1]["shape"] == list(sizes)


def test_gpus_without_fp8_say_so(fake_cuda):
    ran = fake_cuda.run("""
        import torch
        report(failure(gg_runtime.quantize_1x128, torch.Tensor(4, 128, dtype=torch.float16, address=fresh_address())))
    """, **SM_80)  # fmt: skip
    assert ran.launches == []
    assert_says(ran.reported[0], "UnsupportedError", "quantize_1x128", "sm_80", "capability 9.0")
