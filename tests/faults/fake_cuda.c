/* A libcuda.so.1 that runs nothing: it records what it is asked as JSON lines and fails where the environment says so.

   FAKE_CUDA_LOG        file that the lines go to; images are written beside it as LOG.image.N; without it, nothing is
   FAKE_CUDA_DEVICES    how many devices there are (2)
   FAKE_CUDA_SM         compute capability of all (90), or one for each device: "90,80"
   FAKE_CUDA_SMS        multiprocessors (132)
   FAKE_CUDA_SHARED     shared memory that a block may opt in to (232448)
   FAKE_CUDA_NAME       name of all (Fake GPU and the number of the device)
   FAKE_CUDA_CLOCK_KHZ, FAKE_CUDA_MEMORY_CLOCK_KHZ, FAKE_CUDA_BUS_BITS  as the attributes; not answered if not set
   FAKE_CUDA_DRIVER     what cuDriverGetVersion answers (12080)
   FAKE_CUDA_FAIL       "function:code:times", more after commas: the next `times` calls return `code`
   FAKE_CUDA_SLEEP_MS   how long a load takes
   FAKE_CUDA_EVENT      what cuEventQuery answers of an event that was recorded: "ready" (so by default) or "pending"
   FAKE_CUDA_SLOW       "function:milliseconds", more after commas: how long these calls take
   FAKE_CUDA_FAIL_NTH   "number:code": this call, counted from 1 over nearly all functions, returns `code`
   FAKE_CUDA_PARAMETERS file of lines "symbol offset size", in order: what cuKernelGetParamInfo answers;
                        of a symbol that is not in it, what the cubin says; "ptx:symbol" is for PTX alone

   -DWITHOUT_PARAM_INFO leaves cuKernelGetParamInfo out, as drivers before 12.4 do. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../csrc/abi/cuda_abi.h"
#ifndef WITHOUT_PARAM_INFO
#include "cubin_parameters.h"
#endif
#include "recording.h"

enum { max_devices = 8, max_symbol = 64, max_parameters = 4096, max_parameter_bytes = 32 * 1024 };

struct CUctx_st {
  int device;
};
struct CUlib_st {
  int image;
  unsigned char* cubin; /* a copy, or NULL */
};
struct CUkern_st {
  CUlibrary library;
  char symbol[max_symbol];
};
struct CUfunc_st {
  CUkernel kernel;
  int device;
};

enum { device_bit = 44 }; /* of addresses: tests/arrays.py puts the device there */

static struct CUctx_st contexts[max_devices] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static struct CUctx_st foreign_contexts[max_devices] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static _Thread_local CUcontext current;
static _Thread_local int capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static int device_count(void) { return setting("FAKE_CUDA_DEVICES", 2); }

CUresult cuInit(unsigned flags) {
  static pthread_once_t registered = PTHREAD_ONCE_INIT;
  FAULT_POINT();
  pthread_once(&registered, shut_down_at_exit);
  record("{\"call\": \"cuInit\", \"flags\": %u}", flags);
  return device_count() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int* version) {
  FAULT_POINT();
  *version = setting("FAKE_CUDA_DRIVER", 12080);
  return CUDA_SUCCESS;
}

#include "fake_streams.h"

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "unsupported PTX version"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when capturing"},
};

static CUresult describe(CUresult code, const char** text, int name) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return *text = name ? errors[i].name : errors[i].text, CUDA_SUCCESS;
  *text = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char** text) { return describe(code, text, 1); }
CUresult cuGetErrorString(CUresult code, const char** text) { return describe(code, text, 0); }

CUresult cuDeviceGetCount(int* count) {
  FAULT_POINT();
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAULT_POINT();
  if (ordinal < 0 || ordinal >= device_count()) return 101; /* CUDA_ERROR_INVALID_DEVICE */
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  FAULT_POINT();
  const char* text = getenv("FAKE_CUDA_NAME");
  if (text) snprintf(name, bytes, "%s", text);
  else snprintf(name, bytes, "Fake GPU %d", device);
  return CUDA_SUCCESS;
}

