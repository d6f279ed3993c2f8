/* What the builder hands to the run time: one gg_artifact for each compiled variant, and a launcher that knows its ABI.
   The generated sources under build/aot define what is declared here. C, because the generated code is C. */
#ifndef GG_ARTIFACT_H
#define GG_ARTIFACT_H

#include "abi.h" /* generated: what is shared with Python */
#include "abi/cuda_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef CUresult (*gg_launcher)(gg_cuLaunchKernelEx launch, CUfunction function, unsigned grid, CUstream stream,
                                const gg_arguments* arguments);

typedef struct gg_parameter {
  uint32_t offset, size;
} gg_parameter;

typedef struct gg_image {
  const unsigned char* data; /* cubin, or PTX that ends in a zero byte */
  uint32_t bytes;
  const char* sha256; /* 64 hexadecimal digits */
} gg_image;

typedef struct gg_artifact {
  const char* name;   /* basic_sm90_fp16_nn_a16_128x128x64_s3w8 */
  const char* symbol; /* the entry in the image */
  const char* kernel; /* basic */
  gg_form form;
  gg_extents extents;
  gg_addressing addressing;
  gg_epilogue epilogue;
  gg_source source;
  gg_scaling scaling;
  gg_dtype dtype;     /* of A, and but for gg_dtypes[dtype].of_b of B */
  gg_dtype out_dtype; /* of C: that of A and B unless they are fp8 */
  gg_layout layout;
  int32_t sm;             /* 80: this and later minor versions of the same major; 90 and up: this one alone */
  int32_t minimum_driver; /* as cuDriverGetVersion counts: 12000 */
  int32_t alignment; /* bytes guaranteed of pointers, leading strides and contiguous extents: 16, or the element's */
  int32_t block_m, block_n, block_k, stages, raster;
  int32_t row_step;     /* 0: row tiles have block_m rows; else they fit their group, a multiple of these */
  int32_t listed_tiles; /* that a CTA has at most; 0: as many as there are */
  /* Consumer groups of a CTA; how many of them share a tile, each some of its rows; parts that they write theirs in. */
  int32_t consumers, split, slices;
  int32_t cluster; /* CTAs that the kernel says form a cluster; grids are multiples of it */
  int32_t threads, shared_bytes, scratch_bytes, scratch_alignment, registers, spill_bytes;
  int32_t word_capacity;             /* how many list words it takes by value */
  float launch_us, tile_us, step_us; /* cost model: kernel, output tile, BLOCK_K step; 0 where never measured */
  float stream_gb_s; /* ragged: rate at which it streams weights when memory bounds it; 0 where never measured */
  /* Index into gg_gpus: the GPU that these figures are of, the reference of the architecture, also where it has none of
     this artifact; -1 where the architecture was measured on no GPU. gg_costs has the figures on other GPUs. */
  int32_t gpu;
  gg_image cubin;
  gg_image ptx; /* bytes = 0 where there is none */
  const gg_parameter* parameters;
  int32_t parameter_count;
  gg_launcher launch;
} gg_artifact;

extern const gg_artifact gg_artifacts[]; /* sorted by name */
extern const int32_t gg_artifact_count;

/* A GPU that tables were measured on; clock and memory rate as its driver tells them, 0 where it does not. */
typedef struct gg_gpu {
  const char* name; /* as its driver tells it */
  int32_t sm, multiprocessors;
  double clock_mhz; /* of the multiprocessors, at most */
  double memory_gb_s;
  double tensor_tflop_s; /* in 16-bit products, without sparsity; of all multiprocessors together; 0: not known */
} gg_gpu;

extern const gg_gpu gg_gpus[]; /* sorted by name */
extern const int32_t gg_gpu_count;

/* The cost model's figures of an artifact on a GPU that is not its reference; fields as those of gg_artifact. */
typedef struct gg_cost {
  int32_t gpu, artifact; /* indices into gg_gpus and gg_artifacts */
  float launch_us, tile_us, step_us, stream_gb_s;
} gg_cost;

extern const gg_cost gg_costs[]; /* sorted by (gpu, artifact) */
extern const int32_t gg_cost_count;

/* What datasheets say of the tensor cores of a GPU, measured or not; fields as those of gg_gpu. */
typedef struct gg_tensor_rate {
  const char* name; /* words that its driver's name has */
  int32_t multiprocessors;
  double tensor_tflop_s;
} gg_tensor_rate;

extern const gg_tensor_rate gg_tensor_rates[];
extern const int32_t gg_tensor_rate_count;

/* What was measured, a list or a layer: which artifact won. Sorted by (gpu, dtype, layout, shape). */
typedef struct gg_tuned_row {
  int32_t gpu; /* index into gg_gpus: the only one that the row is for */
  gg_dtype dtype;
  gg_layout layout;
  uint64_t shape;   /* the ListKey or layer_key of forms/table_key.hpp */
  int32_t artifact; /* index into gg_artifacts */
  int32_t lent;     /* 1: what was measured is the plain product on a kernel with the tile of this one */
} gg_tuned_row;

extern const gg_tuned_row gg_tuned_rows[];
extern const int32_t gg_tuned_row_count;

extern const char gg_build_id[]; /* sha256 of the manifest */

#ifdef __cplusplus
}
#endif
#endif
