#include "driver/driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>

#include "driver/error.hpp"

namespace gg {
namespace {

constexpr int minimum_version = 12000;  // cuLibraryLoadData came with CUDA 12.0

constexpr const char* spawn_advice =
    "CUDA does not survive a fork: where this process was forked from one that had used CUDA, start it with "
    "multiprocessing's \"spawn\" or \"forkserver\" instead";

std::mutex first_use;
std::atomic<const Driver*> ready{nullptr};
std::atomic<const Device*> devices[max_devices];

// The driver does not survive a fork. The child finds no table and no device, and so comes to the slow path, which
// tells; asking getpid at each call instead would cost a system call.
enum class Process { untouched, initialized, forked };
std::atomic<Process> process{Process::untouched};

void in_forked_child() {
  if (process.load() == Process::untouched) return;
  process.store(Process::forked);
  ready.store(nullptr);
  for (std::atomic<const Device*>& known : devices) known.store(nullptr);
}

// Codes of a fault in work that ran before the call that reports it; the context stays unusable: uncorrectable memory
// and link errors, contained ones, illegal addresses, time-outs, assertions, bad instructions, leaked tensor memory.
bool is_sticky(CUresult code) {
  constexpr CUresult codes[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721};
  return std::find(std::begin(codes), std::end(codes), code) != std::end(codes);
}

// What a code means for the caller, where the driver's own text does not say it. A launch reports what ran before it,
// never its own kernel; who waits for the stream hears of both.
const char* explanation(CUresult code, const char* call) {
  if (is_sticky(code)) {
    if (std::strcmp(call, "cuStreamSynchronize") == 0) {
      return "; a kernel on this GPU faulted, that of this call or one that was launched before it. Nothing more runs "
             "in this process; look for the fault with compute-sanitizer";
    }
    return "; the context was already in error from earlier work: a kernel launched before this call faulted. Nothing "
           "more runs in this process; look for the fault with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1";
  }
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "; the GPU or the driver has no memory left: free some (torch.cuda.empty_cache() gives back what torch "
             "keeps) and call again";
    case CUDA_ERROR_INVALID_HANDLE:
      return "; the current stream of the arrays' framework was destroyed, or belongs to another GPU or context";
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return "; the GPU's primary context was destroyed or reset after its first use, and kernels were loaded into it: "
             "start a new process";
    case CUDA_ERROR_DEINITIALIZED:
      return "; the process is ending and the driver has shut down";
    default:
      return "";
  }
}

void* open_library() {
  // Never closed, not even after a failure: a driver that has started threads does not unload cleanly.
  if (void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return library;
  const char* why = dlerror();
  throw UnsupportedError(std::string("no NVIDIA driver: libcuda.so.1 cannot be loaded (") +
                         (why ? why : "no reason given") + "); install the driver, or give the container access to it");
}

template <typename Function>
bool find(void* library, const char* name, Function*& slot) {
  slot = reinterpret_cast<Function*>(dlsym(library, name));
  return slot != nullptr;
}

template <typename Function>
void require(void* library, const char* name, Function*& slot) {
  if (find(library, name, slot)) return;
  throw UnsupportedError(std::string("the NVIDIA driver's libcuda.so.1 has no function ") + name + "; CUDA " +
                         version_text(minimum_version) + " or newer is needed: update the driver");
}

void initialize(const Driver& cuda) {
  const CUresult code = cuda.cuInit(0);
  if (code == CUDA_SUCCESS) return;
  if (code == CUDA_ERROR_STUB_LIBRARY) {
    throw UnsupportedError(
        "libcuda.so.1 is the CUDA toolkit's stub library, which links but runs nothing; take the toolkit's stubs "
        "folder out of LD_LIBRARY_PATH and install the NVIDIA driver");
  }
  if (code == CUDA_ERROR_NO_DEVICE) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    throw UnsupportedError(std::string("the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES is ") +
                           (visible ? "\"" + std::string(visible) + "\"" : "not set") +
                           "); run on a machine with one, or make it visible");
  }
  cuda.check(code, "cuInit", "starting the NVIDIA driver", code == CUDA_ERROR_NOT_INITIALIZED ? spawn_advice : "");
}

int supported_version(const Driver& cuda) {
  int version = 0;
  cuda.check(cuda.cuDriverGetVersion(&version), "cuDriverGetVersion");
  if (version >= minimum_version) return version;
  throw UnsupportedError("the NVIDIA driver supports CUDA " + version_text(version) + "; CUDA " +
                         version_text(minimum_version) + " or newer is needed (driver 525 and up): update the driver");
}

#define GG_REQUIRE(name) require(library, #name, cuda.name)

// Every function of the table but the four that tell whether the driver is new enough to have the rest.
void resolve(void* library, Driver& cuda) {
  GG_REQUIRE(cuDeviceGet);
  GG_REQUIRE(cuDeviceGetCount);
  GG_REQUIRE(cuDeviceGetName);
  GG_REQUIRE(cuDeviceGetAttribute);
  GG_REQUIRE(cuDevicePrimaryCtxRetain);
  GG_REQUIRE(cuCtxGetCurrent);
  GG_REQUIRE(cuCtxSetCurrent);
  GG_REQUIRE(cuThreadExchangeStreamCaptureMode);
  GG_REQUIRE(cuLibraryLoadData);
  GG_REQUIRE(cuLibraryUnload);
  GG_REQUIRE(cuLibraryGetKernel);
  GG_REQUIRE(cuKernelGetFunction);
  GG_REQUIRE(cuKernelSetAttribute);
  GG_REQUIRE(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  GG_REQUIRE(cuStreamSynchronize);
  GG_REQUIRE(cuStreamWaitEvent);
  GG_REQUIRE(cuStreamGetId);
  GG_REQUIRE(cuStreamGetCtx);
  GG_REQUIRE(cuStreamGetCaptureInfo_v2);
  GG_REQUIRE(cuUserObjectCreate);
  GG_REQUIRE(cuUserObjectRelease);
  GG_REQUIRE(cuGraphRetainUserObject);
  GG_REQUIRE(cuEventCreate);
  GG_REQUIRE(cuEventDestroy_v2);
  GG_REQUIRE(cuEventRecord);
  GG_REQUIRE(cuEventRecordWithFlags);
  GG_REQUIRE(cuEventQuery);
  GG_REQUIRE(cuEventElapsedTime);
  GG_REQUIRE(cuTensorMapEncodeTiled);
  GG_REQUIRE(cuTensorMapReplaceAddress);
  GG_REQUIRE(cuLaunchKernelEx);
  find(library, "cuKernelGetParamInfo", cuda.cuKernelGetParamInfo);
  find(library, "cuPointerGetAttribute", cuda.cuPointerGetAttribute);
}

const Driver* start() {
  static const int watched = pthread_atfork(nullptr, nullptr, in_forked_child);
  if (watched != 0) throw std::bad_alloc();
  void* library = open_library();
  auto table = std::make_unique<Driver>();
  Driver& cuda = *table;
  GG_REQUIRE(cuInit);
  GG_REQUIRE(cuDriverGetVersion);
  GG_REQUIRE(cuGetErrorName);
  GG_REQUIRE(cuGetErrorString);
  initialize(cuda);
  cuda.version = supported_version(cuda);
  resolve(library, cuda);
  return table.release();
}

#undef GG_REQUIRE

const Driver& first_driver() {
  if (process.load() == Process::forked) {
    throw UnsupportedError(std::string("gg_runtime was used on a GPU before this process was forked; ") + spawn_advice);
  }
  const std::lock_guard<std::mutex> lock(first_use);
  if (const Driver* cuda = ready.load()) return *cuda;
  process.store(Process::initialized);
  try {
    const Driver* cuda = start();
    ready.store(cuda);
    return *cuda;
  } catch (...) {
    process.store(Process::untouched);
    throw;
  }
}

int attribute(const Driver& cuda, int which, CUdevice handle) {
  int value = 0;
  cuda.check(cuda.cuDeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute");
  return value;
}

// 0 where the driver does not answer, or answers with what cannot be.
double attribute_if_told(const Driver& cuda, int which, CUdevice handle) {
  int value = 0;
  const bool told = cuda.cuDeviceGetAttribute(&value, which, handle) == CUDA_SUCCESS;
  return told && value > 0 ? value : 0;
}

// Twice a clock: memory moves data on both edges.
double memory_gb_s(const Driver& cuda, CUdevice handle) {
  const double clock_khz = attribute_if_told(cuda, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, handle);
  return 2 * clock_khz * attribute_if_told(cuda, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, handle) / 8 / 1e6;
}

const Device* describe_device(int ordinal) {
  const Driver& cuda = driver();
  auto found = std::make_unique<Device>();
  char name[256] = "";
  const std::string doing = "describing cuda:" + std::to_string(ordinal);
  found->ordinal = ordinal;
  cuda.check(cuda.cuDeviceGet(&found->handle, ordinal), "cuDeviceGet", doing);
  cuda.check(cuda.cuDeviceGetName(name, sizeof name, found->handle), "cuDeviceGetName", doing);
  found->name = name;
  found->sm = 10 * attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, found->handle) +
              attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, found->handle);
  found->multiprocessors = attribute(cuda, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, found->handle);
  found->shared_bytes_per_block = attribute(cuda, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, found->handle);
  found->clock_mhz = attribute_if_told(cuda, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, found->handle) / 1e3;
  found->memory_gb_s = memory_gb_s(cuda, found->handle);
  compare_with_measured(*found);
  cuda.check(cuda.cuDevicePrimaryCtxRetain(&found->context, found->handle), "cuDevicePrimaryCtxRetain", doing);
  return found.release();
}

const Device& first_device(int64_t ordinal) {
  const int count = device_count();
  if (ordinal < 0 || ordinal >= count || ordinal >= max_devices) {
    throw ValueError("cuda:" + std::to_string(ordinal) + " was asked for, but this process sees " +
                     std::to_string(count) + " CUDA devices, numbered from 0 (gg_runtime takes up to " +
                     std::to_string(max_devices) + ")");
  }
  const std::lock_guard<std::mutex> lock(first_use);
  std::atomic<const Device*>& slot = devices[ordinal];
  if (!slot.load()) slot.store(describe_device(static_cast<int>(ordinal)));
  return *slot.load();
}

std::string text_of(CUresult (*ask)(CUresult, const char**), CUresult code, const char* otherwise) {
  const char* text = nullptr;
  return ask(code, &text) == CUDA_SUCCESS && text ? text : otherwise;
}

}  // namespace

