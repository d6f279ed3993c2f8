// What a call asks for, whatever its form: all that selection, the cost model and explain() need to know of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "abi/artifact.h"
#include "arrays/dtype.hpp"
#include "forms/guarantees.hpp"
#include "forms/problem_record.hpp"

namespace gg {

// What kind of kernel can serve a problem, and what kind an artifact is.
struct Signature {
  gg_form form;
  gg_extents extents;
  gg_dtype dtype, out_dtype;
  gg_scaling scaling;
  gg_epilogue epilogue;
  gg_source source;

  bool operator==(const Signature& other) const {
    return form == other.form && extents == other.extents && dtype == other.dtype && out_dtype == other.out_dtype &&
           scaling == other.scaling && epilogue == other.epilogue && source == other.source;
  }
};

inline Signature signature_of(const gg_artifact& a) {
  return {a.form, a.extents, a.dtype, a.out_dtype, a.scaling, a.epilogue, a.source};
}

// Whether its records have strides of scales.
inline bool has_scale_strides(const gg_artifact& a) {
  return a.scaling == GG_SCALING_ROW || a.scaling == GG_SCALING_BLOCK;
}

inline bool takes(const gg_artifact& a, gg_source source) {
  return a.source == source || (a.source == GG_SOURCE_EITHER && source != GG_SOURCE_INDEXED_B);
}

// What a launch has to do: exact for a list; by expectation where the device has the sizes.
struct Work {
  double tiles, k_tiles;  // output tiles, and steps of BLOCK_K, of the CTA that has most
  double bytes;           // that pass through memory, of all CTAs; 0 where that is no bound that was measured
};

// All that a choice depends on, besides the device.
using ChoiceKey = std::array<uint64_t, 6>;

// Of a key, for a place in a cache: the high bits of such a product depend on all words.
template <size_t words>
size_t hash_of(const std::array<uint64_t, words>& key) {
  uint64_t mixed = 0;
  for (const uint64_t word : key) mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ull;
  return mixed >> 32;
}

// ceil(size / block). Nearly all blocks are powers of two; this runs some hundred times a call, and division is slow.
inline int64_t tiles_along(int64_t size, int block) {
  const int shift = __builtin_ctz(static_cast<unsigned>(block));
  return block >> shift == 1 ? (size + block - 1) >> shift : (size + block - 1) / block;
}

class Problem {
 public:
  gg_dtype dtype = GG_ANY_DTYPE, out_dtype = GG_ANY_DTYPE;  // of the inputs and of the outputs
  gg_extents extents = GG_HOST;                             // where the sizes of its groups come from
  gg_epilogue epilogue = GG_LINEAR;                         // what becomes of its sums
  gg_source source = GG_SOURCE_ROWS;                        // which rows of A it takes, and of B
  gg_scaling scaling = GG_SCALING_TENSOR;                   // what scales of fp8 inputs are for
  Guarantees guarantees;                                    // what its matrices guarantee

  virtual ~Problem() = default;

  virtual gg_form form() const = 0;
  virtual bool has_outputs() const = 0;

  // The key of the measured rows that it may take; none where no row may serve it.
  virtual std::optional<uint64_t> table_key() const = 0;

  // The key by which each thread keeps its choice for the next call; none where making one costs more than a choice.
  virtual std::optional<ChoiceKey> choice_key() const { return std::nullopt; }

  virtual Work work(const gg_artifact& artifact, double ctas) const = 0;

  // What a kernel of the artifact reads of it, and the sizes among its arguments. Throws CudaError if the driver
  // refuses a descriptor.
  virtual ProblemRecord write_record(const gg_artifact& artifact) const = 0;
  virtual void write_sizes(gg_arguments& arguments) const = 0;

  // At most this many output tiles have elements, whatever the sizes on the device.
  virtual int64_t tile_bound(const gg_artifact& artifact) const = 0;

  // Launches of `capacity` words each that bring it to device memory before the artifact's own, as far as can be told
  // without encoding it.
  virtual size_t expected_upload_count(const gg_artifact&, size_t) const { return 0; }

  // Why an artifact of its signature cannot take it, whatever its matrices guarantee; null where none of that is known.
  virtual const char* ruled_out(const gg_artifact&) const { return nullptr; }

  // Which of its parts the artifact cannot take, as "B[17] has rows of 14 bytes"; empty where it has no parts.
  virtual std::string culprit(const gg_artifact&) const { return {}; }

  // For messages: the function that was called, and what it was given.
  virtual const char* function() const = 0;
  virtual const char* noun() const = 0;

  // For explain(): what a measured row says of it, and what the model's choice rests on.
  virtual const char* row_words() const = 0;
  virtual const char* model_words() const { return "the least predicted time"; }

  Signature signature() const {
    return {form(), extents, dtype, out_dtype, is_fp8(dtype) ? scaling : GG_SCALING_NONE, epilogue, source};
  }

 protected:
  Problem() = default;
  Problem(const Problem&) = default;
  Problem(Problem&&) = default;
  Problem& operator=(const Problem&) = default;
  Problem& operator=(Problem&&) = default;
};

}  // namespace gg
