#include "forms/experts_memory.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "abi/artifact.h"
#include "driver/error.hpp"
#include "forms/guarantees.hpp"

namespace gg {
namespace {

constexpr int64_t element_size = 2, elements_of_16_bytes = 8;
constexpr int64_t most_bytes = int64_t{1} << 61;

int64_t padded(int64_t columns) { return ceil_div(columns, elements_of_16_bytes) * elements_of_16_bytes; }

struct RoutingBlock {
  int64_t bins, entries;
};

// Of each number of bins that the embedded kernels count into: the fewest entries that one takes as a chunk.
const std::vector<RoutingBlock>& routing_blocks() {
  static const std::vector<RoutingBlock> known = [] {
    std::vector<RoutingBlock> blocks;
    for (int i = 0; i < gg_artifact_count; i++) {
      const gg_artifact& one = gg_artifacts[i];
      if (one.form == GG_ROUTE_COUNT) blocks.push_back({one.block_n, one.block_m});
    }
    return blocks;
  }();
  return known;
}

// Counts of each chunk by expert: the launch has no more parts than chunks. Any kernel with enough bins may be taken.
size_t count_bytes(int64_t rows, int64_t experts) {
  int64_t fewest = 0, bytes = 0;
  for (const RoutingBlock& block : routing_blocks()) {
    if (block.bins > experts && (fewest == 0 || block.bins < fewest)) fewest = block.bins;
  }
  for (const RoutingBlock& block : routing_blocks()) {
    if (block.bins != fewest) continue;
    bytes = std::max(bytes, ceil_div(rows, block.entries) * block.bins * static_cast<int64_t>(sizeof(int32_t)));
  }
  return static_cast<size_t>(bytes);
}

// Takes memory off the front of a block.
class Cursor {
 public:
  size_t take(size_t bytes) {
    const size_t start = end_;
    end_ += (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
    return start;
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

}  // namespace

ExpertsMemory experts_memory(const ExpertsSizes& sizes) {
  const int64_t rows = sizes.rows();
  if (rows == 0) return {};
  const auto integers = static_cast<size_t>(rows) * sizeof(int32_t);
  const auto bytes_of_rows = [&](int64_t stride) { return static_cast<size_t>(rows * stride * element_size); };
  ExpertsMemory memory{};
  memory.hidden_row = padded(sizes.hidden);
  memory.sums_row = padded(sizes.up_columns);
  memory.activated_row = padded(sizes.intermediate);
  const int64_t widest = 2 * std::max(memory.hidden_row, memory.sums_row);
  if (widest > most_bytes / element_size / rows) {
    throw ValueError("fused_experts: " + std::to_string(rows) + " rows of " + std::to_string(sizes.hidden) + " and " +
                     std::to_string(sizes.up_columns) + " columns reach past the address space; pass max_rows");
  }
  Cursor cursor;
  memory.ends = cursor.take(static_cast<size_t>(sizes.experts) * sizeof(int32_t));
  memory.token = cursor.take(integers);
  memory.slot = cursor.take(integers);
  memory.inverse = cursor.take(integers);
  memory.counts = cursor.take(count_bytes(rows, sizes.experts));
  Cursor by_parts = cursor, at_once = cursor;
  memory.gathered = by_parts.take(bytes_of_rows(std::max(memory.hidden_row, memory.activated_row)));
  memory.sums = by_parts.take(bytes_of_rows(memory.sums_row));
  memory.activated = at_once.take(bytes_of_rows(memory.activated_row));
  memory.down = at_once.take(bytes_of_rows(memory.hidden_row));
  memory.bytes = std::max(by_parts.end(), at_once.end());
  return memory;
}

int64_t tokens_at_once(const ExpertsSizes& sizes, int64_t max_rows) {
  if (max_rows <= 0 || sizes.top_k == 0) return sizes.tokens;
  return std::min(sizes.tokens, std::max<int64_t>(1, max_rows / sizes.top_k));
}

}  // namespace gg
