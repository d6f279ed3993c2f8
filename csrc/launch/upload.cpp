#include "launch/upload.hpp"

#include <algorithm>
#include <iterator>
#include <memory>

#include "driver/gil.hpp"
#include "driver/module.hpp"
#include "select/catalog.hpp"

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

}  // namespace

ProblemRecord record_on(const Device& device, const Problem& problem, const gg_artifact& artifact) {
  if (!takes_descriptors(artifact)) return problem.write_record(artifact);
  const CurrentContext current(device);
  return problem.write_record(artifact);
}

// A launch with fewer groups never needs more words, so that taking all that fit gives the fewest launches.
std::vector<Upload> plan_uploads(const ProblemRecord& list, size_t capacity) {
  std::vector<Upload> planned;
  for (size_t group = 0; group < list.groups;) {
    Upload next{group, 1, 0};
    Differences differences(list.record(group));
    for (group++; group < list.groups; group++) {
      // Ends rise from group to group, so no two are equal: bit 0. The last word of a record of 64 is a filler.
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
    if (upload.differs >> w >> 1 & 1) own[own_count++] = w;
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
  if (fits_parameters(artifact, problem.groups.size())) return 0;
  return plan_uploads(record_on(device, problem, artifact), upload_capacity(device)).size();
}

}  // namespace gg