static CUresult answer_if_set(int* value, const char* name, CUdevice device) {
  if (!getenv(name)) return CUDA_ERROR_INVALID_VALUE;
  *value = device_setting(name, device, 0);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  FAULT_POINT();
  const int sm = device_setting("FAKE_CUDA_SM", device, 90);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = sm / 10;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = sm % 10;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = device_setting("FAKE_CUDA_SMS", device, 132);
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = device_setting("FAKE_CUDA_SHARED", device, 232448);
      break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return answer_if_set(value, "FAKE_CUDA_CLOCK_KHZ", device);
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return answer_if_set(value, "FAKE_CUDA_MEMORY_CLOCK_KHZ", device);
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return answer_if_set(value, "FAKE_CUDA_BUS_BITS", device);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAULT_POINT();
  record("{\"call\": \"cuDevicePrimaryCtxRetain\", \"device\": %d}", device);
  *context = &contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  FAULT_POINT();
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return CUDA_ERROR_INVALID_VALUE;
  *(int*)value = (int)(address >> device_bit);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  FAULT_POINT();
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAULT_POINT();
  record("{\"call\": \"cuCtxSetCurrent\", \"device\": %d}", context ? context->device : -1);
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  FAULT_POINT();
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* Refuses what the driver refuses, a thread without a context too, and what no kernel here is for: another swizzle,
   interleaving, steps, filling. The descriptor holds its own ingredients, as tests/faults/parameters.py reads them. */
CUresult cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* sizes,
                                const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                                int interleave, int swizzle, int promotion, int fill) {
  FAULT_POINT();
  (void)promotion;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  const uint32_t bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  uint64_t words[16] = {(uintptr_t)address, sizes[0], sizes[1], strides[0], box[0], box[1], type, rank};
  for (uint32_t d = 2; d < rank && d < 5; d++) {
    words[6 + d] = sizes[d], words[9 + d] = strides[d - 1], words[14] |= (uint64_t)box[d] << 16 * (d - 2);
  }
  int usual = interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
              fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && bytes * box[0] <= 128;
  int legal = rank - 1 < 5 && (uintptr_t)map % 64 == 0 && words[0] % 16 == 0;
  for (uint32_t d = 0; d < rank; d++) {
    usual &= element_strides[d] == 1;
    legal &= sizes[d] - 1 < UINT64_C(1) << 32 && box[d] - 1 < 256;
    legal &= d + 1 == rank || (strides[d] % 16 == 0 && strides[d] - 1 < UINT64_C(1) << 40);
  }
  if (!usual || !legal) return CUDA_ERROR_INVALID_VALUE;
  memcpy(map, words, sizeof words);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(void* map, void* address) {
  FAULT_POINT();
  const uint64_t word = (uintptr_t)address;
  if ((uintptr_t)map % 64 || word % 16) return CUDA_ERROR_INVALID_VALUE;
  memcpy(map, &word, sizeof word);
  return CUDA_SUCCESS;
}

/* How long an image is: PTX with the zero that ends it, an ELF file to the last thing that its headers point to. */
static size_t image_bytes(const unsigned char* image) {
  if (memcmp(image, "\177ELF", 4)) return strlen((const char*)image) + 1;
  uint64_t program_offset, section_offset;
  uint16_t program_size, program_count, section_size, section_count;
  memcpy(&program_offset, image + 32, 8), memcpy(&section_offset, image + 40, 8);
  memcpy(&program_size, image + 54, 2), memcpy(&program_count, image + 56, 2);
  memcpy(&section_size, image + 58, 2), memcpy(&section_count, image + 60, 2);
  uint64_t end = section_offset + (uint64_t)section_size * section_count;
  const uint64_t programs = program_offset + (uint64_t)program_size * program_count;
  return programs > end ? programs : end;
}

static void keep_image(int number, const void* image, size_t bytes) {
  char path[4096];
  if (!log_path()) return;
  snprintf(path, sizeof path, "%s.image.%d", log_path(), number);
  FILE* file = fopen(path, "wb");
  if (!file) return;
  fwrite(image, 1, bytes, file);
  fclose(file);
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, int* jit, void** jit_values, unsigned jit_count,
                           int* options, void** option_values, unsigned option_count) {
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)option_values, (void)option_count;
  static int loads;
  const int milliseconds = setting("FAKE_CUDA_SLEEP_MS", 0);
  const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  nanosleep(&pause, NULL);
  FAULT_POINT();
  const int number = __atomic_fetch_add(&loads, 1, __ATOMIC_SEQ_CST);
  const size_t bytes = image_bytes(image);
  const int ptx = memcmp(image, "\177ELF", 4) != 0;
  keep_image(number, image, bytes);
  record("{\"call\": \"cuLibraryLoadData\", \"image\": %d, \"kind\": \"%s\", \"bytes\": %zu, \"relaxed\": %s}", number,
         ptx ? "ptx" : "cubin", bytes, capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "true" : "false");
  *library = calloc(1, sizeof **library);
  (*library)->image = number;
  if (!ptx && ((*library)->cubin = malloc(bytes))) memcpy((*library)->cubin, image, bytes);
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  FAULT_POINT();
  record("{\"call\": \"cuLibraryUnload\", \"image\": %d}", library->image);
  free(library->cubin);
  library->cubin = NULL;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* symbol) {
  FAULT_POINT();
  *kernel = calloc(1, sizeof **kernel);
  (*kernel)->library = library;
  strncpy((*kernel)->symbol, symbol, max_symbol - 1);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  FAULT_POINT();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *function = malloc(sizeof **function);
  (*function)->kernel = kernel;
  (*function)->device = current->device;
  return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  FAULT_POINT();
  record("{\"call\": \"cuKernelSetAttribute\", \"image\": %d, \"attribute\": %d, \"value\": %d, \"device\": %d}",
         kernel->library->image, attribute, value, device);
  return CUDA_SUCCESS;
}

