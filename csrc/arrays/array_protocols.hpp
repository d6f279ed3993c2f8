// How arrays are read: a function for each protocol, from a Python object to a Tensor. All throw TypeError, naming the
// array as `what`[`index`].
#pragma once

#include <functional>

#include "abi/dlpack/dlpack.h"
#include "arrays/tensor.hpp"

namespace gg {

// "A[3]"; "A" where index is negative.
std::string array_name(const char* what, int index);

// What `__dlpack_c_exchange_api__` of a type points to, in major version 1; null where there is none.
const DLPackExchangeAPI* exchange_api(pybind11::handle type);

// By a function of the framework's own.
Tensor read_by(const std::function<Tensor()>& read, pybind11::handle array, const char* what, int index);

Tensor read_exchange(const DLPackExchangeAPI& api, pybind11::handle array, const char* what, int index);

// What `current_work_stream` of the API says for a CUDA device.
CUstream exchange_stream(const DLPackExchangeAPI& api, int device);

// By `__dlpack__`. A CUDA array's pending work is ordered before the legacy default stream.
Tensor read_capsule(pybind11::handle array, const char* what, int index);

// By `__cuda_array_interface__`, and by NumPy's `__array_interface__`.
Tensor read_cuda_interface(pybind11::handle array, const char* what, int index);
Tensor read_host_interface(pybind11::handle array, const char* what, int index);

// Fills rank, shape and stride; without strides (in elements) the array is row-major.
void set_extents(Tensor& tensor, int rank, const int64_t* shape, const int64_t* strides);

// Fills dtype and dtype_name from a framework's name of a dtype, "float16" or another.
void set_dtype(Tensor& tensor, const char* name);

// Kernels keep TMA descriptors in scratch memory, each on 128 bytes.
constexpr uint64_t scratch_alignment = 128;
inline uint64_t aligned_scratch(uint64_t address) {
  return (address + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
}

}  // namespace gg
