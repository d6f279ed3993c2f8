"""A stand-in for torch before 2.10, which has no C exchange API, on GPUs that are not there."""

from types import SimpleNamespace

from arrays import Array, element_bytes, fresh_address

allocations: list[int] = []  # addresses, in the order of allocation
allocator = None  # or a function of a device and bytes that gives an address, and what owns the memory there
grad_enabled = True


class dtype(str):
    def __str__(self):
        return "torch." + str.__str__(self)


float16, bfloat16, float32, float8_e4m3fn, int32, uint8 = (
    dtype(name) for name in ("float16", "bfloat16", "float32", "float8_e4m3fn", "int32", "uint8")
)


def allocated(device: int, size: int):
    address, owner = allocator(device, size) if allocator else (fresh_address(device), None)
    allocations.append(address)
    return address, owner


class Tensor(Array):
    requires_grad = False
    owner = None

    def __init__(self, *shape, dtype=float16, device=0, **facts):
        super().__init__(*shape, dtype=dtype, device=SimpleNamespace(type="cuda", index=device), **facts)

    def is_neg(self):
        return False

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    @property
    def mT(self):
        shape, strides = list(self.shape), list(self.strides)
        shape[-2:], strides[-2:] = shape[:-3:-1], strides[:-3:-1]
        facts = {"strides": tuple(strides), "address": self.address, "dtype": self.dtype}
        made = Tensor(*shape, device=self.device.index, **facts)
        made.owner = self.owner
        return made

    def new_empty_strided(self, shape, strides, dtype=None):
        index, dtype = self.device.index, dtype or self.dtype
        elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides)) if all(shape) else 0
        address, owner = allocated(index, elements * element_bytes(dtype))
        made = Tensor(*shape, strides=strides, address=address, dtype=dtype, device=index)
        made.owner = owner
        return made

    def unsafe_split_with_sizes(self, heights):
        parts, address = [], self.address
        for height in heights:
            facts = {"strides": self.strides, "dtype": self.dtype, "device": self.device.index}
            parts.append(Tensor(height, self.shape[1], address=address, **facts))
            parts[-1].owner = self.owner
            address += element_bytes(self.dtype) * height * self.strides[0]
        return tuple(parts)


class nn:
    class Parameter(Tensor):
        requires_grad = True


class cuda:
    streams = {0: 0x200, 1: 0x201}

    @staticmethod
    def current_stream(device):
        return SimpleNamespace(cuda_stream=cuda.streams[device])


def is_grad_enabled():
    return grad_enabled
