#include "driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "error.hpp"

namespace gg {
namespace {

constexpr int minimum_version = 12000;  // cuLibraryLoadData came with CUDA 12.0

constexpr const char* spawn_advice =
    "CUDA does not survive a fork: where this process was forked from one that had used CUDA, start it with "
    "multiprocessing's \"spawn\" or \"forkserver\" instead";

std::mutex first_use;
std::atomic<const Driver*> ready{nullptr};
std::atomic<const Device*> devices[max_devices];

// The driver does not survive a fork. The child finds no table and so comes to the slow path, which tells; asking
// getpid at each call instead would cost a system call.
enum class Process { untouched, initialized, forked };
std::atomic<Process> process{Process::untouched};

void in_forked_child() {
  if (process.load() == Process::untouched) return;
  process.store(Process::forked);
  ready.store(nullptr);
}

// Codes of a fault in work that ran before the call that reports it; the context stays unusable.
bool is_sticky(CUresult code) {
  return code == 214 || code == 220 || code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 719);
}

void* open_library() {
  // Never closed, not even after a failure: a driver that has started threads does not unload cleanly.
  if (void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return library;
  const char* why = dlerror();
  throw UnsupportedError(std::string("no NVIDIA driver: libcuda.so.1 cannot be loaded (") +
                         (why ? why : "no reason given") +
                         "); install the driver, or give the container access to it");
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

const Device* describe(int ordinal) {
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
  found->shared_bytes_per_block =
      attribute(cuda, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, found->handle);
  cuda.check(cuda.cuDevicePrimaryCtxRetain(&found->context, found->handle), "cuDevicePrimaryCtxRetain", doing);
  return found.release();
}

const Device& first_device(int ordinal) {
  const int count = device_count();
  if (ordinal < 0 || ordinal >= count || ordinal >= max_devices) {
    throw ValueError("cuda:" + std::to_string(ordinal) + " was asked for, but this process sees " +
                     std::to_string(count) + " CUDA devices, numbered from 0 (gg_runtime takes up to " +
                     std::to_string(max_devices) + ")");
  }
  const std::lock_guard<std::mutex> lock(first_use);
  std::atomic<const Device*>& slot = devices[ordinal];
  if (!slot.load()) slot.store(describe(ordinal));
  return *slot.load();
}

std::string text_of(CUresult (*ask)(CUresult, const char**), CUresult code, const char* otherwise) {
  const char* text = nullptr;
  return ask(code, &text) == CUDA_SUCCESS && text ? text : otherwise;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void Driver::check(CUresult code, const char* call, const std::string& doing, const std::string& advice) const {
  if (code == CUDA_SUCCESS) return;
  const std::string name = text_of(cuGetErrorName, code, "CUDA_ERROR_UNKNOWN_CODE");
  std::string text = std::string(call) + " failed" + (doing.empty() ? "" : " " + doing) + ": " + name + " (" +
                     std::to_string(code) + "), " + text_of(cuGetErrorString, code, "no text for this code");
  if (is_sticky(code)) {
    text +=
        "; the context was already in error from earlier work: a kernel launched before this call faulted. Nothing "
        "more runs in this process; look for the fault with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1";
  }
  if (!advice.empty()) text += "; " + advice;
  throw CudaError(call, code, name, text);
}

const Driver& driver() {
  if (const Driver* cuda = ready.load(std::memory_order_acquire)) return *cuda;
  return first_driver();
}

const Device& device(int ordinal) {
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

CurrentContext::CurrentContext(const Device& device) : previous_(nullptr), changed_(false) {
  const Driver& cuda = driver();
  cuda.check(cuda.cuCtxGetCurrent(&previous_), "cuCtxGetCurrent");
  if (previous_ == device.context) return;
  cuda.check(cuda.cuCtxSetCurrent(device.context), "cuCtxSetCurrent");
  changed_ = true;
}

CurrentContext::~CurrentContext() {
  // The result is dropped: this may run while an error is on its way out, and the same fault would come back here.
  if (changed_) driver().cuCtxSetCurrent(previous_);
}

}  // namespace gg
