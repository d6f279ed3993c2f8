"""Facts of each architecture that kernels can be built for, one row each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """An NVIDIA architecture. `shared_bytes` is what one block may opt in to."""

    sm: int
    generation: str
    shared_bytes: int
    ptx_isa: int | None  # PTX ISA to emit, 80 for 8.0; None leaves it to the assembler
    fp8: bool  # kernels for e4m3 inputs are compiled
    ran_on_hardware: bool


ARCHS = {
    arch.sm: arch
    for arch in (
        Arch(80, "Ampere (A100)", 163 * 1024, 80, False, False),
        Arch(86, "Ampere (A10, RTX 30)", 99 * 1024, 80, False, False),
        Arch(89, "Ada (L4, L40S, RTX 40)", 99 * 1024, 80, False, False),
        Arch(90, "Hopper (H100, H200)", 227 * 1024, None, True, True),
        Arch(100, "Blackwell (B200)", 227 * 1024, None, False, False),
        Arch(120, "Blackwell (RTX 50)", 99 * 1024, None, False, False),
    )
}
