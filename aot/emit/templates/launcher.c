
typedef struct {
$fields
} $name;
$assertions

CUresult gg_launch_$name(gg_cuLaunchKernelEx launch, CUfunction function, unsigned grid, CUstream stream,
    const gg_arguments *arguments) {
  $name parameters;
$assignments
  size_t bytes = sizeof parameters;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
$attributes
  CUlaunchConfig config = {
      .gridDimX = grid, .gridDimY = 1, .gridDimZ = 1,
      .blockDimX = $threads, .blockDimY = 1, .blockDimZ = 1,
      .sharedMemBytes = $shared_bytes, .hStream = stream,
      .attrs = $attrs, .numAttrs = $attribute_count,
  };
  return launch(&config, function, NULL, extra);
}
