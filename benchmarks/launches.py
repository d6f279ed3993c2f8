"""What a call launches, by a CUDA graph of it: kernels with their parameter bytes; and what an empty launch costs."""

import ctypes
import functools
from collections.abc import Callable

import torch

from .timing import Call, host_us

KERNEL_NODE = 0
EMPTY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry empty(.param .align 8 .b8 block[{size}]) {{ ret; }}
"""
Pointer = ctypes.c_void_p
MOST_PARAMETERS = 1024


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", Pointer), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("parameters", Pointer), ("extra", Pointer), ("kernel", Pointer), ("context", Pointer),
    ]  # fmt: skip


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", Pointer),
        ("attributes", Pointer), ("count", ctypes.c_uint),
    ]  # fmt: skip


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def check(status: int, call: str) -> None:
    if status:
        raise RuntimeError(f"{call} returned {status}")


def parameter_bytes_of_launches(call: Call) -> list[int]:
    """Of each kernel that the call launches; nodes that are no kernels count as launches without parameters."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        call()
    raw, count, found = Pointer(graph.raw_cuda_graph()), ctypes.c_size_t(), []
    check(driver().cuGraphGetNodes(raw, None, ctypes.byref(count)), "cuGraphGetNodes")
    nodes = (Pointer * count.value)()
    check(driver().cuGraphGetNodes(raw, nodes, ctypes.byref(count)), "cuGraphGetNodes")
    for node in nodes:
        kind = ctypes.c_int()
        check(driver().cuGraphNodeGetType(Pointer(node), ctypes.byref(kind)), "cuGraphNodeGetType")
        found.append(parameter_bytes(Pointer(node)) if kind.value == KERNEL_NODE else 0)
    return found


def parameter_bytes(node: Pointer) -> int:
    about = KernelNode()
    check(driver().cuGraphKernelNodeGetParams_v2(node, ctypes.byref(about)), "cuGraphKernelNodeGetParams")
    either = ((driver().cuKernelGetParamInfo, about.kernel), (driver().cuFuncGetParamInfo, about.func))
    return max(end_of_parameters(ask, handle) for ask, handle in either if handle)


def end_of_parameters(ask: Callable, handle: int) -> int:
    end = 0
    for index in range(MOST_PARAMETERS):
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        if ask(Pointer(handle), ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size)):
            break  # there are no more
        end = offset.value + size.value
    return end


def empty_launch(size: int) -> tuple[Callable[[], int], Callable[[], int]]:
    """A launch of an empty kernel with so many parameter bytes; and a call by ctypes that does next to nothing."""
    module, function = Pointer(), Pointer()
    text = EMPTY.format(size=max(1, size)).encode()
    check(driver().cuModuleLoadData(ctypes.byref(module), text), "cuModuleLoadData")
    check(driver().cuModuleGetFunction(ctypes.byref(function), module, b"empty"), "cuModuleGetFunction")
    one = (ctypes.c_uint * 3)(1, 1, 1)
    stream = Pointer(torch.cuda.current_stream().cuda_stream)
    config = LaunchConfig(one, one, 0, stream, None, 0)
    block = (ctypes.c_char * max(1, size))()
    parameters = (Pointer * 1)(ctypes.addressof(block))
    launch, nothing = driver().cuLaunchKernelEx, driver().cuDriverGetVersion
    at, version = ctypes.byref(config), ctypes.byref(ctypes.c_int())

    def call(keep: tuple = (config, block)) -> int:
        return launch(at, function, parameters, None)

    check(call(), "cuLaunchKernelEx")
    return call, lambda: nothing(version, function, parameters, None)  # it looks at its one argument alone


def empty_launch_us(size: int) -> float:
    """Host time of the launch, without what ctypes takes for the call."""
    launch, nothing = empty_launch(size)
    return host_us(launch) - host_us(nothing)


def host_figures(call: Call) -> dict:
    """Host time of a call behind a busy GPU, and of as many empty launches with as many parameter bytes."""
    sizes = parameter_bytes_of_launches(call)
    empty = {size: empty_launch_us(size) for size in set(sizes)}
    return {
        "host_us": host_us(call, calls=20),
        "launches": len(sizes),
        "parameter_bytes": sizes,
        "empty_launches_us": sum(empty[size] for size in sizes),
    }
