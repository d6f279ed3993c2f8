// Element types: their sizes, and their names here and in the frameworks.
#pragma once

#include <pybind11/pybind11.h>

#include "abi/artifact.h"

namespace gg {

inline int element_bytes(gg_dtype dtype) { return gg_dtypes[dtype].bytes; }

// Of inputs that may have scales.
inline bool is_fp8(gg_dtype dtype) { return dtype == GG_E4M3 || dtype == GG_E5M2; }

// "fp16", as variants are named; "any" for GG_ANY_DTYPE.
const char* short_name(gg_dtype dtype);

// "float16", as frameworks call it.
const char* full_name(gg_dtype dtype);

// GG_ANY_DTYPE for a name that is none of full_name's.
gg_dtype dtype_named(const char* name);

// What a caller passed as out_dtype: a framework's dtype, a scalar type or a name; GG_ANY_DTYPE for None. Throws
// ValueError for a type that no kernel writes.
gg_dtype requested_dtype(pybind11::handle dtype, const char* function);

// The dtype of the outputs: the requested one, else that of the outputs given, else the inputs', or bfloat16 for fp8.
// Throws ValueError for a request that no kernel of these inputs meets.
gg_dtype output_dtype(gg_dtype inputs, gg_dtype requested, gg_dtype given, const char* function);

}  // namespace gg
