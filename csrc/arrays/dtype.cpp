#include "arrays/dtype.hpp"

#include <cstring>
#include <string>

#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// "torch.float16" of torch.float16, "float16" of numpy.float16, numpy.dtype("float16") and jax.numpy.float16.
std::string name_of(py::handle dtype) {
  const bool is_type = PyType_Check(dtype.ptr());
  return py::str(is_type ? py::object(dtype.attr("__name__")) : py::reinterpret_borrow<py::object>(dtype));
}

}  // namespace

const char* short_name(gg_dtype dtype) { return dtype == GG_ANY_DTYPE ? "any" : gg_dtype_names[dtype]; }

const char* full_name(gg_dtype dtype) { return gg_dtypes[dtype].framework; }

gg_dtype dtype_named(const char* name) {
  for (int i = 0; i < GG_DTYPE_COUNT; i++) {
    if (!std::strcmp(name, gg_dtypes[i].framework)) return static_cast<gg_dtype>(i);
  }
  return GG_ANY_DTYPE;
}

gg_dtype requested_dtype(py::handle dtype, const char* function) {
  if (dtype.is_none()) return GG_ANY_DTYPE;
  const std::string name = name_of(dtype);
  const gg_dtype found = dtype_named(name.substr(name.rfind('.') + 1).c_str());
  if (found != GG_ANY_DTYPE && found != GG_E5M2) return found;
  throw ValueError(std::string(function) + ": out_dtype is " + name +
                   "; float16, bfloat16, float32 or float8_e4m3fn is needed");
}

gg_dtype output_dtype(gg_dtype inputs, gg_dtype requested, gg_dtype given, const char* function) {
  if (is_fp8(inputs)) {
    const gg_dtype first = requested != GG_ANY_DTYPE ? requested : given;
    if (first == GG_ANY_DTYPE || first == GG_E5M2) return GG_BF16;
    if (inputs == GG_E4M3 || first == GG_BF16 || first == GG_FP32) return first;
    throw ValueError(std::string(function) + ": the output would be " + full_name(first) +
                     ", and products of float8_e5m2 are written in bfloat16 or float32; pass one of these");
  }
  if (requested == GG_ANY_DTYPE || requested == inputs) return inputs;
  throw ValueError(std::string(function) + ": out_dtype is " + full_name(requested) + " but the inputs are " +
                   full_name(inputs) +
                   ", and products of 16-bit inputs are written in their own dtype; leave it out, "
                   "and convert the result");
}

}  // namespace gg
