"""One Variant in, one Artifact out. The only module that runs Triton's compiler; it needs no GPU and no driver."""

import functools
import importlib
import os
import re
from pathlib import Path

from ..spec.abi import ARGUMENTS, DTYPES
from ..spec.arch import ARCHS
from ..spec.kernels import KERNELS, LIST_WORDS
from ..spec.variants import Variant, multiplied_in_halves
from .artifact import Argument, Artifact
from .clusters import in_clusters
from .elf import Cubin, Parameter, read_cubin
from .partitions import end_with_partition
from .yields import LONG, LONG_OF_A_HALF, spread

# All that a compiler process keeps of its environment: Triton, LLVM and ptxas read dozens of variables, some of which
# change the code (PTXAS_OPTIONS, DISABLE_LLVM_OPT, TRITON_OVERRIDE_ARCH) and some the architecture itself.
KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")


class CompileError(Exception):
    """A variant that cannot be built, and why."""


def isolate(ptxas: Path, scratch: Path) -> None:
    """Leaves this process an environment in which only the arguments of `compile_variant` decide what comes out.

    `ptxas`: the CUDA 12.9 assembler, for every architecture. Triton would take its 13.x one from sm_90 on, whose
    cubins the drivers before r580 refuse.
    """
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    os.environ.clear()
    os.environ.update(
        kept,
        HOME=str(scratch),
        TRITON_HOME=str(scratch),
        TRITON_CACHE_DIR=str(scratch / "triton"),
        TRITON_DISABLE_LINE_INFO="1",  # it triples the cubin, and holds the source's path and date
        TRITON_PTXAS_PATH=str(ptxas),
        TRITON_PTXAS_BLACKWELL_PATH=str(ptxas),
    )


def compile_variant(variant: Variant) -> Artifact:
    """Raises CompileError when the result is not what a launcher can be written for, and what Triton raises."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    family, entry = KERNELS[variant.kernel].folder, KERNELS[variant.kernel].entry
    kernel = getattr(importlib.import_module(f"..kernels.{family}.{entry}", __package__), entry)
    constants = {name: value for name, value in _constants(variant).items() if name in kernel.arg_names}
    arguments = _arguments(variant, [name for name in kernel.arg_names if name not in constants])
    signature = dict.fromkeys(constants, "constexpr") | {
        argument.name: _triton_type(argument) for argument in arguments
    }
    source = GluonASTSource if KERNELS[variant.kernel].gluon else ASTSource
    knobs.runtime.add_stages_inspection_hook = _hook(variant)  # pyright: ignore[reportAttributeAccessIssue]
    compiled = triton.compile(
        source(kernel, {name: signature[name] for name in kernel.arg_names}, constants, {}),
        target=GPUTarget("cuda", variant.sm, 32),
        options=_options(variant),
    )
    long = LONG_OF_A_HALF if multiplied_in_halves(variant) else LONG
    cubin = spread(compiled.asm["cubin"], long) if variant.sm == 90 else compiled.asm["cubin"]
    return _artifact(variant, arguments, compiled.metadata, cubin, compiled.asm["ptx"])


def _hook(variant: Variant):
    """Triton's hook on its stages, where PTX is changed. It asks for a key of them first, and for a hash."""
    changes = []
    if KERNELS[variant.kernel].ends_partitions and variant.config.consumers > 1:  # or there is no loop
        changes.append(end_with_partition)
    if variant.config.cluster > 1:
        changes.append(functools.partial(in_clusters, ctas=variant.config.cluster))
    key = f"partitions that end, in clusters of {variant.config.cluster}"

    def hook(backend=None, stages=None, *_):
        if stages is None:
            return key, key
        make_ptx = stages["ptx"]
        stages["ptx"] = lambda source, metadata: functools.reduce(
            lambda ptx, change: change(ptx), changes, make_ptx(source, metadata)
        )
        return None

    return hook if changes else None


