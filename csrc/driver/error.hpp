// The errors that leave the library, one C++ type for each Python type; python_errors.cpp translates them.
#pragma once

#include <stdexcept>
#include <string>

#include "abi/cuda_abi.h"

namespace gg {

// A wrong argument: ValueError.
struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An argument of a wrong type: TypeError.
struct TypeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call that is not possible in the state that things are in: RuntimeError.
struct RuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// This GPU or driver cannot run what was asked for: gg_runtime.UnsupportedError.
struct UnsupportedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An embedded kernel is damaged or does not fit its launcher: gg_runtime.ArtifactError.
struct ArtifactError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A driver call failed: gg_runtime.CudaError, with the call, the code and the driver's name for it.
struct CudaError : std::runtime_error {
  CudaError(std::string call, CUresult code, std::string name, const std::string& text)
      : std::runtime_error(text),
        call(std::move(call)),
        code(code),
        name(std::move(name)) {}
  std::string call;
  CUresult code;
  std::string name;
};

}  // namespace gg
