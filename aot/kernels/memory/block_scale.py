"""The scale of a block of e4m3 values, as quantize_1x128 has it."""

import triton
import triton.language as tl

SMALLEST = tl.constexpr(2.0**-100)  # a block whose largest is below becomes zeros with the scale 1


# (largest / 448, 448 / largest) of what lies in [SMALLEST, infinity), each rounded once. What a division by the
# compiler is where nothing leaves float32's range: an estimate of the reciprocal, a step of Newton's, and the quotient
# corrected by its remainder. `largest` / 512 has a reciprocal in that range.
QUOTIENTS = tl.constexpr(
    "{ .reg .f32 q, r, b, y; "
    "mul.f32 q, $2, 0f3B124925; fma.rn.f32 r, q, 0fC3E00000, $2; fma.rn.f32 $0, r, 0f3B124925, q; "  # 1 / 448
    "mul.f32 b, $2, 0f3B000000; rcp.approx.ftz.f32 y, b; neg.f32 b, b; "  # 1 / 512
    "fma.rn.f32 r, b, y, 0f3F800000; fma.rn.f32 y, y, r, y; "
    "mul.f32 q, y, 0f3F600000; fma.rn.f32 r, b, q, 0f3F600000; fma.rn.f32 $1, r, y, q; }"  # 448 / 512
)


@triton.jit
def scales_of(values):
    """(scale, what the values are multiplied by) of each row of float32 `values`."""
    largest = tl.max(tl.abs(values), axis=1)
    is_small = (largest < SMALLEST) | (largest != largest)  # or nothing but NaN
    is_infinite = largest == float("inf")
    scale, inverse = tl.inline_asm_elementwise(
        QUOTIENTS, "=f,=f,f", [largest], dtype=(tl.float32, tl.float32), is_pure=True, pack=1
    )
    scale = tl.where(is_small, 1.0, tl.where(is_infinite, largest, scale))
    return scale, tl.where(is_small | is_infinite, 0.0, inverse)