#ifndef WITHOUT_PARAM_INFO
static struct {
  char symbol[max_symbol];
  size_t offset, size;
} parameters[max_parameters];
static int parameter_count;
static pthread_once_t parameters_read = PTHREAD_ONCE_INIT;

static void read_parameters(void) {
  const char* path = getenv("FAKE_CUDA_PARAMETERS");
  FILE* file = path ? fopen(path, "r") : NULL;
  if (!file) return;
  while (parameter_count < max_parameters &&
         fscanf(file, "%63s %zu %zu", parameters[parameter_count].symbol, &parameters[parameter_count].offset,
                &parameters[parameter_count].size) == 3)
    parameter_count++;
  fclose(file);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  FAULT_POINT();
  pthread_once(&parameters_read, read_parameters);
  int is_listed = 0;
  size_t left = index;
  for (int i = 0; i < parameter_count; i++) {
    const char* symbol = parameters[i].symbol;
    const int of_ptx = strncmp(symbol, "ptx:", 4) == 0;
    if ((of_ptx && kernel->library->cubin) || strcmp(symbol + (of_ptx ? 4 : 0), kernel->symbol)) continue;
    is_listed = 1;
    if (left-- > 0) continue;
    *offset = parameters[i].offset, *size = parameters[i].size;
    return CUDA_SUCCESS;
  }
  const unsigned char* cubin = is_listed ? NULL : kernel->library->cubin;
  return cubin && cubin_parameter(cubin, kernel->symbol, index, offset, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#endif

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared) {
  FAULT_POINT();
  (void)function, (void)threads, (void)shared;
  *blocks = 2;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  FAULT_POINT();
  record("{\"call\": \"cuStreamSynchronize\", \"stream\": %zu}", (size_t)stream);
  return refused_in_capture(stream);
}

/* Of the launches from now on this one fails, counted from 1. */
static int failing_launch;
void fake_fail_launch(int number) { failing_launch = number; }

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  static const char digits[] = "0123456789abcdef";
  static _Thread_local char hex[2 * max_parameter_bytes + 1];
  const unsigned char* buffer = NULL;
  size_t bytes = 0;
  FAULT_POINT();
  if (failing_launch > 0 && --failing_launch == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(const size_t*)extra[1];
  }
  if (params || !buffer || bytes > max_parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < bytes; i++) hex[2 * i] = digits[buffer[i] >> 4], hex[2 * i + 1] = digits[buffer[i] & 15];
  hex[2 * bytes] = 0;
  const CUlaunchConfig* c = config;
  record(
      "{\"call\": \"cuLaunchKernelEx\", \"symbol\": \"%s\", \"image\": %d, \"grid\": [%u, %u, %u], "
      "\"block\": [%u, %u, %u], \"shared\": %u, \"stream\": %zu, \"attributes\": %u, \"overlaps\": %d, \"context\": "
      "%d, "
      "\"function_device\": %d, \"parameters\": \"%s\"}",
      function->kernel->symbol, function->kernel->library->image, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
      c->blockDimY, c->blockDimZ, c->sharedMemBytes, (size_t)c->hStream, c->numAttrs,
      c->numAttrs ? c->attrs->value.programmaticStreamSerializationAllowed : 0, current ? current->device : -1,
      function->device, hex);
  return CUDA_SUCCESS;
}
