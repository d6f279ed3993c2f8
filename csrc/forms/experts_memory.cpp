#include "forms/experts_memory.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "abi/artifact.h"
#include "arrays/padded_rows.hpp"
#include "driver/error.hpp"
#include "forms/checks.hpp"
#include "forms/guarantees.hpp"

namespace gg {
namespace {

constexpr int64_t element_size = 2;
constexpr int64_t most_bytes = int64_t{1} << 61;

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

size_t bytes_of(int64_t rows, int64_t stride, int64_t size = element_size) {
  return static_cast<size_t>(rows * stride * size);
}

struct RowBytes {
  size_t gathered, sums, activated, down, gathered_scales, activated_scales;
};

Cursor further(Cursor x, Cursor y) { return x.end() < y.end() ? y : x; }

// What is activated takes the place of what was gathered, which the product has read by then.
ExpertsRows rows_with_sums(Cursor cursor, const RowBytes& bytes) {
  ExpertsRows rows{};
  Cursor later = cursor;
  rows.gathered = cursor.take(bytes.gathered);
  rows.gathered_scales = cursor.take(bytes.gathered_scales);
  rows.activated = later.take(bytes.activated);
  rows.activated_scales = later.take(bytes.activated_scales);
  cursor = further(cursor, later);
  rows.sums = cursor.take(bytes.sums);
  rows.down = later.take(bytes.down);
  rows.end = further(cursor, later).end();
  return rows;
}

// The product writes what is activated while it reads what was gathered: they lie apart. The down projection's rows
// take the place of what was gathered.
ExpertsRows rows_without_sums(Cursor cursor, const RowBytes& bytes) {
  ExpertsRows rows{};
  Cursor later = cursor;
  rows.gathered = cursor.take(bytes.gathered);
  rows.gathered_scales = cursor.take(bytes.gathered_scales);
  rows.down = later.take(bytes.down);
  cursor = further(cursor, later);
  rows.activated = cursor.take(bytes.activated);
  rows.activated_scales = cursor.take(bytes.activated_scales);
  rows.end = cursor.end();
  return rows;
}

size_t scale_bytes(int64_t rows, int64_t columns, bool quantized) {
  return quantized ? bytes_of(rows, ceil_div(columns, scale_block), sizeof(float)) : 0;
}

RowBytes bytes_of_rows(const ExpertsSizes& sizes, const ExpertsMemory& memory) {
  const int64_t rows = sizes.rows(), size = sizes.quantized ? 1 : element_size;
  return {bytes_of(rows, memory.gathered_row, size),        bytes_of(rows, memory.sums_row),
          bytes_of(rows, memory.activated_row, size),       bytes_of(rows, memory.hidden_row),
          scale_bytes(rows, sizes.hidden, sizes.quantized), scale_bytes(rows, sizes.intermediate, sizes.quantized)};
}

void check_reach(const ExpertsSizes& sizes, int64_t widest, const char* function) {
  if (widest <= most_bytes / element_size / sizes.rows()) return;
  throw ValueError(std::string(function) + ": " + std::to_string(sizes.rows()) + " rows of " +
                   std::to_string(sizes.hidden) + " and " + std::to_string(sizes.up_columns) +
                   " columns reach past the address space; pass max_rows");
}

}  // namespace

ExpertsMemory experts_memory(const ExpertsSizes& sizes, const char* function) {
  const int64_t rows = sizes.rows();
  if (rows == 0) return {};
  const auto integers = static_cast<size_t>(rows) * sizeof(int32_t);
  ExpertsMemory memory{};
  const bool has_sums = sizes.gated() || sizes.quantized;
  const gg_dtype multiplied = sizes.quantized ? GG_E4M3 : GG_BF16;
  memory.hidden_row = padded_row(sizes.hidden, GG_BF16);
  memory.gathered_row = padded_row(sizes.hidden, multiplied);
  memory.activated_row = padded_row(sizes.intermediate, multiplied);
  memory.sums_row = has_sums ? padded_row(sizes.up_columns, GG_BF16) : 0;
  check_reach(sizes, memory.hidden_row + memory.activated_row + memory.sums_row, function);
  Cursor cursor;
  memory.ends = cursor.take(static_cast<size_t>(sizes.experts) * sizeof(int32_t));
  memory.token = cursor.take(integers);
  memory.slot = cursor.take(integers);
  memory.inverse = cursor.take(integers);
  memory.counts = cursor.take(count_bytes(rows, sizes.experts));
  const RowBytes bytes = bytes_of_rows(sizes, memory);
  memory.with_sums = rows_with_sums(cursor, bytes);
  memory.without_sums = rows_without_sums(cursor, bytes);
  memory.bytes = std::max(memory.without_sums.end, has_sums ? memory.with_sums.end : 0);
  return memory;
}

int64_t tokens_at_once(const ExpertsSizes& sizes, int64_t max_rows) {
  if (max_rows <= 0 || sizes.top_k == 0) return sizes.tokens;
  return std::min(sizes.tokens, std::max<int64_t>(1, max_rows / sizes.top_k));
}

}  // namespace gg
