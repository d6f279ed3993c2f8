#include "driver/module.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "driver/error.hpp"
#include "driver/gil.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr int shared_bytes_without_opt_in = 48 * 1024;

// One image of an artifact in the driver: loaded once, for all devices.
struct Library {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
};

// What is loaded of one artifact. `mutex` guards the libraries and the first load on a device.
struct Loaded {
  std::mutex mutex;
  Library cubin, ptx;
  std::atomic<const LoadedKernel*> kernels[max_devices];
};

// Never freed: at exit the driver may be gone before this library is.
Loaded& loaded(const gg_artifact& artifact) {
  static Loaded* const all = new Loaded[static_cast<size_t>(gg_artifact_count)]();
  return all[&artifact - gg_artifacts];
}

// One load in progress: what its messages name and what its steps share.
struct Load {
  const gg_artifact& artifact;
  const Device& device;
  ImageKind kind;
  const Driver& cuda;

  const gg_image& image() const { return kind == ImageKind::ptx ? artifact.ptx : artifact.cubin; }

  std::string what() const {
    return std::string(artifact.name) + " (sm_" + std::to_string(artifact.sm) +
           (kind == ImageKind::ptx ? " PTX" : " cubin") + ") on cuda:" + std::to_string(device.ordinal) + " (" +
           device.name + ", sm_" + std::to_string(device.sm) + ")";
  }

  std::string advice(CUresult code) const {
    switch (code) {
      case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
        return "no cubin fits this GPU, and the driver's PTX compiler (libnvidia-ptxjitcompiler.so.1) is not "
               "installed: install it, or build gg_runtime for this architecture";
      case CUDA_ERROR_INVALID_IMAGE:
      case CUDA_ERROR_NO_BINARY_FOR_GPU:
      case CUDA_ERROR_INVALID_PTX:
      case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        break;
      default:
        return "";
    }
    const std::string versions = "the driver supports CUDA " + version_text(cuda.version) + " and the image needs " +
                                 version_text(artifact.minimum_driver);
    if (cuda.version < artifact.minimum_driver) return versions + ": update the driver";
    return versions + ", so its age is not the reason; run `python -m gg_runtime` and report what it prints";
  }

  void check(CUresult code, const char* call) const {
    if (code != CUDA_SUCCESS) cuda.check(code, call, "loading " + what(), advice(code));
  }
};

std::string runs_on(const gg_artifact& artifact) {
  std::string text = "its code runs on sm_" + std::to_string(artifact.sm);
  if (artifact.sm < 90) text += " and later minor versions of it";
  return text + (artifact.ptx.bytes ? ", its PTX on sm_80 and up" : "");
}

void check_device(const Load& load) {
  const gg_artifact& artifact = load.artifact;
  const std::string device = "cuda:" + std::to_string(load.device.ordinal) + " (" + load.device.name + ")";
  if (load.kind == ImageKind::none) {
    throw UnsupportedError(std::string(artifact.name) + " does not run on " + device + ", which is sm_" +
                           std::to_string(load.device.sm) + ": " + runs_on(artifact) +
                           "; take a variant of this architecture, or build gg_runtime with it in ARCHS (80 and up)");
  }
  if (artifact.shared_bytes > load.device.shared_bytes_per_block) {
    throw UnsupportedError(std::string(artifact.name) + " needs " + std::to_string(artifact.shared_bytes) +
                           " bytes of shared memory a block and " + device + " has " +
                           std::to_string(load.device.shared_bytes_per_block) + "; take a variant that needs less");
  }
}

void check_image(const Load& load) {
  const std::string found = sha256(load.image());
  if (found == load.image().sha256) return;
  throw ArtifactError("the image of " + load.what() + " is damaged: its sha256 is " + found + ", the build recorded " +
                      load.image().sha256 + "; install gg_runtime again");
}

// A launcher that packs parameters other than the kernel reads them would corrupt memory in silence.
void check_parameters(const Load& load, CUkernel kernel) {
  if (!load.cuda.cuKernelGetParamInfo) return;
  const gg_artifact& artifact = load.artifact;
  for (int i = 0; i <= artifact.parameter_count; i++) {
    size_t offset = 0, size = 0;
    const CUresult code = load.cuda.cuKernelGetParamInfo(kernel, static_cast<size_t>(i), &offset, &size);
    const bool exists = code != CUDA_ERROR_INVALID_VALUE, expected = i < artifact.parameter_count;
    if (exists) load.check(code, "cuKernelGetParamInfo");
    if (!exists && !expected) return;
    if (exists && expected && offset == artifact.parameters[i].offset && size == artifact.parameters[i].size) continue;
    const auto place = [](size_t at, size_t bytes) {
      return std::to_string(bytes) + " bytes at " + std::to_string(at);
    };
    throw ArtifactError(load.what() + " does not fit its launcher: parameter " + std::to_string(i) + " is " +
                        (exists ? place(offset, size) : "absent") + " in the image and " +
                        (expected ? place(artifact.parameters[i].offset, artifact.parameters[i].size) : "absent") +
                        " in the launcher; the package mixes two builds: install gg_runtime again");
  }
}

