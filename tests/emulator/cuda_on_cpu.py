"""A plugin of pytest: torch's CUDA tensors lie in host memory, and kernels run in the emulator.

gg_runtime takes every tensor of torch for one on device 0, by a DLPack exchange API that says so, and the emulator
learns what memory it may touch. Streams are all one, in order. Who asks for a graph is skipped.
"""

import ctypes
import os

import pytest
import torch
from torch.overrides import TorchFunctionMode

import arrays

_emulator = ctypes.CDLL("libcuda.so.1")
_emulator.emulator_know.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
_emulator.emulator_fault.restype = ctypes.c_char_p
_emulator.emulator_launches.restype = ctypes.c_char_p
_emulator.emulator_seed(int(os.environ.get("EMULATOR_SEED", "1")))


def launches() -> list[str]:
    """Entry points of the kernels that ran since the last call of this."""
    return _emulator.emulator_launches().decode().split()


def synchronize(*_) -> None:
    """Raises RuntimeError where a kernel since the last call of this was at fault."""
    fault = _emulator.emulator_fault().decode()
    if fault:
        raise RuntimeError(f"in the emulator, {fault}")


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_torchs = arrays.ExchangeAPI.from_address(_pointer_of(torch.Tensor.__dlpack_c_exchange_api__, arrays._EXCHANGE_API))


@arrays._FROM_OBJECT
def _tensor_from_object(tensor, out):
    code = _torchs.tensor_from_object(tensor, out)
    if code == 0:
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            _emulator.emulator_know(storage.data_ptr(), storage.nbytes())
        out[0].device_type, out[0].device_id = arrays.CUDA, 0
    return code


@arrays._STREAM
def _current_work_stream(device_type, device, out):
    out[0] = 0
    return 0


_others = (_torchs.allocator, _torchs.managed_from_object, _torchs.managed_to_object)
_api = arrays.ExchangeAPI(
    _torchs.major, _torchs.minor, None, *_others, _tensor_from_object, _current_work_stream
)  # fmt: skip
torch.Tensor.__dlpack_c_exchange_api__ = arrays._capsule(ctypes.addressof(_api), arrays._EXCHANGE_API)


def _is_cuda(device) -> bool:
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")


class _InHostMemory(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if getattr(function, "__name__", "") == "cuda":
            return arguments[0]
        moved = {name: "cpu" if _is_cuda(value) else value for name, value in (keywords or {}).items()}
        return function(*("cpu" if _is_cuda(value) else value for value in arguments), **moved)


class _Event:
    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    wait = record

    def synchronize(self):
        synchronize()

    def query(self) -> bool:
        return True


class _Stream(_Event):
    cuda_stream = 0

    def wait_stream(self, *_):
        pass

    wait_event = wait_stream

    def record_event(self, *_):
        return _Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def _no_graphs(*_, **__):
    pytest.skip("the emulator has no graphs")


_generator_type = torch.Generator


class _Generator:
    """Of the CPU, whatever device it is asked for."""

    def __new__(cls, device="cpu"):
        return _generator_type()


_stand_ins = {
    "CUDAGraph": _no_graphs,
    "Event": _Event,
    "Stream": _Stream,
    "_sleep": lambda *_: None,
    "current_device": lambda: 0,
    "current_stream": lambda *_: _Stream(),
    "default_stream": lambda *_: _Stream(),
    "device_count": lambda: 1,
    "empty_cache": lambda: None,
    "get_device_capability": lambda *_: (9, 0),
    "get_device_name": lambda *_: "NVIDIA H200",
    "is_available": lambda: True,
    "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
    "mem_get_info": lambda *_: (1 << 32, 1 << 37),
    "stream": lambda stream: stream,
    "synchronize": synchronize,
}
for _name, _value in _stand_ins.items():
    setattr(torch.cuda, _name, _value)
torch.Generator = _Generator
_InHostMemory().__enter__()
