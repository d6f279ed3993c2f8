"""The emulator of PTX: what it computes and what it finds; tests of tests/gpu that run in it, without a GPU."""

import contextlib
import ctypes
import struct
import textwrap

import pytest

import emulator

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "emulator"
    emulator.build_libraries(folder)
    return folder


@pytest.fixture
def run(libraries):
    """Runs the body of a kernel of 64 threads that has %rd1, where 256 numbers of 32 bits lie; gives them."""
    library = ctypes.CDLL(str(libraries / "libcuda.so.1"))
    library.emulator_fault.restype = ctypes.c_char_p
    library.emulator_know.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    numbers = (ctypes.c_uint32 * 256)()

    def run(body: str, seed: int = 1) -> list[int]:
        library.emulator_seed(seed)
        library.emulator_know(ctypes.addressof(numbers), ctypes.sizeof(numbers))
        parameters = struct.pack("<Q", ctypes.addressof(numbers))
        ptx = KERNEL % textwrap.dedent(body)
        library.emulator_run(ptx.encode(), 1, 1024, parameters, len(parameters))
        fault = library.emulator_fault().decode()
        if fault:
            raise RuntimeError(fault)
        return list(numbers)

    return run


KERNEL = """
.extern .shared .align 16 .b8 global_smem[];
.visible .entry planted(
	.param .u64 planted_param_0
)
.reqntid 64
{
	.reg .pred %%p<9>;
	.reg .b32 %%r<99>;
	.reg .b64 %%rd<9>;
	ld.param.b64 %%rd1, [planted_param_0];
	mov.u32 %%r1, %%tid.x;
	mul.wide.u32 %%rd2, %%r1, 4;
	add.s64 %%rd2, %%rd1, %%rd2;
%s
	ret;
}
"""
STORE = "st.global.b32 [%rd2], %r2;"


@pytest.mark.parametrize(
    "instructions, right",
    [
        ("mov.b32 %r2, 0f3FC00000;", 0x3FC00000),
        ("mov.b32 %r3, -7; div.s32 %r2, %r3, 2;", 2**32 - 3),
        ("mov.b32 %r3, -1; mul.hi.s32 %r2, %r3, 5;", 2**32 - 1),
        ("mov.b32 %r3, 305419896; prmt.b32 %r2, %r3, 0, 291;", 0x78563412),
        ("mov.b32 %r3, -256; bfe.s32 %r2, %r3, 4, 8;", 2**32 - 16),
        ("mov.b32 %r3, 0fC0600000; cvt.rni.s32.f32 %r2, %r3;", 2**32 - 4),
        ("mov.b32 %r3, 0f3F800000; mov.b32 %r4, 0f43E80000; cvt.rn.satfinite.e4m3x2.f32 %r2, %r3, %r4;", 0x387E),
        ("mov.b32 %r3, 0f3F808000; mov.b32 %r4, 0fBF818000; cvt.rn.bf16x2.f32 %r2, %r3, %r4;", 0x3F80BF82),
        ("mov.b32 %r3, 14392; cvt.rn.f16x2.e4m3x2 %r2, %r3;", 0x3C003C00),
        ("setp.nan.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %r2, 5, 6, %p1;", 5),
        ("{ .reg .b32 %r3; mov.b32 %r3, 8; shl.b32 %r2, %r3, 2; }", 32),
    ],
)
def test_arithmetic(run, instructions, right):
    assert run(f"{instructions} {STORE}")[0] == right


def test_what_is_loaded_to_be_tested_is_nobodys_driver(run):
    with contextlib.suppress(OSError):  # there is no driver at all
        assert not hasattr(ctypes.CDLL("libcuda.so.1"), "emulator_run")


def test_lanes_part_and_meet_again(run):
    numbers = run(
        f"""
        mov.b32 %r2, 0;
        setp.lt.u32 %p1, %r1, 40;
        @%p1 bra $low;
        add.s32 %r2, %r2, 100;
        bra $met;
        $low:
        add.s32 %r2, %r2, %r1;
        $met:
        shfl.sync.bfly.b32 %r2, %r2, 1, 31, -1;
        {STORE}
        """
    )
    assert numbers[:64] == [lane ^ 1 for lane in range(40)] + 24 * [100]