bool nothing_runs_after(CUresult code) {
  return is_sticky(code) || code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_DEINITIALIZED;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void Driver::check(CUresult code, const char* call, const std::string& doing, const std::string& advice) const {
  if (code == CUDA_SUCCESS) return;
  const std::string name = text_of(cuGetErrorName, code, "CUDA_ERROR_UNKNOWN_CODE");
  std::string text = std::string(call) + " failed" + (doing.empty() ? "" : " " + doing) + ": " + name + " (" +
                     std::to_string(code) + "), " + text_of(cuGetErrorString, code, "no text for this code");
  const bool caller_knows_more = code == CUDA_ERROR_INVALID_HANDLE && !advice.empty();
  if (!caller_knows_more) text += explanation(code, call);
  if (!advice.empty()) text += "; " + advice;
  throw CudaError(call, code, name, text);
}

const Driver& driver() {
  if (const Driver* cuda = ready.load(std::memory_order_acquire)) return *cuda;
  return first_driver();
}

const Device& device(int64_t ordinal) {
  if (ordinal >= 0 && ordinal < max_devices) {
    if (const Device* known = devices[ordinal].load(std::memory_order_acquire)) return *known;
  }
  return first_device(ordinal);
}

int device_count() {
  const Driver& cuda = driver();
  int count = 0;
  cuda.check(cuda.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

CurrentContext::CurrentContext(const Device& device) : cuda_(driver()), previous_(nullptr), changed_(false) {
  cuda_.check(cuda_.cuCtxGetCurrent(&previous_), "cuCtxGetCurrent");
  if (previous_ == device.context) return;
  cuda_.check(cuda_.cuCtxSetCurrent(device.context), "cuCtxSetCurrent");
  changed_ = true;
}

RelaxedCapture::RelaxedCapture() : cuda_(driver()) {
  cuda_.check(cuda_.cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { cuda_.cuThreadExchangeStreamCaptureMode(&mode_); }

CurrentContext::~CurrentContext() {
  // The result is dropped: this may run while an error is on its way out, and the same fault would come back here.
  if (changed_) cuda_.cuCtxSetCurrent(previous_);
}

}  // namespace gg
