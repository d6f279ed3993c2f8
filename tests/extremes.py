"""Arrays of any size up to 2**31 with any strides, for hypothesis; and which of them memory can hold."""

from hypothesis import strategies as st

from arrays import Array, CapsuleArray, ExchangeArray, element_bytes

EDGES = [2**30, 2**31 - 257, 2**31 - 256, 2**31 - 2, 2**31 - 1, 2**31]
STEPS = [
    0, 1, 8, 2**31, 2**32 + 8, 2**33, 2**39, 2**40, 2**61, 2**62, 2**62 + 8, 2**63 - 8, 2**63 - 1,
    -1, -8, -(2**40), -(2**63),
]  # fmt: skip

sizes = st.one_of(st.integers(0, 3), st.sampled_from([1, 8, 16, 64, 65]), st.sampled_from(EDGES), st.integers(0, 2**31))
strides = st.one_of(st.sampled_from(STEPS), st.integers(-(2**63), 2**63 - 1))
addresses = st.one_of(st.integers(1, 2**12).map(lambda page: page << 32), st.sampled_from([2**63 - 16, 2**64 - 16]))


@st.composite
def array(draw, shape, dtype="float16", kind=ExchangeArray):
    """Of this shape, in row-major order or with any strides."""
    row_major = draw(st.integers(0, 3)) > 0  # most of the time, or else hardly a product would be taken
    given_strides = None if row_major else draw(st.tuples(*[strides] * len(shape)))
    if given_strides is None:
        given_strides = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            given_strides[axis] = min(given_strides[axis + 1] * shape[axis + 1], 2**63 - 1)
    # Device 0 of the fake driver has the addresses below 2**44.
    return kind(*shape, address=draw(addresses), strides=given_strides, dtype=dtype)


dtypes = st.sampled_from([("float16", "float16"), ("float8_e4m3fn", "float32"), ("float8_e4m3fn", "float8_e4m3fn")])


@st.composite
def lists(draw):
    """A, B, outputs and the scales of `group_gemm`: 1 to 3 products."""
    dtype, out_dtype = draw(dtypes)
    kind = draw(st.sampled_from([ExchangeArray, CapsuleArray]))
    A, B, out = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        m, n, k = draw(sizes), draw(sizes), draw(sizes)
        A.append(draw(array((m, k), dtype, kind)))
        B.append(draw(array((k, n), dtype, kind)))
        out.append(draw(array((m, n), out_dtype, kind)))
    scales = {}
    if dtype == "float8_e4m3fn" and draw(st.booleans()):
        scales["scale_b"] = draw(array((len(A),), "float32", kind))
    return A, B, out, scales


@st.composite
def raggeds(draw):
    """mat_a, mat_b and the other arrays of `grouped_mm`."""
    dtype, out_dtype = draw(dtypes)
    rows, n, k, groups = (draw(sizes) for _ in range(4))
    others = {"offs": draw(array((groups,), "int32")), "out": draw(array((rows, n), out_dtype))}
    if draw(st.booleans()):
        others["offs"].strides = (1,)
    if draw(st.booleans()):
        others["bias"] = draw(array((groups, n), out_dtype))
    if dtype == "float8_e4m3fn" and draw(st.booleans()):
        others["scale_b"] = draw(array((groups,), "float32"))
    return draw(array((rows, k), dtype)), draw(array((groups, k, n), dtype)), others


def is_addressable(array: Array) -> bool:
    """Whether all elements have addresses from 0 to 2**63; an array without elements needs none."""
    if 0 in array.shape:
        return True
    reach = [(size - 1) * stride * element_bytes(array.dtype) for size, stride in zip(array.shape, array.strides)]
    low, high = (array.address + sum(part for part in reach if part * sign > 0) for sign in (-1, 1))
    return low >= 0 and high + element_bytes(array.dtype) < 2**63


def check_outcome(arrays, call) -> str | None:
    """The call's error, which names what is wrong; without one, all arrays are such as memory can hold."""
    try:
        call()
    except (ValueError, TypeError) as error:
        text = str(error)
        if "address space" in text:
            assert not all(is_addressable(array) for array in arrays), text
        assert text.startswith(("group_gemm: ", "grouped_mm: ")), text
        return text
    for array in arrays:
        assert is_addressable(array), array.facts()
    return None
