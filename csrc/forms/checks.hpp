// The rules that arrays of every call keep, and the words in which a broken one is told.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "arrays/tensor.hpp"
#include "driver/error.hpp"

namespace gg {

// Which array of which function: {"group_gemm", "A", 3} is told as "group_gemm: A[3] ..."; a negative index as "A".
struct ArgumentName {
  const char* function;
  const char* what;
  int index = -1;
};

[[noreturn]] void reject(const ArgumentName& argument, const std::string& text);       // ValueError
[[noreturn]] void reject_type(const ArgumentName& argument, const std::string& text);  // TypeError

// What `read` returns; an error of it says which function the array was for.
template <typename Read>
auto named_by(const char* function, Read read) {
  try {
    return read();
  } catch (const TypeError& error) {
    throw TypeError(std::string(function) + ": " + error.what());
  } catch (const RuntimeError& error) {
    throw RuntimeError(std::string(function) + ": " + error.what());
  }
}

inline bool is_given(pybind11::handle argument) { return argument && !argument.is_none(); }

// Whether it is one of Python's, or of NumPy's scalars, which could be read as arrays too.
bool is_number(pybind11::handle value);

// The number that was passed for an argument, which a float holds, and the integer, of 64 bits. Arrays of a device are
// no numbers.
double number(const ArgumentName& argument, pybind11::handle value);
int64_t integer(const ArgumentName& argument, pybind11::handle value);

// The array that was passed for an argument. In the second, which throws ValueError for an array without dimensions, no
// rank stands for None.
Tensor view_of(pybind11::handle array, const ArgumentName& argument);
Tensor view_if_given(pybind11::handle array, const ArgumentName& argument);

std::string name(const ArgumentName& argument);
std::string place(const Tensor& tensor);  // "cuda:0", "the CPU"
std::string shape(const Tensor& tensor);  // "[16, 32]"
std::string shape(int64_t rows, int64_t columns);

void check_matrix(const Tensor& tensor, const ArgumentName& argument);  // two dimensions
void check_stack(const Tensor& tensor, const ArgumentName& argument);   // three

// A dtype that kernels multiply, then `check_memory`.
void check_operand(const Tensor& tensor, const ArgumentName& argument);

// Elements on multiples of their size, on a CPU or CUDA device, and sizes that fit 32 bits.
void check_memory(const Tensor& tensor, const ArgumentName& argument);

// The device of `first`, which is told as `first_name`.
void check_device(const Tensor& tensor, const ArgumentName& argument, const Tensor& first, const char* first_name);

// int32 or int64, `rank` dimensions, elements one behind the other, in memory that `check_memory` takes.
void check_integers(const Tensor& tensor, const ArgumentName& argument, int rank);

// Elements one behind the other, row by row.
void check_contiguous(const Tensor& tensor, const ArgumentName& argument);

// A float16 or bfloat16 matrix, the elements of a row one behind the other.
void check_rows(const Tensor& tensor, const ArgumentName& argument);

// float32, float16 or bfloat16 weights of the slots of tokens: the shape of `slots`, contiguous, on its device.
void check_slot_weights(const Tensor& tensor, const ArgumentName& argument, const Tensor& slots,
                        const char* slots_name);

// Slots [tokens, k] that 32 bits count.
void check_slots(const Tensor& tensor, const ArgumentName& argument);

// Throws ValueError where the output may share memory with an array that is read.
void check_separate(const Tensor& out, const ArgumentName& argument, const Tensor& read, const char* read_name);

// Of K and of N, that one scale of GG_SCALING_BLOCK is for.
constexpr int64_t scale_block = 128;

// Whether an array has one element, in up to three dimensions or none.
bool is_one(const Tensor& tensor);

// float32, for fp8 products only.
void check_scale_array(const Tensor& scale, const ArgumentName& argument, gg_dtype inputs);

// One float32 element, or `count` of them in a row, for fp8 products only.
void check_scale(const Tensor& scale, const ArgumentName& argument, gg_dtype inputs, int64_t count);

// Whether gradients of an array are being recorded. One object for the arrays of a call.
class Gradients {
 public:
  bool operator()(pybind11::handle array, const char* what, int index);

  // Whether the array has a tangent of forward-mode differentiation.
  bool has_tangent(pybind11::handle array, const char* what, int index);

  // Whether one of these is so, or the array stands for others: its framework has to take part in the call. False for
  // None.
  bool needs_framework(pybind11::handle array, const char* what, int index = -1);

 private:
  void look_at(pybind11::handle array, const char* what, int index);

  PyTypeObject* type_ = nullptr;  // of the last array
  const Framework* framework_ = nullptr;
  bool recording_ = false, forward_mode_ = false;
};

// Whether the array stands for others, which its framework alone finds: torch's FakeTensor and DTensor.
bool stands_for_others(pybind11::handle array, const ArgumentName& argument);

// Throws RuntimeError for an input whose gradient would be lost. One object for the arrays of a call.
class GradientCheck {
 public:
  // `recorded`: of the same call, where it was asked before.
  explicit GradientCheck(const char* function, const Gradients& recorded = {})
      : function_(function),
        recorded_(recorded) {}
  void operator()(pybind11::handle array, const char* what, int index = -1);

 private:
  const char* function_;
  Gradients recorded_;
};

// A matrix [rows, columns] of the dtype that may be written in place, or a stack of `groups` of them: its elements are
// distinct, and no gradient is lost. `product` is what it is to hold.
struct OutputSpec {
  int64_t rows, columns;
  gg_dtype dtype;
  const char* product;
  int64_t groups = -1;  // no stack

  bool is_stack() const { return groups >= 0; }
};
void check_output(const Tensor& tensor, const ArgumentName& argument, pybind11::handle array, const OutputSpec& wanted,
                  Gradients& recorded);

// A call of any form after its checks: by whose functions, and where, it is to be computed.
struct CheckedCall {
  const Framework* framework = nullptr;  // that of the first array; null for an empty list
  pybind11::object like;                 // the first array
  DeviceType device_type = DeviceType::cpu;
  int device = 0;
  gg_dtype dtype = GG_ANY_DTYPE, out_dtype = GG_ANY_DTYPE;

  // Framework and device of the array that comes first.
  void take(pybind11::handle first, const Tensor& seen, const char* what);
};

}  // namespace gg
