// A problem as kernels read it: 64-bit words, the same in device memory and in a kernel's parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace gg {

// Cumulative tile counts of a list, which take `end_words`, then a record for each group; of a grouped product one
// record alone. The records are structs of build/aot/abi.h.
struct ProblemRecord {
  size_t groups = 0, end_words = 0, record_words = 0;
  std::unique_ptr<uint64_t[]> words;

  size_t size() const { return end_words + groups * record_words; }
  const uint64_t* ends() const { return words.get(); }
  const uint64_t* record(size_t group) const { return words.get() + end_words + group * record_words; }
};

// Those of a factor that is passed in the place of an integer.
inline int32_t bits_of(float factor) {
  int32_t bits;
  std::memcpy(&bits, &factor, sizeof bits);
  return bits;
}

// Of a form whose kernels read one record, a struct of build/aot/abi.h.
template <typename Record>
ProblemRecord words_of(const Record& record) {
  constexpr size_t count = sizeof record / sizeof(uint64_t);
  ProblemRecord made{1, 0, count, std::unique_ptr<uint64_t[]>(new uint64_t[count])};
  std::memcpy(made.words.get(), &record, sizeof record);
  return made;
}

}  // namespace gg
