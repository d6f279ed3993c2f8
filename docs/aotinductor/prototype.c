/* A prototype: an op in torch's dispatcher from a library that neither links libtorch nor reads its headers.
 *
 * docs/aotinductor.md says what it shows and what is missing. The op multiplies ragged rows in float32 on the CPU:
 *     gg_prototype::ragged_rows(Tensor a, Tensor b, Tensor offs) -> Tensor
 * The declarations below are those of torch's stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h), which keeps
 * them from release to release; the process has libtorch loaded, and dlsym finds them there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void* Tensor;   /* AtenTensorHandle */
typedef void* Library;  /* TorchLibraryHandle */
typedef uint64_t Value; /* StableIValue: a tensor is its handle, a number its bits */
typedef int32_t Error;  /* AOTITorchError: 0 is success */
typedef void (*Kernel)(Value* stack, uint64_t inputs, uint64_t outputs);

static struct {
  Error (*init_fragment)(const char* name_space, const char* file, uint32_t line, Library* made);
  Error (*init_impl)(const char* name_space, const char* key, const char* file, uint32_t line, Library* made);
  Error (*def)(Library, const char* schema);
  Error (*impl)(Library, const char* name, Kernel);
  Error (*data)(Tensor, void** address);
  Error (*sizes)(Tensor, int64_t** borrowed);
  Error (*strides)(Tensor, int64_t** borrowed);
  Error (*empty)(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                 int32_t device, Tensor* made);
  Error (*release)(Tensor);
  int32_t (*float32)(void);
  int32_t (*cpu)(void);
} torch;

/* From libtorch_cpu.so, which is loaded already: RTLD_NOLOAD never loads one. */
static const char* find_torch(void) {
  void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return "libtorch_cpu.so is not loaded in this process";
  const struct {
    void* place;
    const char* name;
  } wanted[] = {
      {&torch.init_fragment, "aoti_torch_library_init_fragment"},
      {&torch.init_impl, "aoti_torch_library_init_impl"},
      {&torch.def, "aoti_torch_library_def"},
      {&torch.impl, "aoti_torch_library_impl"},
      {&torch.data, "aoti_torch_get_data_ptr"},
      {&torch.sizes, "aoti_torch_get_sizes"},
      {&torch.strides, "aoti_torch_get_strides"},
      {&torch.empty, "aoti_torch_empty_strided"},
      {&torch.release, "aoti_torch_delete_tensor_object"},
      {&torch.float32, "aoti_torch_dtype_float32"},
      {&torch.cpu, "aoti_torch_device_type_cpu"},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void* found = dlsym(library, wanted[i].name);
    if (!found) return wanted[i].name; /* a torch that is too old: these are all in 2.8 */
    memcpy(wanted[i].place, &found, sizeof found);
  }
  return NULL;
}

typedef struct {
  char* data;
  int64_t *size, *stride;
} View;

static View view(Tensor tensor) {
  View seen;
  void* data = NULL;
  torch.data(tensor, &data);
  torch.sizes(tensor, &seen.size);
  torch.strides(tensor, &seen.stride);
  seen.data = data;
  return seen;
}

static float at(View v, int64_t i, int64_t j, int64_t k) {
  return ((float*)v.data)[i * v.stride[0] + j * v.stride[1] + (k < 0 ? 0 : k * v.stride[2])];
}

static void multiply(View a, View b, View offs, float* out) {
  const int64_t rows = a.size[0], depth = a.size[1], columns = b.size[2];
  int64_t row = 0;
  for (int64_t group = 0; group < offs.size[0]; group++) {
    const int64_t end = ((int32_t*)offs.data)[group * offs.stride[0]];
    for (; row < end && row < rows; row++) {
      for (int64_t n = 0; n < columns; n++) {
        float sum = 0;
        for (int64_t k = 0; k < depth; k++) sum += at(a, row, k, -1) * at(b, group, k, n);
        out[row * columns + n] = sum;
      }
    }
  }
}

/* The inputs on the stack belong to the kernel, which releases them; the output takes the first place. */
static void ragged_rows(Value* stack, uint64_t inputs, uint64_t outputs) {
  (void)inputs, (void)outputs;
  Tensor a = (Tensor)stack[0], b = (Tensor)stack[1], offs = (Tensor)stack[2], out = NULL;
  const View of_a = view(a), of_b = view(b), of_offs = view(offs);
  const int64_t sizes[2] = {of_a.size[0], of_b.size[2]}, strides[2] = {of_b.size[2], 1};
  torch.empty(2, sizes, strides, torch.float32(), torch.cpu(), 0, &out);
  float* data = (float*)view(out).data;
  memset(data, 0, sizeof(float) * (size_t)(sizes[0] * sizes[1]));
  multiply(of_a, of_b, of_offs, data);
  torch.release(a), torch.release(b), torch.release(offs);
  stack[0] = (Value)out;
}

/* Called once, before a package is loaded; what it made lives as long as the process. NULL, or what went wrong. */
const char* gg_prototype_register(void) {
  static Library schemas, kernels;
  const char* missing = find_torch();
  if (missing) return missing;
  if (torch.init_fragment("gg_prototype", __FILE__, __LINE__, &schemas) ||
      torch.def(schemas, "ragged_rows(Tensor a, Tensor b, Tensor offs) -> Tensor")) {
    return "the schema was refused";
  }
  if (torch.init_impl("gg_prototype", "CPU", __FILE__, __LINE__, &kernels) ||
      torch.impl(kernels, "ragged_rows", ragged_rows)) {
    return "the kernel was refused";
  }
  return NULL;
}
