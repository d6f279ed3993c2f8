// cuLaunchKernelEx, which runs kernels; the rest of the driver is faults/fake_cuda.c.
#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "../../csrc/abi/cuda_abi.h"
#include "cta.hpp"

// As fake_cuda.c has them.
struct CUlib_st {
  int image;
  unsigned char* cubin;
};
struct CUkern_st {
  CUlibrary library;
  char symbol[64];
};
struct CUfunc_st {
  CUkernel kernel;
  int device;
};

extern "C" CUresult fake_cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**);

namespace emulator {
namespace {

constexpr size_t parameter_base = 16;  // of a kernel's parameters on an H200, past a multiple of 64

struct State {
  Memory memory;
  std::mt19937 random{1};
  std::map<std::string, std::unique_ptr<Program>> programs;  // by the cubin's bytes
  std::map<std::string, std::string> ptx_of;                 // folders of the build's cache
  std::string fault, launches;
};

State& state() {
  static State only;
  return only;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An ELF file up to the last thing that its headers point to.
std::string image(const unsigned char* cubin) {
  uint64_t offsets[2];
  uint16_t sizes[4];
  std::memcpy(offsets, cubin + 32, sizeof offsets);
  std::memcpy(sizes, cubin + 54, sizeof sizes);
  const uint64_t end = std::max(offsets[0] + uint64_t{sizes[0]} * sizes[1], offsets[1] + uint64_t{sizes[2]} * sizes[3]);
  return {reinterpret_cast<const char*>(cubin), end};
}

void read_cache(State& all) {
  const char* root = std::getenv("EMULATOR_CACHE");
  DIR* folder = root ? opendir(root) : nullptr;
  if (!folder) throw Fault("EMULATOR_CACHE names no folder");
  while (const dirent* entry = readdir(folder)) {
    const std::string artifact = std::string(root) + "/" + entry->d_name;
    std::string cubin = contents(artifact + "/image.cubin");
    if (!cubin.empty()) all.ptx_of[std::move(cubin)] = artifact + "/image.ptx";
  }
  closedir(folder);
}

const Program& program_of(State& all, const CUkern_st& kernel) {
  if (!kernel.library->cubin) throw Fault("only cubins are known, and their PTX");
  const std::string cubin = image(kernel.library->cubin);
  std::unique_ptr<Program>& program = all.programs[cubin];
  if (program) return *program;
  if (all.ptx_of.empty()) read_cache(all);
  const auto found = all.ptx_of.find(cubin);
  if (found == all.ptx_of.end()) throw Fault("the build's cache has no PTX of this cubin");
  program = std::make_unique<Program>(parse(contents(found->second)));
  return *program;
}

void run(State& all, const Program& program, unsigned ctas, size_t shared_bytes, const unsigned char* buffer,
         size_t bytes) {
  if (bytes < program.parameter_bytes) throw Fault("too few bytes of parameters");
  std::vector<uint8_t> room(bytes + 128);
  const uint64_t start = (reinterpret_cast<uint64_t>(room.data()) + 63) / 64 * 64 + parameter_base;
  std::memcpy(reinterpret_cast<void*>(start), buffer, bytes);
  all.memory.set_parameters(start, bytes);
  const Launch launch{program,    reinterpret_cast<const uint8_t*>(start),
                      ctas,       std::max<size_t>(shared_bytes, 16),
                      all.memory, all.random};
  for (unsigned index = 0; index < ctas; index++) Cta(launch, index).run();
}

// A fault is kept for emulator_fault, as a GPU tells it at a later call.
template <typename Act>
void keep_fault(State& all, const std::string& kernel, Act act) {
  try {
    act();
  } catch (const std::exception& fault) {
    if (all.fault.empty()) all.fault = kernel + ": " + fault.what();
  }
}

}  // namespace
}  // namespace emulator

extern "C" {

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  const CUresult code = fake_cuLaunchKernelEx(config, function, params, extra);
  if (code != CUDA_SUCCESS) return code;
  const unsigned char* buffer = nullptr;
  size_t bytes = 0;
  for (void** option = extra; *option != CU_LAUNCH_PARAM_END; option += 2) {
    if (*option == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const unsigned char*>(option[1]);
    if (*option == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(option[1]);
  }
  emulator::State& all = emulator::state();
  all.launches += std::string(function->kernel->symbol) + "\n";
  emulator::keep_fault(all, function->kernel->symbol, [&] {
    const emulator::Program& program = emulator::program_of(all, *function->kernel);
    if (config->blockDimX != static_cast<unsigned>(program.threads)) throw emulator::Fault("another number of threads");
    emulator::run(all, program, config->gridDimX, config->sharedMemBytes, buffer, bytes);
  });
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(value) = 0;
  return CUDA_SUCCESS;
}

void emulator_know(uint64_t start, uint64_t bytes) { emulator::state().memory.add(start, bytes); }
void emulator_seed(unsigned seed) { emulator::state().random.seed(seed); }

// Runs a kernel that is given as text.
void emulator_run(const char* ptx, unsigned ctas, size_t shared_bytes, const unsigned char* parameters, size_t bytes) {
  emulator::State& all = emulator::state();
  emulator::keep_fault(all, "PTX",
                       [&] { emulator::run(all, emulator::parse(ptx), ctas, shared_bytes, parameters, bytes); });
}

// The fault since the last call of this, or "".
const char* emulator_fault() {
  static std::string told;
  told = std::move(emulator::state().fault);
  emulator::state().fault.clear();
  return told.c_str();
}

// A line for each launch since the last call of this.
const char* emulator_launches() {
  static std::string told;
  told = std::move(emulator::state().launches);
  emulator::state().launches.clear();
  return told.c_str();
}
}
