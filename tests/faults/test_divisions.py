"""The division of an up projection that a thread remembers: of calls that differ in one thing, each takes its own."""

import pytest

from embedded import KERNELS

# `plain` is one launch of a kernel that gathers and gates. `described` is this GPU by its facts alone, of which nothing
# is remembered.
CALLS = """
    import cupy
    known = ("sm", "multiprocessors", "shared_bytes_per_block", "name")
    described = {fact: gg_runtime._C.device(0)[fact] for fact in known}

    def call(rows=2048, columns=256, depth=512, groups=8, *, layout="nt", dtype="bfloat16", indexed=True, kept=False,
             a_rows=300, a_offset=0, a_pad=0, b_offset=0, b_pad=0, out_offset=0, out_pad=0, kept_offset=0,
             index_dtype="int32", activation="swiglu", order="gate_first", batch_invariant=False, biases=False):
        def array(*shape, offset=0, strides=None, dtype=dtype):
            return cupy.ndarray(*shape, address=fresh_address() + offset, strides=strides, dtype=dtype,
                                device=cupy.Device(0))
        count = a_rows if indexed else rows
        mat_a = array(count, depth, offset=2 * a_offset, strides=(depth + a_pad, 1))
        pitch = (columns if layout == "nn" else depth) + b_pad
        strides = (depth * pitch, pitch, 1) if layout == "nn" else (columns * pitch, 1, pitch)
        mat_b = array(groups, depth, columns, offset=2 * b_offset, strides=strides)
        outputs = columns // 2 if activation == "swiglu" else columns
        given = dict(offs=array(groups, dtype="int32"), activation=activation, gate_up=order,
                     out=array(rows, outputs, offset=2 * out_offset, strides=(outputs + out_pad, 1)),
                     batch_invariant=batch_invariant)
        if indexed:
            given["a_index"] = array(rows, dtype=index_dtype)
        if kept:
            given["preactivation"] = array(rows, columns, offset=2 * kept_offset)
        told = explain(mat_a, mat_b, device=described, **given)
        bias = dict(bias=array(groups, columns)) if biases else {}
        grouped_mm(mat_a, mat_b, **given, **bias)
        return [part["variant"] for part in told.parts]

    plain, changed = dict(PLAIN), dict(CHANGED)
    report([call(**plain), call(**changed), call(**plain), call(**changed)])
"""

# What is changed -> arguments of the calls, and whether other parts than those of the plain call do it.
CHANGES = {
    "the address of A": ({"a_offset": 1}, True),
    "the rows of A": ({"a_pad": 1}, True),
    "the address of B": ({"b_offset": 1}, True),
    "the rows of B": ({"b_pad": 1}, True),
    "the address of the output": ({"out_offset": 1}, True),
    "the rows of the output": ({"out_pad": 1}, True),
    "an index or none": ({"indexed": False}, True),
    "the type of the index": ({"index_dtype": "int64"}, False),
    "a kept pre-activation or none": ({"kept": True}, True),
    "an activation that is not gated": ({"activation": "relu"}, True),
    "no activation": ({"activation": None}, True),
    "the order of gate and up": ({"order": "interleaved"}, False),
    "the layout of B": ({"layout": "nn"}, True),
    "the dtype": ({"dtype": "float16"}, True),
    "N": ({"columns": 250}, True),
    "K": ({"depth": 509}, True),
    "the rows": ({"rows": 3}, True),
    "the groups": ({"groups": 1000}, True),
    "the same bits for every batch": ({"batch_invariant": True}, False),
    "the rows that A has": ({"a_rows": 1}, False),
    "biases": ({"biases": True}, False),
}
TURNED = {"layout": "nn"}


def parts_of(fake_cuda, plain: dict, changed: dict) -> list[list[str]]:
    script = CALLS.replace("PLAIN", repr(plain)).replace("CHANGED", repr(plain | changed))
    ran = fake_cuda.run(script)
    (told,) = ran.reported
    expected = [KERNELS[variant]["cubin_sha256"] for parts in told for variant in parts]
    assert [ran.hash_of(launch) for launch in ran.launches] == expected, told
    assert told[:2] == told[2:]
    return told[:2]


@pytest.mark.parametrize("change, differs", CHANGES.values(), ids=CHANGES)
def test_a_call_takes_its_own_parts_whatever_was_called_before(fake_cuda, change, differs):
    first, second = parts_of(fake_cuda, {}, change)
    assert len(first) == 1 and (first != second) == differs


def test_where_the_output_lies_matters_to_the_kernel_that_reads_gathered_rows(fake_cuda):
    """A starts on 2 bytes and is copied; the copies are multiplied and activated at once if the output is aligned."""
    first, second = parts_of(fake_cuda, {"a_offset": 1}, {"out_offset": 1})
    assert [KERNELS[name]["form"] for name in first] == ["gather", "grouped"]
    assert [KERNELS[name]["form"] for name in second] == ["gather", "grouped", "activate"]


def test_columns_in_turns_that_are_contiguous_are_for_another_kernel(fake_cuda):
    first, second = parts_of(fake_cuda, TURNED, {"order": "interleaved"})
    assert [KERNELS[parts[0]]["epilogue"] for parts in (first, second)] == ["gated", "gated_pairs"]


def test_where_a_preactivation_lies_matters_to_the_product_that_writes_it(fake_cuda):
    aligned, moved = parts_of(fake_cuda, {"kept": True}, {"kept_offset": 1})
    assert [KERNELS[name]["epilogue"] for name in aligned] == ["gated_kept"]
    assert [KERNELS[name]["form"] for name in moved] == ["gather", "grouped", "activate"]
