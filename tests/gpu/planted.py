"""Kernels with one bug each, for the tools of compute-sanitizer to find. Run in a child: some end its context."""

import cupy
import numpy

SOURCES = {
    "memcheck": """
        extern "C" __global__ void planted_memcheck(const int *in, int *out) {
          out[threadIdx.x] = in[256 + threadIdx.x];  /* `in` has 256 elements */
        }
    """,
    # Two warps and no barrier between the write of one and the read of the other.
    "racecheck": """
        extern "C" __global__ void planted_racecheck(const int *in, int *out) {
          __shared__ int shared[64];
          shared[threadIdx.x] = in[threadIdx.x];
          out[threadIdx.x] = shared[(threadIdx.x + 32) % 64];
        }
    """,
    # `in` is fresh memory of cudaMalloc that nobody wrote.
    "initcheck": """
        extern "C" __global__ void planted_initcheck(const int *in, int *out) {
          out[threadIdx.x] = in[threadIdx.x] + 1;
        }
    """,
    # Lane 16 waits for a mask that it is not in.
    "synccheck": """
        extern "C" __global__ void planted_synccheck(const int *in, int *out) {
          __shared__ int shared[64];
          const unsigned mask = __ballot_sync(0xffffffffu, threadIdx.x % 32 < 16);
          if (threadIdx.x % 32 <= 16) {
            shared[threadIdx.x] = in[threadIdx.x];
            __syncwarp(mask);
            out[threadIdx.x] = shared[threadIdx.x ^ 1];
          }
        }
    """,
}
# And what only the lower threads of a block come to.
DIVERGENT = """
    extern "C" __global__ void planted_divergent(const int *in, int *out) {
      if (threadIdx.x < 40) {
        __syncthreads();
        out[threadIdx.x] = in[threadIdx.x];
      }
    }
"""


def main(tool: str) -> None:
    """Runs the bug that `tool` finds."""
    cupy.cuda.set_allocator(None)  # each array is a cudaMalloc of its own
    out = cupy.zeros(64, "int32")
    given = cupy.empty(256, "int32") if tool == "initcheck" else cupy.asarray(numpy.arange(256, dtype="int32"))
    cupy.cuda.Device().synchronize()
    print(f"planted: {tool}", flush=True)
    sources = {f"planted_{tool}": SOURCES[tool]}
    if tool == "synccheck":
        sources["planted_divergent"] = DIVERGENT
    for name, source in sources.items():
        cupy.RawKernel(source, name)((1,), (64,), (given, out))
        cupy.cuda.Device().synchronize()
