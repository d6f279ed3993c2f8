#include "list.hpp"

#include <algorithm>
#include <cstring>

#include "descriptor.hpp"

namespace gg {
namespace {

constexpr size_t strides_record_words = 14;
constexpr size_t descriptors_record_words = 56;
constexpr size_t words_in_64_bytes = 8;

size_t end_words(const gg_artifact& artifact, size_t groups) {
  if (!takes_descriptors(artifact)) return groups;
  return (groups + words_in_64_bytes - 1) / words_in_64_bytes * words_in_64_bytes;
}

void write_descriptors(const gg_artifact& artifact, const Group& g, uint64_t* record) {
  const gg_dtype dtype = artifact.dtype;
  const Described matrices[] = {
      a_by_columns(artifact) ? describe(dtype, g.a, g.m, g.k, g.a_col, artifact.block_k)
                             : describe(dtype, g.a, g.k, g.m, g.a_row, artifact.block_m),
      b_by_columns(artifact) ? describe(dtype, g.b, g.k, g.n, g.b_col, artifact.block_n)
                             : describe(dtype, g.b, g.n, g.k, g.b_row, artifact.block_k),
      describe(artifact.out_dtype, g.c, g.n, g.m, g.c_row, output_box_rows(artifact)),
  };
  for (const Described& matrix : matrices) {
    write_descriptor(artifact, matrix, record);
    record += descriptor_words;
  }
}

bool are_alike(const Group& x, const Group& y) {
  return x.m == y.m && x.n == y.n && x.k == y.k && x.a_row == y.a_row && x.a_col == y.a_col && x.b_row == y.b_row &&
         x.b_col == y.b_col && x.c_row == y.c_row && x.c_col == y.c_col;
}

// Descriptors of a group whose sizes and strides are those of the group before.
void write_descriptors_like(const gg_artifact& artifact, const uint64_t* like, const Group& g, uint64_t* record) {
  for (const uint64_t address : {g.a, g.b, g.c}) {
    write_descriptor_at(artifact, like, address, record);
    like += descriptor_words;
    record += descriptor_words;
  }
}

// `before`: the group whose record lies before this one, or null.
void write_described(const gg_artifact& artifact, const Group* before, const Group& g, uint64_t* record) {
  if (before && are_alike(*before, g)) write_descriptors_like(artifact, record - descriptors_record_words, g, record);
  else write_descriptors(artifact, g, record);
  const uint64_t rest[] = {static_cast<uint64_t>(g.m),
                           static_cast<uint64_t>(g.n),
                           static_cast<uint64_t>(g.k),
                           g.scale_a,
                           g.scale_b,
                           0,
                           0,
                           0};
  std::memcpy(record + 3 * descriptor_words, rest, sizeof rest);
}

void write_strides(const Group& g, uint64_t* record) {
  const int64_t fields[strides_record_words] = {static_cast<int64_t>(g.a),
                                                static_cast<int64_t>(g.b),
                                                static_cast<int64_t>(g.c),
                                                g.a_row,
                                                g.a_col,
                                                g.b_row,
                                                g.b_col,
                                                g.c_row,
                                                g.c_col,
                                                g.m,
                                                g.n,
                                                g.k,
                                                static_cast<int64_t>(g.scale_a),
                                                static_cast<int64_t>(g.scale_b)};
  std::memcpy(record, fields, sizeof fields);
}

}  // namespace

bool takes_descriptors(const gg_artifact& artifact) { return artifact.kernel == GG_HOPPER; }

size_t record_word_count(const gg_artifact& artifact) {
  return takes_descriptors(artifact) ? descriptors_record_words : strides_record_words;
}

size_t list_word_count(const gg_artifact& artifact, size_t groups) {
  return end_words(artifact, groups) + groups * record_word_count(artifact);
}

ListWords write_list(const Problem& problem, const gg_artifact& artifact) {
  const bool described = takes_descriptors(artifact);
  const size_t groups = problem.groups.size();
  ListWords list{groups, end_words(artifact, groups), record_word_count(artifact),
                 std::unique_ptr<uint64_t[]>(new uint64_t[list_word_count(artifact, groups)])};
  uint64_t end = 0, *ends = list.words.get(), *record = ends + list.end_words;
  const Group* before = nullptr;
  for (const Group& group : problem.groups) {
    *ends++ = end += static_cast<uint64_t>(tile_count(group, artifact.block_m, artifact.block_n));
    if (described) write_described(artifact, before, group, record);
    else write_strides(group, record);
    record += list.record_words;
    before = &group;
  }
  std::fill(ends, list.words.get() + list.end_words, end);
  return list;
}

}  // namespace gg
