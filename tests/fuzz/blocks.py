"""Memory of torch with the matrices of a problem in it, their data, and what a check found wrong."""

import numpy
import torch

from fuzz import layouts, products

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "fp32": torch.float32}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
CANARY = 0xA5


class Block:
    """Memory of the caching allocator with matrices in it; a mask tells their elements from all else."""

    def __init__(self, size: int, dtype, stacks, device: torch.device):
        self.bytes = torch.full((size,), CANARY, dtype=torch.uint8, device=device)
        self.elements = self.bytes.view(dtype)
        self.bits = self.bytes.view(BITS[dtype.itemsize])
        self.mask = torch.zeros(self.bits.numel(), dtype=torch.bool, device=self.bytes.device)
        for stack in stacks:
            self.strided(self.mask, stack).fill_(True)
        self.stacks = [self.strided(self.elements, stack) for stack in stacks]
        self.canary = int.from_bytes(bytes([CANARY] * dtype.itemsize), "little", signed=dtype.itemsize > 1)
        self.nan = -1 if dtype.itemsize > 1 else 255  # ones are a NaN in every dtype here

    @staticmethod
    def strided(flat, stack):
        return flat.as_strided((stack.count, *stack.shape), (stack.pitch, *stack.strides), stack.start)

    def poison(self) -> None:
        self.bits.masked_fill_(self.mask, self.nan)

    def strays(self):
        """Whether a byte that is no element's has changed."""
        return (self.bits != self.canary).masked_fill_(self.mask, False).any()


class Evidence:
    """Elements that a check found wrong, the first few by value; `still`: what a second look at the memory finds."""

    FEW = 8

    def __init__(self, found, wrong, still, expected):
        self.counts = torch.stack([wrong.sum(), still.sum(), found.float().isnan().sum()])
        self.shape = wrong.shape
        places = wrong.flatten().to(torch.uint8).topk(min(self.FEW, wrong.numel())).indices
        numbers = [found.float().flatten()[places], expected.float().flatten()[places]]
        self.places, self.numbers = places, torch.stack(numbers)

    def __str__(self):
        wrong, still, nan = self.counts.tolist()
        places = [tuple(int(i) for i in numpy.unravel_index(at, self.shape)) for at in self.places.tolist()]
        shown = [f"{at}: {x:g} for {y:g}" for at, x, y in zip(places, *self.numbers.tolist())][: int(wrong)]
        return f"{wrong} elements wrong, {still} at a second look, {nan} NaN; {', '.join(shown)}"


class Noise:
    """Numbers that every problem takes its data from, made once for each device."""

    COUNT = 1 << 23

    def __init__(self, device: torch.device):
        self.device = device
        generator = torch.Generator(device=device).manual_seed(7)
        shape = {"device": device, "generator": generator}
        integers = torch.randint(-2, 3, (self.COUNT,), **shape)
        kept = torch.rand(self.COUNT, **shape) < 0.25  # sparse: sums of products stay small and exact
        exact, normal = (integers * kept).float(), torch.randn(self.COUNT, **shape)
        self.bits = {
            (name, is_normal): values.to(dtype).view(BITS[dtype.itemsize])
            for name, dtype in DTYPES.items()
            for is_normal, values in ((False, exact), (True, normal))
        }

    def slice(self, name: str, data: dict, count: int):
        bits = self.bits[name, data["normal"]]
        start = data["seed"] * 4999 % (self.COUNT // 4)
        return bits[start : start + count]


class Problem:
    """Matrices, what they should come to, and what else the library is handed."""

    def __init__(self, spec: dict, noise: Noise):
        self.spec, self.kind, self.device, self.stream = spec, spec["kind"], spec["device"], spec["stream"]
        self.used, self.holders, self.first_bits, self.noise = None, 0, {}, noise
        self.version, self.times = 0, 1  # of the data; how often outputs were added to
        A, B, in_bytes, C, out_bytes = layouts.layouts(spec)
        self.dtype, self.out_dtype = DTYPES[spec["dtype"]], DTYPES[spec["out"]]
        self.inputs = Block(in_bytes, self.dtype, [*A, *B], noise.device)
        self.image = self.inputs.bytes.clone()
        self.outputs = Block(out_bytes, self.out_dtype, C, noise.device)
        self.A, self.B = self.inputs.stacks[: len(A)], self.inputs.stacks[len(A) :]
        self.variants, self.bias = {}, None
        self.mains, self.mains_before = [], []  # float32 gradients of a layer's weights
        products.prepare(self)

    def bits_before(self, number: int, key: tuple, bits):
        """Of the same variant and data; None where there are none. The first ones of a size are kept."""
        if number not in self.first_bits:
            self.first_bits[number] = key
            self.kept[number].copy_(bits)
        return self.kept[number] if self.first_bits[number] == key else None
