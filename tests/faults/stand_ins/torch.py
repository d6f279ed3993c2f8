"""A stand-in for torch before 2.10, which has no C exchange API, on GPUs that are not there."""

from types import SimpleNamespace

from arrays import Array, element_bytes, fresh_address

allocations: list[int] = []  # addresses, in the order of allocation
grad_enabled = True


class dtype(str):
    def __str__(self):
        return "torch." + str.__str__(self)


float16, bfloat16, float32, float8_e4m3fn, int32, uint8 = (
    dtype(name) for name in ("float16", "bfloat16", "float32", "float8_e4m3fn", "int32", "uint8")
)


class Tensor(Array):
    requires_grad = False

    def __init__(self, *shape, dtype=float16, device=0, **facts):
        super().__init__(*shape, dtype=dtype, device=SimpleNamespace(type="cuda", index=device), **facts)

    def is_neg(self):
        return False

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    def new_empty_strided(self, shape, strides, dtype=None):
        index = self.device.index
        allocations.append(fresh_address(index))
        return Tensor(*shape, strides=strides, address=allocations[-1], dtype=dtype or self.dtype, device=index)

    def unsafe_split_with_sizes(self, heights):
        parts, address = [], self.address
        for height in heights:
            facts = {"strides": self.strides, "dtype": self.dtype, "device": self.device.index}
            parts.append(Tensor(height, self.shape[1], address=address, **facts))
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
