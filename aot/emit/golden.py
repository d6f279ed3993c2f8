"""The generated sources of a few made-up artifacts, kept as text: a change of the emitter shows up as a diff.

The artifacts are not compiled, so a change of a kernel does not.
"""

import difflib
from pathlib import Path

from ..build.artifact import Argument, Artifact
from ..build.compile import parameter_layout
from ..spec.variants import Config, Variant
from .generate import generate

FOLDER = Path(__file__).parents[2] / "tests/cpu/golden"
TABLES = FOLDER / "tables"  # a measured shape of its own, for the same reason
MANIFEST = "{}\n"
SCRATCH = (Argument("global_scratch", "pointer"), Argument("profile_scratch", "pointer"))
LIST = (
    Argument("list_words", "i64", 26),
    Argument("problems", "i64"),
    Argument("groups", "i32"),
    Argument("tiles", "i32"),
)
WORDS = (
    Argument("list_words", "i64", 16),
    Argument("problems", "i64"),
    Argument("ends", "pointer"),
    Argument("records", "pointer"),
    Argument("differs", "i64"),
    Argument("groups", "i32"),
    Argument("record_words", "i32"),
)
RAGGED = (Argument("list_words", "i64", 24), *(Argument(n, "i32") for n in ("groups", "rows", "columns", "depth")))
ARGUMENTS = {"pack": WORDS, "basic_ragged": RAGGED, "hopper_ragged": RAGGED}


def samples() -> list[Artifact]:
    """One of each shape that a launcher can have. Their configs are in no table: tuning changes nothing here."""
    aligned, shared = Config(64, 64, 64, 9, 4), Config(64, 128, 128, 9, 4, consumers=2, slices=2)
    return [
        sample(Variant("basic_ragged", 80, "fp16", "fp16", "nt", 16, aligned)),
        sample(Variant("basic", 80, "fp16", "fp16", "nn", 16, Config(64, 64, 32, 9, 4))),
        sample(Variant("basic", 90, "bf16", "bf16", "strided", 2, Config(32, 32, 32, 9, 4, 4))),
        sample(Variant("hopper_ragged", 90, "e4m3", "bf16", "nt", 16, shared), word_skip=6),
        sample(Variant("hopper", 90, "fp16", "fp16", "tt", 16, aligned), word_skip=6),
        sample(Variant("pack", 90, "any", "any", "any", 8, Config(128, 1, 1, 1, 4))),
        sample(
            Variant("tma", 90, "bf16", "bf16", "nt", 16, Config(128, 256, 64, 9, 8)),
            scratch_bytes=256,
            scratch_alignment=128,
            programmatic_launch=True,
        ),
    ]


def sample(variant: Variant, **facts) -> Artifact:
    """A made-up artifact: plausible facts, texts for images."""
    arguments = ARGUMENTS.get(variant.kernel, LIST) + SCRATCH
    parameters = parameter_layout(arguments)
    defaults = {
        "word_skip": 0,
        "programmatic_launch": False,
        "shared_bytes": 1024,
        "scratch_bytes": 0,
        "scratch_alignment": 1,
        "registers": 64,
        "spill_bytes": 0,
        "elf_abi": 7,
        "ptx_isa": "8.0",
    }
    return Artifact(
        variant=variant,
        symbol=variant.kernel,
        arguments=arguments,
        parameters=parameters,
        parameter_bytes=parameters[-1].offset + parameters[-1].size,
        threads=32 * variant.config.warps,
        cubin=f"cubin of {variant.name}".encode(),
        ptx=f"PTX of {variant.name}".encode() + b"\0",
        **defaults | facts,
    )


def golden_files() -> dict[str, str]:
    files = generate(samples(), MANIFEST, tables=TABLES)
    return {name: data.decode() for name, data in files.items() if name.endswith((".c", ".h", ".S"))}


def update() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in golden_files().items():
        (FOLDER / name).write_text(text)


def differences() -> str:
    """A unified diff from the kept text to what the emitter writes now; empty when they are equal."""
    lines = []
    for name, text in golden_files().items():
        kept = (FOLDER / name).read_text() if (FOLDER / name).exists() else ""
        lines += difflib.unified_diff(kept.splitlines(True), text.splitlines(True), f"golden/{name}", f"now/{name}")
    return "".join(lines)
