#include "launch/combine.hpp"

#include <string>

#include "driver/error.hpp"
#include "forms/guarantees.hpp"
#include "launch/memory_kernels.hpp"
#include "select/catalog.hpp"

namespace gg {
namespace {

constexpr int64_t most_programs = (int64_t{1} << 31) - 1;

gg_arguments arguments_of(const SumRows& sum) {
  gg_arguments arguments{};
  arguments.y = sum.y, arguments.y_row = static_cast<uint64_t>(sum.y_row);
  arguments.inverse = sum.inverse;
  arguments.weights = sum.weights, arguments.weight_kind = weight_kind(sum.weight_dtype);
  arguments.added = sum.added, arguments.added_row = static_cast<uint64_t>(sum.added_row);
  arguments.out = sum.out, arguments.out_row = static_cast<uint64_t>(sum.out_row);
  arguments.rows = static_cast<int32_t>(sum.rows);
  arguments.top_k = static_cast<int32_t>(sum.top_k);
  arguments.columns = static_cast<int32_t>(sum.columns);
  arguments.factor_bits = bits_of(static_cast<float>(sum.scale));
  return arguments;
}

}  // namespace

const gg_artifact& kernel_of(const SumRows& sum, const Device& device) {
  const bool vectorized = sum.columns % 8 == 0 && moves_by_vectors(sum.y, sum.rows, sum.y_row) &&
                          moves_by_vectors(sum.added, sum.tokens, sum.added_row) &&
                          moves_by_vectors(sum.out, sum.tokens, sum.out_row);
  return vector_artifact(device, GG_COMBINE, sum.dtype, vectorized);
}

RepeatedLaunch prepared(const SumRows& sum, const char* function, const Device& device) {
  const gg_artifact& kernel = kernel_of(sum, device);
  const int64_t programs = sum.tokens * ceil_div(sum.columns, kernel.block_n);
  if (programs > most_programs) {
    throw ValueError(std::string(function) + ": " + std::to_string(sum.tokens) + " tokens of " +
                     std::to_string(sum.columns) + " columns are more than one launch takes; split the tokens");
  }
  return RepeatedLaunch(kernel, device, static_cast<unsigned>(programs), arguments_of(sum));
}

}  // namespace gg