void open_library(const Load& load, Library& slot) {
  if (slot.library) return;
  Library opened;
  load.check(load.cuda.cuLibraryLoadData(&opened.library, load.image().data, nullptr, nullptr, 0, nullptr, nullptr, 0),
             "cuLibraryLoadData");
  const CUresult found = load.cuda.cuLibraryGetKernel(&opened.kernel, opened.library, load.artifact.symbol);
  if (found != CUDA_SUCCESS) load.cuda.cuLibraryUnload(opened.library);
  if (found == CUDA_ERROR_NOT_FOUND) {
    throw ArtifactError("the image of " + load.what() + " has no kernel " + load.artifact.symbol +
                        "; the package mixes two builds: install gg_runtime again");
  }
  load.check(found, "cuLibraryGetKernel");
  slot = opened;
}

// With the device's context current: cuKernelGetFunction gives the function of that context, and makes the driver load
// the code now and not at the first launch.
const LoadedKernel* prepare(const Load& load, CUkernel kernel) {
  const Driver& cuda = load.cuda;
  const gg_artifact& artifact = load.artifact;
  auto made = std::make_unique<LoadedKernel>();
  if (artifact.shared_bytes > shared_bytes_without_opt_in) {
    load.check(cuda.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, artifact.shared_bytes, kernel,
                                         load.device.handle),
               "cuKernelSetAttribute");
  }
  load.check(cuda.cuKernelGetFunction(&made->function, kernel), "cuKernelGetFunction");
  check_parameters(load, kernel);
  int blocks = 0;
  load.check(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, made->function, artifact.threads,
                                                              static_cast<size_t>(artifact.shared_bytes)),
             "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  made->blocks_per_multiprocessor = std::max(blocks, 1);
  made->from_ptx = load.kind == ImageKind::ptx;
  return made.release();
}

const LoadedKernel& first_load(const gg_artifact& artifact, const Device& device, Loaded& state) {
  const Load load{artifact, device, image_for(artifact, device), driver()};
  check_device(load);
  check_image(load);
  const WithoutGil unlocked;
  const std::lock_guard<std::mutex> lock(state.mutex);
  std::atomic<const LoadedKernel*>& slot = state.kernels[device.ordinal];
  if (const LoadedKernel* kernel = slot.load()) return *kernel;
  const CurrentContext current(device);
  const RelaxedCapture relaxed;
  Library& library = load.kind == ImageKind::ptx ? state.ptx : state.cubin;
  open_library(load, library);
  slot.store(prepare(load, library.kernel));
  return *slot.load();
}

// What to do about a launch that the driver refused for the stream's sake. Streams of green contexts are taken.
std::string stream_advice(CUresult code, CUstream stream, const Device& device) {
  CUcontext own = nullptr;
  const bool refused = code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_INVALID_CONTEXT;
  if (!refused || driver().cuStreamGetCtx(stream, &own) != CUDA_SUCCESS || own == device.context) return "";
  return "the current stream belongs to another CUDA context than the primary one of cuda:" +
         std::to_string(device.ordinal) + ", which holds the arrays; make a stream of the primary context current";
}

}  // namespace

ImageKind image_for(const gg_artifact& artifact, const Device& device) {
  const bool later_minor = device.sm / 10 == artifact.sm / 10 && device.sm >= artifact.sm;
  const bool runs = artifact.sm < 90 ? later_minor : device.sm == artifact.sm;
  if (runs && artifact.cubin.bytes) return ImageKind::cubin;
  return artifact.ptx.bytes && device.sm >= 80 ? ImageKind::ptx : ImageKind::none;
}

const LoadedKernel& load(const gg_artifact& artifact, const Device& device) {
  Loaded& state = loaded(artifact);
  if (const LoadedKernel* kernel = state.kernels[device.ordinal].load(std::memory_order_acquire)) return *kernel;
  return first_load(artifact, device, state);
}

void launch(const gg_artifact& artifact, const LoadedKernel& kernel, const Device& device, unsigned grid,
            CUstream stream, const gg_arguments& arguments) {
  const Driver& cuda = driver();
  const CUresult result = artifact.launch(cuda.cuLaunchKernelEx, kernel.function, grid, stream, &arguments);
  if (result == CUDA_SUCCESS) return;
  cuda.check(result, "cuLaunchKernelEx", std::string("launching ") + artifact.name,
             stream_advice(result, stream, device));
}

std::string sha256(const gg_image& image) {
  const py::memoryview bytes = py::memoryview::from_memory(image.data, static_cast<py::ssize_t>(image.bytes));
  return py::module_::import("hashlib").attr("sha256")(bytes).attr("hexdigest")().cast<std::string>();
}

}  // namespace gg
