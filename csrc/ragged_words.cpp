#include "ragged_words.hpp"

#include <cstring>
#include <iterator>

#include "descriptor.hpp"
#include "dtype.hpp"

namespace gg {
namespace {

// Rows are counted from behind: the hardware reads zeros and writes nothing past the end of a dimension, so a group's
// end is put there. Row r of a group with `size` rows that end at row `stop` is row last_row - size + r of the second
// dimension; two more lead from there to row stop - size + r of memory: `stop` steps of a row, and last_row steps of
// 2^34 elements less a row, which take last_row rows away again, as addresses are taken modulo 2^64.
constexpr uint64_t last_row = uint64_t{1} << 30, any_row = 0x7fff0000;
constexpr uint64_t round_trip = uint64_t{1} << 34;

Described counted_from_behind(Described rows) {
  rows.rank = 4;
  rows.sizes[1] = last_row;
  rows.sizes[2] = rows.sizes[3] = any_row;
  rows.byte_strides[1] = round_trip * static_cast<uint64_t>(element_bytes(rows.dtype)) - rows.byte_strides[0];
  rows.byte_strides[2] = rows.byte_strides[0];
  rows.box[2] = rows.box[3] = 1;
  return rows;
}

Described described_a(const Ragged& r, const gg_artifact& artifact) {
  return counted_from_behind(describe(r.dtype, r.a, r.depth, r.rows, r.a_row, artifact.block_m));
}

Described described_b(const Ragged& r, const gg_artifact& artifact) {
  Described b = b_by_columns(artifact) ? describe(r.dtype, r.b, r.depth, r.columns, r.b_col, artifact.block_n)
                                       : describe(r.dtype, r.b, r.columns, r.depth, r.b_row, artifact.block_k);
  b.rank = 3;
  b.sizes[2] = static_cast<uint64_t>(r.groups);
  b.byte_strides[1] = static_cast<uint64_t>(r.b_group) * static_cast<uint64_t>(element_bytes(r.dtype));
  b.box[2] = 1;
  return b;
}

Described described_c(const Ragged& r, const gg_artifact& artifact) {
  return counted_from_behind(describe(r.out_dtype, r.c, r.columns, r.rows, r.c_row, output_box_rows(artifact)));
}

template <size_t count>
size_t append(uint64_t* words, const uint64_t (&values)[count]) {
  std::memcpy(words, values, sizeof values);
  return count;
}

}  // namespace

size_t write_ragged(const Ragged& r, const gg_artifact& artifact, uint64_t* words) {
  const auto word = [](int64_t stride) { return static_cast<uint64_t>(stride); };
  const uint64_t rest[] = {r.offs,    r.bias,    word(r.bias_row),    word(r.bias_col),
                           r.scale_a, r.scale_b, word(r.scale_b_step)};
  size_t count = 0;
  if (artifact.kernel == GG_HOPPER_RAGGED) {
    for (const Described& described : {described_a(r, artifact), described_b(r, artifact), described_c(r, artifact)}) {
      write_descriptor(artifact, described, words + count);
      count += descriptor_words;
    }
    count += append(words + count, rest);
    words[count++] = 0;
    return count;
  }
  count += append(words, {r.a, r.b, r.c, word(r.a_row), word(r.a_col), word(r.b_group), word(r.b_row), word(r.b_col),
                          word(r.c_row), word(r.c_col)});
  return count + append(words + count, rest);
}

}  // namespace gg
