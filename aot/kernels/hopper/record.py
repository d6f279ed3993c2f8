"""Reads the problem record, which lies in device memory or in the kernel's own parameters."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def word(address):
    """The 64-bit word at `address`. `ld` without a state space reaches global memory and kernel parameters alike."""
    return gl.inline_asm_elementwise("ld.b64 $0, [$1];", "=l,l", [address], dtype=gl.int64, is_pure=True, pack=1)


@gluon.jit
def word_now(address):
    """As `word`, where it stands: the compiler takes it out of no loop."""
    return gl.inline_asm_elementwise("ld.b64 $0, [$1];", "=l,l", [address], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit
def parameters_address(BY_VALUE: gl.constexpr):
    """The first 64-byte boundary in the parameters of kernel BY_VALUE: TMA reads descriptors at no other address."""
    return gl.inline_asm_elementwise(
        "{ .reg .b64 parameter; mov.b64 parameter, " + BY_VALUE + "_param_0; cvta.param.u64 $0, parameter; "
        "add.s64 $0, $0, $1; and.b64 $0, $0, -64; }",
        "=l,l",
        [gl.to_tensor(63).to(gl.int64)],
        dtype=gl.int64,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def scale_or_one(address, index):
    """Element `index` of the float32 array at `address`, 1 where the address is 0."""
    return gl.load(address.to(gl.pointer_type(gl.float32)) + index, mask=address != 0, other=1.0)
