"""A stand-in for CuPy on GPUs that are not there: made-up addresses, an allocator that never reuses one, streams."""

from types import SimpleNamespace

from arrays import CapsuleArray, InterfaceArray, fresh_address

allocations: list[tuple[int, int]] = []  # (address, bytes) of each array
_BYTES = {"float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float32": 4, "uint8": 1, "int32": 4, "int64": 8}


class Device(int):
    """A device ordinal that can be made the current one for a scope."""

    current = 0

    def __enter__(self):
        self._before, Device.current = Device.current, int(self)

    def __exit__(self, *_):
        Device.current = self._before


class ndarray(InterfaceArray, CapsuleArray):
    @property
    def data(self):
        return SimpleNamespace(ptr=self.address)


def empty(shape, dtype, order="n"):
    """A new array on the current device; order "t" makes a matrix column-major. Addresses of bytes are on 64 only."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    dtype = str(dtype)
    size = _BYTES[dtype]
    for extent in shape:
        size *= extent
    address = fresh_address(Device.current) + (64 if dtype == "uint8" else 0)
    allocations.append((address, size))
    strides = None if order == "n" else (1, shape[0])
    return ndarray(*shape, address=address, strides=strides, dtype=dtype, device=Device(Device.current))


class cuda:
    streams = {0: 0x100, 1: 0x101}

    @staticmethod
    def get_current_stream(device):
        return SimpleNamespace(ptr=cuda.streams[int(device)])
