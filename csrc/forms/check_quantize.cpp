#include "forms/check_quantize.hpp"

#include <string>

#include "forms/checks.hpp"
#include "forms/guarantees.hpp"

namespace py = pybind11;

namespace gg {
namespace {

const ArgumentName argument{"quantize_1x128", "x"};

}  // namespace

CheckedQuantize check_quantize(py::handle x) {
  CheckedQuantize c;
  c.x = view_of(x, argument);
  check_matrix(c.x, argument);
  if (c.x.dtype != GG_FP16 && c.x.dtype != GG_BF16) {
    reject_type(argument, std::string("has dtype ") + c.x.dtype_name + "; float16 or bfloat16 is needed: convert it");
  }
  check_memory(c.x, argument);
  GradientCheck check(argument.function);
  check(x, argument.what);
  c.rows = c.x.shape[0], c.columns = c.x.shape[1], c.blocks = ceil_div(c.columns, scale_block);
  c.take(x, c.x, argument.what);
  c.dtype = c.x.dtype, c.out_dtype = GG_E4M3;
  return c;
}

}  // namespace gg