def _constants(variant: Variant) -> dict:
    """All that a kernel may ask for; it gets those that it names."""
    import triton.language as tl

    types = {dtype.name: getattr(tl, dtype.triton) for dtype in DTYPES.values()}
    config = variant.config
    return {
        "DTYPE": types.get(variant.dtype),
        "OUT": types.get(variant.out),
        "LAYOUT": variant.layout,
        "SCALING": variant.scaling,
        "EPILOGUE": KERNELS[variant.kernel].epilogue,
        "SOURCE": KERNELS[variant.kernel].source,
        "ALIGNED": variant.alignment == 16,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "BLOCK": config.block_m,
        "CHUNK": config.block_m,
        "BINS": config.block_n,
        "COLUMNS": config.block_n,
        "STAGES": config.stages,
        "RASTER": config.raster,
        "CONSUMERS": config.consumers,
        "SPLIT": config.split,
        "SLICES": config.slices,
        "CLUSTER": config.cluster,
        "BY_VALUE": KERNELS[variant.kernel].entry,
        "SM": variant.sm,
    }


def _options(variant: Variant) -> dict:
    options = {
        "num_warps": variant.config.warps,
        "num_stages": variant.config.stages,
        "enable_fp_fusion": True,  # explicit: Triton 3.10 changes the default
        "launch_pdl": KERNELS[variant.kernel].may_overlap,
    }
    isa = ARCHS[variant.sm].ptx_isa
    return options if isa is None else options | {"ptx_version": isa}


def _arguments(variant: Variant, names: list[str]) -> tuple[Argument, ...]:
    types = {"list_words": Argument("list_words", "i64", LIST_WORDS[variant.kernel])}
    return tuple(types.get(name) or Argument(name, ARGUMENTS[name].type) for name in names)


def _triton_type(argument: Argument) -> str | tuple[str, ...]:
    if argument.name == "list_words":
        return ("i64",) * argument.count
    return "*i64" if argument.type == "pointer" else argument.type


def _artifact(variant: Variant, arguments: tuple[Argument, ...], metadata, cubin: bytes, ptx: str) -> Artifact:
    # Triton ends every signature so, whether the kernel uses them or not.
    arguments += (Argument("global_scratch", "pointer"), Argument("profile_scratch", "pointer"))
    facts = read_cubin(cubin)
    _check(facts, arguments, metadata)
    return Artifact(
        variant=variant,
        symbol=facts.symbol,
        arguments=arguments,
        parameters=facts.parameters,
        parameter_bytes=facts.parameter_bytes,
        word_skip=-facts.parameter_base % 64 // 8 if KERNELS[variant.kernel].described else 0,
        threads=32 * metadata.num_warps,
        programmatic_launch=metadata.launch_pdl,
        shared_bytes=metadata.shared,
        scratch_bytes=metadata.global_scratch_size,
        scratch_alignment=metadata.global_scratch_align,
        registers=facts.registers,
        spill_bytes=facts.stack_bytes,
        elf_abi=facts.abi,
        ptx_isa=re.search(r"^\.version (\S+)", ptx, re.MULTILINE).group(1),  # pyright: ignore[reportOptionalMemberAccess]
        cubin=cubin,
        ptx=ptx.encode() + b"\0",
    )


def _check(facts: Cubin, arguments: tuple[Argument, ...], metadata) -> None:
    expected = parameter_layout(arguments)
    if facts.parameters != expected:
        raise CompileError(f"the cubin's parameters are {facts.parameters}, its signature implies {expected}")
    if facts.threads != 32 * metadata.num_warps:
        raise CompileError(f"the cubin wants {facts.threads} threads, the metadata say {32 * metadata.num_warps}")
    for name, supported in (
        ("num_ctas", 1),
        ("launch_cooperative_grid", False),
        ("tensordesc_meta", []),
        ("profile_scratch_size", 0),
    ):
        if (value := getattr(metadata, name)) != supported:
            raise CompileError(f"{name} is {value}: the launchers have no support for that")


def parameter_layout(arguments: tuple[Argument, ...]) -> tuple[Parameter, ...]:
    """The C layout of the arguments as one struct: each parameter on a multiple of its own size."""
    found, end = [], 0
    for argument in arguments:
        for _ in range(argument.count):
            offset = -(-end // argument.bytes) * argument.bytes
            found.append(Parameter(offset, argument.bytes))
            end = offset + argument.bytes
    return tuple(found)
