"""A million calls: as much host memory after them as before."""

import pytest

from faults.fake_driver import SM_80

# Without FAKE_CUDA_LOG the driver records nothing. Arrays describe themselves once, so that the calls take the time.
STEADY = """
    import gc, os
    from pathlib import Path

    class Described(ExchangeArray):
        def describe(self):
            if "described" not in self.__dict__:
                self.described = super().describe()
            return self.described

    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def growth(call, calls):
        '''Bytes and Python objects that `calls` calls leave behind, after a tenth as many to warm up.'''
        for _ in range(calls // 10):
            call()
        gc.collect()
        before = resident_bytes(), sys.getallocatedblocks()
        for _ in range(calls):
            call()
        gc.collect()
        return [resident_bytes() - before[0], sys.getallocatedblocks() - before[1]]

    A, B, out = operands([(64, 64, 64)], kind=Described)
    longer = operands([(64, 64, 64)] * 8, kind=Described)
    mat_a, mat_b, offs = ragged(64, 64, 64, 3, kind=Described)
    rows = matrix(64, 64, kind=Described)
    def described(*shape, dtype="float16"):
        return Described(*shape, address=fresh_address(), dtype=dtype)

    layer = [described(64, 64), described(4, 64, 128), described(4, 64, 64)]
    layer += [described(64, 2, dtype="float32"), described(64, 2, dtype="int64")]
    layer_out = described(64, 64)
    workspace = described(gg_runtime.fused_experts_workspace(64, 2, 4, 64, 64), dtype="uint8")
    experts_plan = gg_runtime.ExpertsPlan(*layer, out=layer_out, workspace=workspace)
    waiting = operands([(64, 64, 64)], kind=CapsuleArray)
    plan = Plan(A, B, out=out)
    CALLS = {
        "run": plan.run,
        "group_gemm": lambda: group_gemm(A, B, out=out),
        "eight groups": lambda: group_gemm(longer[0], longer[1], out=longer[2]),
        "grouped_mm": lambda: grouped_mm(mat_a, mat_b, offs=offs, out=rows),
        "fused_experts": lambda: gg_runtime.fused_experts(*layer, out=layer_out, workspace=workspace),
        "ExpertsPlan": lambda: gg_runtime.ExpertsPlan(*layer, out=layer_out, workspace=workspace),
        "run a layer": experts_plan.run,
        "Plan": lambda: Plan(A, B, out=out),
        "explain": lambda: explain(A, B, out=out),
        "refused": lambda: failure(group_gemm, A, B, out=A),
        "failed": lambda: failure(gg_runtime._C.device, 7),
    }
"""
QUIET = {"FAKE_CUDA_LOG": "", **SM_80}

# Calls of each kind; together more than 10^6.
COUNTS = {
    "run": 450_000, "group_gemm": 250_000, "grouped_mm": 250_000, "eight groups": 20_000, "Plan": 30_000,
    "fused_experts": 20_000, "run a layer": 20_000,
    "ExpertsPlan": 10_000, "explain": 3_000, "refused": 20_000, "failed": 20_000,
}  # fmt: skip
BYTES, BLOCKS = 1 << 20, 300  # what may be left behind: an allocator's page here and there, less than a byte each call


@pytest.mark.parametrize("call", COUNTS)
def test_memory_stays_flat(fake_cuda, call):
    ran = fake_cuda.run(STEADY + f'    report(growth(CALLS["{call}"], {COUNTS[call]}))\n', **QUIET)
    resident, blocks = ran.reported[0]
    assert resident < BYTES and blocks < BLOCKS, f"{resident} bytes and {blocks} Python objects more"


def test_there_are_a_million_calls():
    assert sum(COUNTS.values()) > 10**6


@pytest.mark.parametrize("leak", ["kept.append(bytes(100))", "libc.malloc(100)"], ids=["of Python", "of C"])
def test_a_leak_of_100_bytes_a_call_would_be_seen(fake_cuda, leak):
    ran = fake_cuda.run(STEADY + f"""
    import ctypes
    kept, libc = [], ctypes.CDLL(None)
    report(growth(lambda: {leak}, 30_000))
    """, **QUIET)  # fmt: skip
    resident, _blocks = ran.reported[0]
    assert resident > BYTES


def test_lists_in_device_memory_leave_nothing_behind(fake_cuda):
    """Their memory is the framework's: as many blocks are freed as were made."""
    ran = fake_cuda.run(STEADY + """
    import cupy, weakref
    A, B, out = ([cupy.empty((16, 16), "float16") for _ in range(40)] for _ in range(3))
    alive = weakref.WeakSet()
    empty = cupy.empty
    def counted(*arguments):
        block = empty(*arguments)
        alive.add(block)
        return block
    cupy.empty = counted
    report(growth(lambda: group_gemm(A, B, out=out), 1_000))
    plan = Plan(A, B, out=out)
    report(len(alive))
    del plan
    gc.collect()
    report([len(alive), len(cupy.allocations)])
    """, **QUIET)  # fmt: skip
    (resident, _), with_plan, (left, made) = ran.reported
    assert resident < 4 * BYTES  # cupy.allocations, the stand-in's own list, grows
    assert with_plan == 1 and left == 0 and made > 1_000
