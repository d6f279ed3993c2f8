"""Arrays without memory: made-up addresses behind each protocol that the library reads."""

import ctypes
from itertools import count

CPU, CUDA, ROCM = 1, 2, 10  # DLDeviceType
TYPES = {  # dtype -> DLPack code, bits, array-interface type string
    "float16": (2, 16, "<f2"),
    "bfloat16": (4, 16, None),
    "float8_e4m3fn": (10, 8, "|V1"),
    "float8_e5m2": (12, 8, "|V1"),
    "float32": (2, 32, "<f4"),
    "float64": (2, 64, "<f8"),
    "int8": (0, 8, "|i1"),
    "uint8": (1, 8, "|u1"),
    "int32": (0, 32, "<i4"),
    "int64": (0, 64, "<i8"),
}


# What kernels() calls a dtype -> what frameworks call it.
FULL_NAMES = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "fp32": "float32", "e5m2": "float8_e5m2"}


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """DLManagedTensor: what an unversioned capsule points to."""


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1."""


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Managed._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
ManagedVersioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", _DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", DLTensor),
]

_FROM_OBJECT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI, version 1."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", _FROM_OBJECT),
        ("current_work_stream", _STREAM),
    ]


# A capsule borrows its name, so the names live as long as the module.
_EXCHANGE_API, _TENSOR, _VERSIONED_TENSOR = b"dlpack_exchange_api", b"dltensor", b"dltensor_versioned"


def _capsule(pointer, name: bytes):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(pointer, name, None)


class Array:
    """A strided view of memory that is not there. `strides` in elements, row-major by default."""

    def __init__(self, *shape, address=0, strides=None, dtype="float16", device=0, device_type=CUDA):
        if strides is None:
            strides = [1] * len(shape)
            for axis in range(len(shape) - 2, -1, -1):
                strides[axis] = strides[axis + 1] * shape[axis + 1]
        self.address, self.shape, self.strides = address, tuple(shape), tuple(strides)
        self.dtype, self.device, self.device_type = dtype, device, device_type
        self.exported, self.released = [], 0
        self.read_only, self.major = False, 1  # as DLPack tells them

    def facts(self) -> dict:
        """Address, shape and strides as JSON has them."""
        return {"address": self.address, "shape": list(self.shape), "strides": list(self.strides)}

    def describe(self) -> DLTensor:
        """The DLTensor of this array, which keeps what it points to."""
        sizes = ctypes.c_int64 * len(self.shape)
        self._shape, self._strides = sizes(*self.shape), sizes(*self.strides)
        code, bits, _ = TYPES[self.dtype]
        pointers = (ctypes.cast(values, ctypes.POINTER(ctypes.c_int64)) for values in (self._shape, self._strides))
        return DLTensor(self.address, self.device_type, self.device, len(self.shape), code, bits, 1, *pointers, 0)


class ExchangeArray(Array):
    """Speaks DLPack's C exchange API, as torch 2.10 does. `streams` is the current stream of each device."""

    streams: dict[int, int] = {}


@_FROM_OBJECT
def _tensor_from_object(array, out):
    out[0] = array.describe()
    return 0


@_STREAM
def _current_work_stream(device_type, device, out):
    out[0] = ExchangeArray.streams.get(device, 0)
    return 0


_api = ExchangeAPI(1, 3, None, None, None, None, _tensor_from_object, _current_work_stream)
ExchangeArray.__dlpack_c_exchange_api__ = _capsule(ctypes.addressof(_api), _EXCHANGE_API)


class CapsuleArray(Array):
    """Speaks `__dlpack__` alone, in either version; counts the capsules that were released."""

    def __dlpack_device__(self):
        return self.device_type, self.device

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        @_DELETER
        def release(_):
            self.released += 1

        tensor = self.describe()
        if max_version is None:
            managed, name = Managed(tensor, None, release), _TENSOR
        else:
            managed, name = ManagedVersioned(self.major, 0, None, release, self.read_only, tensor), _VERSIONED_TENSOR
        self.exported.append((managed, release))
        return _capsule(ctypes.addressof(managed), name)


class InterfaceArray(Array):
    """Speaks `__cuda_array_interface__`; its strides are bytes. `stream`: the entry of that name."""

    stream = None
    others: dict = {}  # entries besides, or instead

    def __dlpack_device__(self):
        return self.device_type, self.device

    @property
    def __cuda_array_interface__(self):
        _, bits, text = TYPES[self.dtype]
        return {
            "shape": self.shape,
            "typestr": text,
            "data": (self.address, self.read_only),
            "strides": tuple(stride * bits // 8 for stride in self.strides),
            "version": 3,
            "stream": self.stream,
            **self.others,
        }


def element_bytes(dtype: str) -> int:
    return TYPES[dtype][1] // 8


_made = count(1)


def fresh_address(device: int = 0) -> int:
    """An address on 256 bytes with 4 GiB of its own; bits 44 and up are the device, as fake_cuda.c takes it."""
    return (device << 44) + (next(_made) << 32)


def array(*shape, device=0, **facts):
    """An array in memory of its own."""
    return ExchangeArray(*shape, address=fresh_address(device), device=device, **facts)


def matrix(rows, columns, *, order="n", pad=0, offset=0, kind=ExchangeArray, **facts):
    """A matrix in memory of its own. order "n" has columns contiguous, "t" rows; `pad` and `offset` are elements."""
    strides = (columns + pad, 1) if order == "n" else (1, rows + pad)
    address = fresh_address(facts.get("device", 0)) + offset * element_bytes(facts.get("dtype", "float16"))
    return kind(rows, columns, strides=strides, address=address, **facts)


def operands(sizes, *, layout="nn", out_order="n", **facts):
    """A, B and outputs for [(M, N, K), ...]."""
    A = [matrix(m, k, order=layout[0], **facts) for m, n, k in sizes]
    B = [matrix(k, n, order=layout[1], **facts) for m, n, k in sizes]
    return A, B, [matrix(m, n, order=out_order, **facts) for m, n, k in sizes]


def stacks(groups, rows, columns, depth, *, layout="nn", pad=0, gap=0, dtype="float16", kind=ExchangeArray, **facts):
    """A [groups, rows, K] and B [groups, K, columns]; a `pad` behind each row or column, a `gap` behind each matrix."""

    def stack(m, n, order):
        inner, outer = (n, m) if order == "n" else (m, n)
        strides = (inner + pad, 1) if order == "n" else (1, inner + pad)
        apart = outer * (inner + pad) + gap
        return kind(groups, m, n, address=fresh_address(), strides=(apart, *strides), dtype=dtype, **facts)

    return stack(rows, depth, layout[0]), stack(depth, columns, layout[1])


def ragged(rows, columns, depth, groups, *, layout="nn", pad=0, dtype="float16", kind=ExchangeArray, **facts):
    """mat_a, mat_b and offs of a ragged product, in memory of their own. Layouts and `pad` as for `matrix`."""
    device = facts.get("device", 0)
    mat_a = matrix(rows, depth, order=layout[0], pad=pad, dtype=dtype, kind=kind, **facts)
    pitch = (columns if layout[1] == "n" else depth) + pad
    strides = (depth * pitch, pitch, 1) if layout[1] == "n" else (columns * pitch, 1, pitch)
    mat_b = kind(groups, depth, columns, strides=strides, address=fresh_address(device), dtype=dtype, **facts)
    return mat_a, mat_b, kind(groups, address=fresh_address(device), dtype="int32", **facts)
