"""What a compiled variant is: its images, the ABI of its launch, and what the compiler said about it."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..spec.variants import Config, Variant
from .elf import Parameter

LAYOUT = 5  # of the folder that `save` writes; a change makes every cached artifact a stranger

# Drivers load cubins of their own CUDA major version and older ones (ELF ABI 7 came with 12.x, 8 with 13.x).
MINIMUM_DRIVER_BY_ELF_ABI = {7: 12000, 8: 13000}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Argument:
    """A kernel argument: `count` parameters of one type, "i64", "i32" or "pointer"."""

    name: str
    type: str
    count: int = 1

    @property
    def bytes(self) -> int:
        return 4 if self.type == "i32" else 8


@dataclass(frozen=True)
class Artifact:
    """A compiled variant. Sizes in bytes, `parameters` in launch order."""

    variant: Variant
    symbol: str
    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]
    parameter_bytes: int
    word_skip: int  # list words left unused, so that what follows lies on 64 bytes
    threads: int
    programmatic_launch: bool
    shared_bytes: int
    scratch_bytes: int
    scratch_alignment: int
    registers: int
    spill_bytes: int
    elf_abi: int
    ptx_isa: str
    cubin: bytes
    ptx: bytes  # text, with the zero byte that the driver wants at its end

    @property
    def word_capacity(self) -> int:
        """How many words of a problem list travel in the parameters."""
        return sum(argument.count for argument in self.arguments if argument.name == "list_words") - self.word_skip

    @property
    def minimum_driver(self) -> int:
        return MINIMUM_DRIVER_BY_ELF_ABI[self.elf_abi]

    @property
    def images(self) -> dict[str, bytes]:
        """What is embedded, by kind: the cubin, and of sm_80 the PTX, the only one that later GPUs can run."""
        return {"cubin": self.cubin} | ({"ptx": self.ptx} if self.variant.sm == 80 else {})

    def save(self, folder: Path) -> None:
        """Writes artifact.json, image.cubin and image.ptx into an existing folder."""
        facts = asdict(replace(self, cubin=b"", ptx=b""))
        facts |= {"cubin": sha256(self.cubin), "ptx": sha256(self.ptx)}
        (folder / "image.cubin").write_bytes(self.cubin)
        (folder / "image.ptx").write_bytes(self.ptx)
        (folder / "artifact.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Artifact":
        """Reads what `save` wrote. Raises OSError when a file is missing, ValueError when one is damaged."""
        facts = json.loads((folder / "artifact.json").read_text())
        hashes = facts.pop("cubin"), facts.pop("ptx")
        variant = facts.pop("variant")
        artifact = cls(
            variant=Variant(**variant | {"config": Config(**variant["config"])}),
            arguments=tuple(Argument(**argument) for argument in facts.pop("arguments")),
            parameters=tuple(Parameter(**parameter) for parameter in facts.pop("parameters")),
            cubin=(folder / "image.cubin").read_bytes(),
            ptx=(folder / "image.ptx").read_bytes(),
            **facts,
        )
        if (sha256(artifact.cubin), sha256(artifact.ptx)) != hashes:
            raise ValueError(f"{folder}: an image does not match its hash")
        return artifact
