"""CUDA graphs of a call."""

import ctypes

import torch


def captured(call, **options):
    """The graph, and what the call gave while it was captured."""
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def node_count(call) -> int:
    graph, _ = captured(call, keep_graph=True)
    nodes = ctypes.c_size_t()
    count = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes
    assert count(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(nodes)) == 0
    return nodes.value
