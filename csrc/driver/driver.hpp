// libcuda as a table of functions, found by dlopen at first use; no symbol of it is linked.
#pragma once

#include <string>
#include <vector>

#include "abi/cuda_abi.h"
#include "driver/gpus.hpp"

namespace gg {

struct Driver {
  CUresult (*cuInit)(unsigned);
  CUresult (*cuDriverGetVersion)(int*);
  CUresult (*cuGetErrorName)(CUresult, const char**);
  CUresult (*cuGetErrorString)(CUresult, const char**);
  CUresult (*cuDeviceGet)(CUdevice*, int);
  CUresult (*cuDeviceGetCount)(int*);
  CUresult (*cuDeviceGetName)(char*, int, CUdevice);
  CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
  CUresult (*cuCtxGetCurrent)(CUcontext*);
  CUresult (*cuCtxSetCurrent)(CUcontext);
  CUresult (*cuThreadExchangeStreamCaptureMode)(int*);
  CUresult (*cuLibraryLoadData)(CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned);
  CUresult (*cuLibraryUnload)(CUlibrary);
  CUresult (*cuLibraryGetKernel)(CUkernel*, CUlibrary, const char*);
  CUresult (*cuKernelGetFunction)(CUfunction*, CUkernel);
  CUresult (*cuKernelSetAttribute)(int, int, CUkernel, CUdevice);
  CUresult (*cuKernelGetParamInfo)(CUkernel, size_t, size_t*, size_t*);  // null before driver 12.4
  CUresult (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int*, CUfunction, int, size_t);
  CUresult (*cuPointerGetAttribute)(void*, int, CUdeviceptr);  // null where the driver lacks it
  CUresult (*cuStreamSynchronize)(CUstream);
  CUresult (*cuStreamWaitEvent)(CUstream, CUevent, unsigned);
  CUresult (*cuStreamGetId)(CUstream, unsigned long long*);
  CUresult (*cuStreamGetCtx)(CUstream, CUcontext*);
  CUresult (*cuStreamGetCaptureInfo_v2)(CUstream, int*, uint64_t*, CUgraph*, const CUgraphNode**, size_t*);
  CUresult (*cuUserObjectCreate)(CUuserObject*, void*, CUhostFn, unsigned, unsigned);
  CUresult (*cuUserObjectRelease)(CUuserObject, unsigned);
  CUresult (*cuGraphRetainUserObject)(CUgraph, CUuserObject, unsigned, unsigned);
  CUresult (*cuEventCreate)(CUevent*, unsigned);
  CUresult (*cuEventDestroy_v2)(CUevent);
  CUresult (*cuEventRecord)(CUevent, CUstream);
  CUresult (*cuEventRecordWithFlags)(CUevent, CUstream, unsigned);
  CUresult (*cuEventQuery)(CUevent);
  CUresult (*cuEventElapsedTime)(float*, CUevent, CUevent);
  CUresult (*cuTensorMapEncodeTiled)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                                     const uint32_t*, int, int, int, int);
  CUresult (*cuTensorMapReplaceAddress)(void*, void*);
  gg_cuLaunchKernelEx cuLaunchKernelEx;
  int version;  // as cuDriverGetVersion counts: 12080 is CUDA 12.8

  // Throws CudaError if `code` is not success; `call` names the function, `doing` what for, `advice` what to do.
  void check(CUresult code, const char* call, const std::string& doing = "", const std::string& advice = "") const;
};

// The driver of this process; throws UnsupportedError when there is none, it is a stub, or it is older than CUDA 12.0.
// A failure is not remembered: the next call tries again. Throws UnsupportedError in a child that was forked after
// initialization. No lock on the fast path; needs no GIL.
const Driver& driver();

// Whether a call that returns this code found the context, or the driver, at its end.
bool nothing_runs_after(CUresult code);

// 12080 in words: "12.8".
std::string version_text(int version);

// Facts of a device that selection and launches need; asked once for each device.
struct Device {
  int ordinal;
  CUdevice handle;
  CUcontext context;  // the primary context, retained for the life of the process
  int sm;             // 90 for compute capability 9.0
  int multiprocessors;
  int shared_bytes_per_block;  // what a block may opt in to
  std::string name;
  double clock_mhz;           // of the multiprocessors, at most; 0: the driver does not tell
  double memory_gb_s;         // 0: the driver does not tell
  int gpu = -1;               // index into gg_gpus of this very GPU, whose measured rows serve it; -1: not there
  std::vector<Scale> scales;  // from each of gg_gpus
};

constexpr int max_devices = 64;

// Throws ValueError when this process sees no such device.
const Device& device(int64_t ordinal);
int device_count();

// Makes the primary context of a device current for a scope, and puts back what was there. No driver call but one
// cuCtxGetCurrent where it is current already.
class CurrentContext {
 public:
  explicit CurrentContext(const Device& device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& cuda_;
  CUcontext previous_;
  bool changed_;
};

// Lets a thread call what the driver refuses by default while a stream is captured: loading code, asking an event.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& cuda_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // once exchanged, the mode to put back
};

}  // namespace gg