def test_warps_meet_at_a_barrier_in_any_order(run):
    for seed in range(20):
        numbers = run(
            f"""
            mov.b32 %r5, global_smem;
            shl.b32 %r3, %r1, 2;
            add.s32 %r3, %r3, %r5;
            st.shared.b32 [%r3], %r1;
            bar.sync 0;
            xor.b32 %r4, %r1, 63;
            shl.b32 %r4, %r4, 2;
            add.s32 %r4, %r4, %r5;
            ld.shared.b32 %r2, [%r4];
            {STORE}
            """,
            seed,
        )
        assert numbers[:64] == [63 - thread for thread in range(64)]


def test_a_missing_barrier_shows(run):
    body = f"""
        mov.b32 %r5, global_smem;
        shl.b32 %r3, %r1, 2;
        add.s32 %r3, %r3, %r5;
        st.shared.b32 [%r3], %r1;
        xor.b32 %r4, %r3, 128;
        ld.shared.b32 %r2, [%r4];
        {STORE}
        """
    assert any(run(body, seed)[:64] != [thread ^ 32 for thread in range(64)] for seed in range(20))


def test_a_copy_that_is_not_waited_for_shows(run):
    copies = """
        mov.b32 %r5, global_smem;
        shl.b32 %r3, %r1, 2;
        add.s32 %r3, %r3, %r5;
        cp.async.ca.shared.global [%r3], [%rd2], 4;
        cp.async.commit_group;
        """
    wait, load = "cp.async.wait_group 0;", f"ld.shared.b32 %r2, [%r3]; add.s32 %r2, %r2, 1; {STORE}"
    before = run(f"mov.b32 %r2, 7; {STORE}")[:64]
    assert run(f"{copies} {wait} {load}")[:64] == [number + 1 for number in before]
    assert run(f"{copies} {load}")[:64] != [number + 2 for number in before]


def test_what_comes_by_an_mbarrier_is_there_behind_it(run):
    numbers = run(
        f"""
        mov.b32 %r5, global_smem;
        setp.eq.s32 %p1, %r1, 0;
        @%p1 mbarrier.init.shared::cta.b64 [%r5], 32;
        bar.sync 0;
        setp.lt.u32 %p1, %r1, 32;
        @!%p1 bra $wait;
        mov.b32 %r2, 3;
        st.shared.b32 [%r5+64], %r2;
        mbarrier.arrive.shared::cta.b64 _, [%r5];
        $wait:
        mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;
        @!%p2 bra $wait;
        ld.shared.b32 %r2, [%r5+64];
        {STORE}
        """
    )
    assert numbers[:64] == 64 * [3]


PRODUCT = """
    mov.b32 %r5, global_smem;
    st.shared.b32 [%r5+64], %r1;
    bar.sync 0;
    FENCE
    mov.b64 %rd3, 64;
    setp.ne.b32 %p1, 0, 0;
    { .reg .f32 f<4>;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, %rd3, %rd3, %p1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0; }
    """


def test_what_threads_wrote_is_multiplied_behind_a_fence(run):
    run(PRODUCT.replace("FENCE", "fence.proxy.async.shared::cta;"))
    for missing in ("", "fence.acq_rel.cta;"):
        with pytest.raises(RuntimeError, match=r"no fence.proxy.async between what warp [01] has written at 0x4"):
            run(PRODUCT.replace("FENCE", missing))


