// The keys by which a problem finds its measured rows; aot/spec/tables.py computes the same, for any sizes
// (tests/cpu/test_table_keys.py).
#pragma once

#include <cstdint>

#include "abi/artifact.h"

namespace gg {

// Of a list: the same whatever the order of its groups.
class ListKey {
 public:
  void add(int64_t m, int64_t n, int64_t k, int64_t count);
  uint64_t value() const;

 private:
  uint64_t sizes_ = 0, groups_ = 0;
};

// Rows a group of a ragged product, in half powers of two. Both counts are above 0.
int64_t load_of(int64_t rows, int64_t groups);

// Of a product with ragged rows, and about so many of them: a row was measured for a layer and a load, not for each
// batch.
uint64_t layer_key(int64_t groups, int64_t n, int64_t k, int64_t load);

// The key of a product that does more than that of `key`: with another epilogue or source of A.
uint64_t signed_key(uint64_t key, gg_epilogue epilogue, gg_source source);

}  // namespace gg
