/* Calls a generated launcher with a driver that only writes down what it is asked to launch. */
#include <string.h>

#include "abi/artifact.h"

static struct {
  CUlaunchConfig config;
  CUlaunchAttribute attributes[8];
  unsigned char parameters[8192];
  size_t bytes;
  int calls;
} seen;

static CUresult record(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  if (function != (CUfunction)0x1234 || params || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER ||
      extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != CU_LAUNCH_PARAM_END)
    return CUDA_ERROR_INVALID_VALUE;
  seen.config = *config;
  if (config->numAttrs) memcpy(seen.attributes, config->attrs, config->numAttrs * sizeof(CUlaunchAttribute));
  seen.bytes = *(size_t*)extra[3];
  memcpy(seen.parameters, extra[1], seen.bytes);
  seen.calls++;
  return CUDA_SUCCESS;
}

const char* probe_name(int index) { return index < gg_artifact_count ? gg_artifacts[index].name : NULL; }

/* Fills facts[8] with calls, grid x, y, z, block x, shared bytes, attributes, bytes of parameters. */
int probe_launch(int index, const gg_arguments* arguments, unsigned grid, size_t* facts, unsigned char* parameters) {
  memset(&seen, 0, sizeof seen);
  int code = gg_artifacts[index].launch(record, (CUfunction)0x1234, grid, (CUstream)0x5678, arguments);
  size_t found[8] = {(size_t)seen.calls,    seen.config.gridDimX,       seen.config.gridDimY, seen.config.gridDimZ,
                     seen.config.blockDimX, seen.config.sharedMemBytes, seen.config.numAttrs, seen.bytes};
  memcpy(facts, found, sizeof found);
  memcpy(parameters, seen.parameters, seen.bytes);
  return code == CUDA_SUCCESS && seen.config.hStream != (CUstream)0x5678 ? -1 : code;
}