# A tensor map as the emulated driver encodes them, of 32 words; in their place in shared memory others were read.
TILE = """
    mov.b32 %r5, global_smem;
    setp.eq.s32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r5+512], 1;
    add.s64 %rd3, %rd1, 319;
    and.b64 %rd3, %rd3, -64;
    @%p1 st.global.b64 [%rd3], %rd1;
    @%p1 st.global.b64 [%rd3+8], 32;
    @%p1 st.global.b64 [%rd3+16], 1;
    @%p1 st.global.b64 [%rd3+24], 128;
    @%p1 st.global.b64 [%rd3+32], 32;
    @%p1 st.global.b64 [%rd3+40], 1;
    @%p1 st.global.b64 [%rd3+48], 7;
    @%p1 st.global.b64 [%rd3+56], 2;
    and.b32 %r3, %r1, 31;
    shl.b32 %r3, %r3, 2;
    add.s32 %r3, %r3, %r5;
    ld.shared.b32 %r4, [%r3];
    FENCE
    bar.sync 0;
    mov.b32 %r6, 0;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5+512], 128;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r5], [%rd3, {%r6, %r6}], [%r5+512];
    $wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5+512], 0;
    @!%p2 bra $wait;
    ld.shared.b32 %r2, [%r3];
    add.s32 %r2, %r2, 1;
    """


def test_what_threads_read_is_filled_anew_behind_a_fence(run):
    before = run(f"mov.b32 %r2, %r1; {STORE}")[:32]
    filled = TILE.replace("FENCE", "fence.proxy.async.shared::cta;") + STORE
    assert run(filled)[:32] == [number + 1 for number in before]
    for missing in ("", "fence.acq_rel.cta;"):
        with pytest.raises(RuntimeError, match=r"no fence.proxy.async between what warp [01] has read at 0x4"):
            run(TILE.replace("FENCE", missing))


@pytest.mark.parametrize(
    "body, told",
    [
        ("st.global.b32 [%rd2+1024], %r1;", "a write of 4 bytes outside of all tensors"),
        ("ld.global.b32 %r2, [%rd1+-4];", "a read of 4 bytes outside of all tensors"),
        ("ld.global.b32 %r2, [%rd1+2];", "not aligned"),
        ("mov.b32 %r2, global_smem; st.shared.b32 [%r2+1024], %r1;", "an access to shared memory"),
        ("setp.lt.u32 %p1, %r1, 32; @%p1 bra $out; bar.sync 0; $out:", "a deadlock"),
        ("setp.lt.u32 %p1, %r1, 5; @%p1 bra $out; bar.sync 0; $out:", "a part of a warp"),
        ("mov.b32 %r2, global_smem; mbarrier.arrive.shared::cta.b64 _, [%r2];", "there is no mbarrier"),
        ("frobnicate.b32 %r2, %r1;", "an unknown instruction: frobnicate"),
    ],
)
def test_a_fault_is_told(run, body, told):
    with pytest.raises(RuntimeError, match=told):
        run(body)


# Of tests/gpu: some of each family of kernels, which take seconds. `make emulate` runs others.
OF_GPU = {
    "rows": ("test_grouped_mm_bias.py", "take_none or garbage"),
    "up projections": ("test_up_projection.py", "nan_in or behind_the_last"),
    "down gradients": ("test_down_gradient.py", "nobody or nan_of or garbage"),
    "a ragged K": ("test_ragged_k.py", "sums_are_added and (128x128 or bf16_fp32_tn_a16_128x256) and sm90"),
    "routing": ("test_routing.py", ""),
    "scales": ("test_fp8_scales.py", "many_groups and block and nt and not u2"),  # there are no clusters
    "lists of scales": ("test_fp8_list_scales.py", ""),
    "scales of stacks": ("test_fp8_stack.py", "nan_of and hopper and bf16"),
    "scales along a ragged K": ("test_fp8_gradients.py", "sums_are_added or nan_of or (more_groups and nt)"),
    "quantized rows": ("test_quantize.py", "product or nan"),
    "layers of fp8": ("test_fp8_experts.py", "nan_that or reach_another"),
}


@pytest.mark.parametrize("file, chosen", OF_GPU.values(), ids=OF_GPU)
def test_kernels_give_on_the_emulator_what_they_give_on_a_gpu(libraries, file, chosen):
    arguments = "-q", "--tb=short", f"tests/gpu/{file}", "-k", chosen
    done = emulator.run_tests(libraries, *arguments, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
