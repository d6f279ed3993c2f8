#include "upload.hpp"

#include <algorithm>
#include <iterator>
#include <memory>

#include "catalog.hpp"
#include "gil.hpp"
#include "image.hpp"

namespace gg {
namespace {

// The record words that have differed so far, as bits. `same_` has no bit of these and all bits of the others, so that
// a block of words is compared at once but for those that are known.
class Differences {
 public:
  explicit Differences(const uint64_t* first) : first_(first) {
    std::fill(std::begin(same_), std::end(same_), ~uint64_t{0});
  }

  // With one more record.
  uint64_t add(const uint64_t* record, size_t words) {
    for (size_t start = 0; start < words; start += block) {
      const size_t end = std::min(start + block, words);
      if (end - start == block && block_agrees(record + start, start)) continue;
      for (size_t w = start; w < end; w++) {
        if (first_[w] == record[w]) continue;
        found_ |= uint64_t{1} << w;
        same_[w] = 0;
      }
    }
    return found_;
  }

 private:
  static constexpr size_t block = 8;

  bool block_agrees(const uint64_t* record, size_t start) const {
    const auto differs = [&](size_t w) { return (first_[start + w] ^ record[w]) & same_[start + w]; };
    return (differs(0) | differs(1) | differs(2) | differs(3) | differs(4) | differs(5) | differs(6) | differs(7)) == 0;
  }

  const uint64_t* first_;
  uint64_t same_[64], found_ = 0;
};

size_t count_bits(uint64_t bits) { return static_cast<size_t>(__builtin_popcountll(bits)); }

// Words of a launch: those that all groups share, and each group's own.
size_t word_count(const Upload& upload, size_t group_words) {
  const size_t own = count_bits(upload.differs);
  return group_words - own + upload.groups * own;
}

size_t upload_capacity(const Device& device) { return static_cast<size_t>(pack_artifact(device).word_capacity); }

bool fits_parameters(const ListProblem& problem, const gg_artifact& artifact) {
  return list_word_count(artifact, problem.groups.size()) <= static_cast<size_t>(artifact.word_capacity);
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
  const size_t plain = 4 + count(d.m, d.n, d.k, d.scale_a, d.scale_b);
  if (!described) return plain + count(d.a_row, d.a_col, d.b_row, d.b_col, d.c_row, d.c_col);
  const size_t sizes = count(d.m | d.k, d.k | d.n, d.m | d.n);
  return plain + sizes + count(d.a_row | d.a_col, d.b_row | d.b_col, d.c_row | d.c_col);
}

}  // namespace

// A launch with fewer groups never needs more words, so that taking all that fit gives the fewest launches.
std::vector<Upload> plan_uploads(const ProblemRecord& list, size_t capacity) {
  std::vector<Upload> planned;
  for (size_t group = 0; group < list.groups;) {
    Upload next{group, 1, 0};
    Differences differences(list.record(group));
    for (group++; group < list.groups; group++) {
      // Ends rise from group to group, so no two are equal: bit 0.
      const uint64_t differs = differences.add(list.record(group), list.record_words) << 1 | 1;
      const Upload longer{next.first, next.groups + 1, differs};
      if (word_count(longer, list.record_words + 1) > capacity) break;
      next = longer;
    }
    planned.push_back(next);
  }
  return planned;
}

size_t write_upload(const ProblemRecord& list, const Upload& upload, uint64_t* words) {
  const uint64_t *const start = words, *const first = list.record(upload.first);
  const bool ends_differ = upload.differs & 1;
  if (!ends_differ) *words++ = list.ends()[upload.first];
  size_t own[64], own_count = 0;
  for (size_t w = 0; w < list.record_words; w++) {
    if (upload.differs >> (w + 1) & 1) own[own_count++] = w;
    else *words++ = first[w];
  }
  for (size_t group = upload.first; group < upload.first + upload.groups; group++) {
    const uint64_t* record = list.record(group);
    if (ends_differ) *words++ = list.ends()[group];
    for (size_t i = 0; i < own_count; i++) *words++ = record[own[i]];
  }
  return static_cast<size_t>(words - start);
}

void upload(const ProblemRecord& list, CUdeviceptr destination, const Device& device, CUstream stream) {
  const gg_artifact& artifact = pack_artifact(device);
  const LoadedKernel& kernel = load(artifact, device);
  const size_t capacity = upload_capacity(device);
  const CurrentContext current(device);
  const WithoutGil unlocked;
  const CUdeviceptr records = destination + list.end_words * sizeof(uint64_t);
  const std::unique_ptr<uint64_t[]> words(new uint64_t[capacity]);
  for (const Upload& one : plan_uploads(list, capacity)) {
    gg_arguments arguments{};
    arguments.list_words = words.get();
    arguments.list_word_count = static_cast<uint32_t>(write_upload(list, one, words.get()));
    arguments.ends = destination + one.first * sizeof(uint64_t);
    arguments.records = records + one.first * list.record_words * sizeof(uint64_t);
    arguments.differs = one.differs;
    arguments.groups = static_cast<int32_t>(one.groups);
    arguments.record_words = static_cast<int32_t>(list.record_words);
    const int64_t moved = static_cast<int64_t>(one.groups * (list.record_words + 1));
    launch(artifact, kernel, device, static_cast<unsigned>(ceil_div(moved, artifact.block_m)), stream, arguments);
  }
}

size_t upload_count(const ListProblem& problem, const gg_artifact& artifact, const Device& device) {
  if (fits_parameters(problem, artifact)) return 0;
  return plan_uploads(problem.write_record(artifact), upload_capacity(device)).size();
}

// By sizes and strides alone, whatever the addresses and the order of the groups, and without the driver: what a choice
// may depend on. Descriptors are taken to hold an address, two sizes in one word, and a stride.
size_t ListProblem::expected_upload_count(const gg_artifact& artifact, const Device& device) const {
  if (fits_parameters(*this, artifact)) return 0;
  const size_t own = expected_own_words(*this, takes_descriptors(artifact));
  const size_t shared = record_word_count(artifact) + 1 - own;
  const auto words = static_cast<int64_t>(groups.size() * own);
  return static_cast<size_t>(ceil_div(words, static_cast<int64_t>(upload_capacity(device) - shared)));
}

}  // namespace gg
