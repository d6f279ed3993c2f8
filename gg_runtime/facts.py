"""What the dicts have in them that the library returns, for type checkers and for people: the names and their types.

`kernels()` returns `Kernel`s, `manifest()` a `Manifest`; an `Explanation` has `Part`s and `Candidate`s. The builder,
which writes the manifest, is checked against the same `Manifest`. Nothing here runs when the library is called.
"""

from typing import TypedDict


class Kernel(TypedDict):
    """An embedded kernel; `kernels` says what its numbers are."""

    name: str
    kernel: str
    form: str
    extents: str
    addressing: str
    epilogue: str
    source: str
    scaling: str
    sm: int
    dtype: str
    out_dtype: str
    layout: str
    alignment: int
    block_m: int
    block_n: int
    block_k: int
    stages: int
    raster: int
    row_step: int
    listed_tiles: int
    consumers: int
    split: int
    slices: int
    cluster: int
    stream_gb_s: float
    threads: int
    shared_bytes: int
    scratch_bytes: int
    registers: int
    spill_bytes: int
    word_capacity: int
    minimum_driver: int
    cubin_bytes: int
    cubin_sha256: str
    ptx_bytes: int
    ptx_sha256: str | None


class DeviceFacts(TypedDict):
    """A GPU as the driver tells of it, and the architecture of the kernels that it takes."""

    ordinal: int
    name: str
    sm: int
    multiprocessors: int
    shared_bytes_per_block: int
    clock_mhz: float
    memory_gb_s: float
    kernels_sm: int
    from_ptx: bool


class Part(TypedDict):
    """A launch of a product, or of rows that move around it, and how many of its groups it computes."""

    variant: str
    groups: int
    predicted_us: float
    upload_us: float
    launches: int


class Candidate(TypedDict):
    """A kernel that could have been chosen: its time, or why it cannot be."""

    variant: str
    predicted_us: float | None
    upload_us: float | None
    ruled_out: str | None


class ExplanationFields(TypedDict):
    """The fields of an `Explanation`, as the extension fills them."""

    device: str
    variant: str | None
    reason: str
    predicted_us: float
    upload_us: float
    from_ptx: bool
    launches: int
    parts: list[Part]
    candidates: list[Candidate]


class Step(TypedDict):
    """A step of a layer: "route", "quantize", "up", "activate", "down" or "combine"; the kernels that it launches, in
    order."""

    name: str
    variants: list[str]
    predicted_us: float
    reason: str


class ExpertsFields(TypedDict):
    """The fields of an `ExpertsExplanation`, as the extension fills them."""

    device: str
    steps: list[Step]
    chunks: int
    launches: int
    predicted_us: float
    workspace_bytes: int
    from_ptx: bool


class LoadedKernel(TypedDict):
    """A kernel as the driver loaded it."""

    blocks_per_multiprocessor: int
    from_ptx: bool


class Image(TypedDict):
    """A cubin, or PTX: its size and its hash."""

    bytes: int
    sha256: str


class LaunchFacts(TypedDict):
    """How a kernel is launched."""

    threads: int
    programmatic: bool
    shared_bytes: int
    scratch_bytes: int
    scratch_alignment: int


class _PointerGuarantee(TypedDict):
    pointer_bytes: int


class Guarantees(_PointerGuarantee, total=False):
    """What the tensors of a call keep, which the selector checks; what a kernel does not need is left out."""

    sizes: str
    offs: str
    counts: str
    unit_stride: dict[str, str]
    leading_stride_bytes: int
    group_stride_bytes: int
    contiguous_extent_bytes: dict[str, int]
    minimum_K: int
    minimum_E: int
    maximum_E: int
    maximum_size: int
    maximum_rows: int
    maximum_K: int
    k_alignment: int  # that the call promises
    maximum_row_stride: int
    maximum_row_bytes: int  # of rows by an index
    maximum_bytes_of_A: int  # rows times their stride; of a ragged K columns times theirs
    maximum_bytes_of_B: int  # rows times their stride
    half_of_N_bytes: int  # a multiple of it are N / 2 elements: gate's columns of B, or up's


class _CubinEntry(TypedDict):
    kernel: str
    form: str
    extents: str
    addressing: str
    epilogue: str
    source: str
    scaling: str
    sm: int
    dtype: str
    out_dtype: str
    layout: str
    alignment: int
    config: str
    symbol: str
    signature: list[str]
    guarantees: Guarantees
    launch: LaunchFacts
    parameters: list[list[int]]
    parameter_bytes: int
    word_capacity: int
    word_skip: int
    registers: int
    spill_bytes: int
    elf_abi: int
    minimum_driver: int
    ptx_isa: str
    cubin: Image


class ManifestEntry(_CubinEntry, total=False):
    """An artifact. `parameters` are runs of [offset, size, count]; `ptx` is there where PTX is embedded as well."""

    ptx: Image


class ManifestArch(TypedDict):
    """An architecture that kernels were compiled for, and whether they ran on a GPU of it."""

    generation: str
    ran_on_hardware: bool


class Manifest(TypedDict):
    """manifest.json. `archs` is by compute capability ("90"), `artifacts` by the kernel's name."""

    format: int
    triton: str
    ptxas: str
    tables_sha256: str
    archs: dict[str, ManifestArch]
    artifacts: dict[str, ManifestEntry]
