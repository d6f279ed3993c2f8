#include "forms/list_record.hpp"

#include <algorithm>
#include <iterator>

#include "driver/tensor_map.hpp"
#include "forms/list_problem.hpp"

namespace gg {
namespace {

constexpr size_t words_in_64_bytes = 8;

size_t end_words(const gg_artifact& artifact, size_t groups) {
  if (!takes_descriptors(artifact)) return groups;
  return (groups + words_in_64_bytes - 1) / words_in_64_bytes * words_in_64_bytes;
}

template <typename Record>
void write_descriptors(const gg_artifact& artifact, const Group& g, Record& record) {
  const gg_dtype dtype = artifact.dtype;
  write_descriptor(artifact,
                   a_by_columns(artifact) ? make_tensor_map(dtype, g.a, g.m, g.k, g.a_col, artifact.block_k)
                                          : make_tensor_map(dtype, g.a, g.k, g.m, g.a_row, artifact.block_m),
                   record.a);
  write_descriptor(artifact,
                   b_by_columns(artifact) ? make_tensor_map(dtype, g.b, g.k, g.n, g.b_col, artifact.block_n)
                                          : make_tensor_map(dtype, g.b, g.n, g.k, g.b_row, artifact.block_k),
                   record.b);
  write_descriptor(artifact, make_tensor_map(artifact.out_dtype, g.c, g.n, g.m, g.c_row, output_box_rows(artifact)),
                   record.c);
}

bool are_alike(const Group& x, const Group& y) {
  return x.m == y.m && x.n == y.n && x.k == y.k && x.a_row == y.a_row && x.a_col == y.a_col && x.b_row == y.b_row &&
         x.b_col == y.b_col && x.c_row == y.c_row && x.c_col == y.c_col;
}

// Descriptors of a group whose sizes and strides are those of the group with the record `like`.
template <typename Record>
void write_descriptors_like(const gg_artifact& artifact, const Record& like, const Group& g, Record& record) {
  write_descriptor_at(artifact, like.a, g.a, record.a);
  write_descriptor_at(artifact, like.b, g.b, record.b);
  write_descriptor_at(artifact, like.c, g.c, record.c);
}

// `before`: the group whose record lies before this one, or null.
template <typename Record>
void write_record(const gg_artifact& artifact, const Group* before, const Group& g, Record* record) {
  if (before && are_alike(*before, g)) write_descriptors_like(artifact, record[-1], g, *record);
  else write_descriptors(artifact, g, *record);
  record->m = g.m, record->n = g.n, record->k = g.k, record->gap = 0;
  record->scale_a = g.scale_a, record->scale_b = g.scale_b;
  record->scale_b_step = 0, record->filler = 0;
}

template <typename Record>
void write_record(const Group& g, Record* record) {
  record->a = g.a, record->b = g.b, record->c = g.c;
  record->a_row = g.a_row, record->a_col = g.a_col;
  record->b_row = g.b_row, record->b_col = g.b_col;
  record->c_row = g.c_row, record->c_col = g.c_col;
  record->m = g.m, record->n = g.n, record->k = g.k;
  record->scale_a = g.scale_a, record->scale_b = g.scale_b;
}

// Rows of a product that is turned are the caller's columns.
template <typename Record>
void write_scale_strides(const Group& g, const ScaleStrides& strides, Record* record) {
  record->scale_a_row = g.turned ? strides.b_n : strides.a_row, record->scale_a_k = strides.a_k;
  record->scale_b_n = g.turned ? strides.a_row : strides.b_n, record->scale_b_k = strides.b_k;
}

void write_record(const Group& g, const ScaleStrides& strides, gg_scaled_list_pointers* record) {
  write_record(g, record);
  write_scale_strides(g, strides, record);
}

void write_record(const gg_artifact& artifact, const Group* before, const Group& g, const ScaleStrides& strides,
                  gg_scaled_list_descriptors* record) {
  write_record(artifact, before, g, record);
  write_scale_strides(g, strides, record);
  std::fill(std::begin(record->more_filler), std::end(record->more_filler), 0);
}

// Words of a group that are taken to differ: its end, three addresses, and what its sizes and strides go into.
size_t expected_own_words(const ListProblem& problem, bool described) {
  const Group& first = problem.groups[0];
  Group differs{};  // in each field the bits that are not those of the first group
  for (const Group& g : problem.groups) {
    differs.m |= g.m ^ first.m, differs.n |= g.n ^ first.n, differs.k |= g.k ^ first.k;
    differs.a_row |= g.a_row ^ first.a_row, differs.a_col |= g.a_col ^ first.a_col;
    differs.b_row |= g.b_row ^ first.b_row, differs.b_col |= g.b_col ^ first.b_col;
    differs.c_row |= g.c_row ^ first.c_row, differs.c_col |= g.c_col ^ first.c_col;
    differs.scale_a |= g.scale_a ^ first.scale_a, differs.scale_b |= g.scale_b ^ first.scale_b;
  }
  const auto count = [](auto... bits) { return (static_cast<size_t>(bits != 0) + ...); };
  const Group& d = differs;
  const size_t of_scales = problem.scale_strides.empty() ? 0 : sizeof(ScaleStrides) / sizeof(int64_t);
  const size_t plain = 4 + of_scales + count(d.m, d.n, d.k, d.scale_a, d.scale_b);
  if (!described) return plain + count(d.a_row, d.a_col, d.b_row, d.b_col, d.c_row, d.c_col);
  const size_t sizes = count(d.m | d.k, d.k | d.n, d.m | d.n);
  return plain + sizes + count(d.a_row | d.a_col, d.b_row | d.b_col, d.c_row | d.c_col);
}

}  // namespace

bool takes_descriptors(const gg_artifact& artifact) { return artifact.addressing == GG_HOST_DESCRIPTORS; }

size_t record_word_count(const gg_artifact& artifact) {
  const bool scaled = has_scale_strides(artifact);
  if (takes_descriptors(artifact)) return scaled ? GG_SCALED_LIST_DESCRIPTORS_WORDS : GG_LIST_DESCRIPTORS_WORDS;
  return scaled ? GG_SCALED_LIST_POINTERS_WORDS : GG_LIST_POINTERS_WORDS;
}

size_t list_word_count(const gg_artifact& artifact, size_t groups) {
  return end_words(artifact, groups) + groups * record_word_count(artifact);
}

bool fits_parameters(const gg_artifact& artifact, size_t groups) {
  return list_word_count(artifact, groups) <= static_cast<size_t>(artifact.word_capacity);
}

// By sizes and strides alone, whatever the addresses and the order of the groups, and without the driver: what a choice
// may depend on. Descriptors are taken to hold an address, two sizes in one word, and a stride.
size_t ListProblem::expected_upload_count(const gg_artifact& artifact, size_t capacity) const {
  if (fits_parameters(artifact, groups.size())) return 0;
  const size_t own = expected_own_words(*this, takes_descriptors(artifact));
  const size_t shared = record_word_count(artifact) + 1 - own;
  const auto words = static_cast<int64_t>(groups.size() * own);
  return static_cast<size_t>(ceil_div(words, static_cast<int64_t>(capacity - shared)));
}

void ListProblem::write_sizes(gg_arguments& arguments) const { arguments.groups = static_cast<int32_t>(groups.size()); }

ProblemRecord ListProblem::write_record(const gg_artifact& artifact) const {
  const bool described = takes_descriptors(artifact), scaled = has_scale_strides(artifact);
  const size_t count = groups.size();
  ProblemRecord list{count, end_words(artifact, count), record_word_count(artifact),
                     std::unique_ptr<uint64_t[]>(new uint64_t[list_word_count(artifact, count)])};
  uint64_t end = 0, *ends = list.words.get(), *record = ends + list.end_words;
  const Group* before = nullptr;
  for (const Group& group : groups) {
    *ends++ = end += static_cast<uint64_t>(tile_count(group, artifact));
    if (described && scaled) {
      const ScaleStrides& strides = scale_strides[static_cast<size_t>(group.index)];
      gg::write_record(artifact, before, group, strides, reinterpret_cast<gg_scaled_list_descriptors*>(record));
    } else if (described) {
      gg::write_record(artifact, before, group, reinterpret_cast<gg_list_descriptors*>(record));
    } else if (scaled) {
      const ScaleStrides& strides = scale_strides[static_cast<size_t>(group.index)];
      gg::write_record(group, strides, reinterpret_cast<gg_scaled_list_pointers*>(record));
    } else {
      gg::write_record(group, reinterpret_cast<gg_list_pointers*>(record));
    }
    record += list.record_words;
    before = &group;
  }
  std::fill(ends, list.words.get() + list.end_words, end);
  return list;
}

}  // namespace gg
