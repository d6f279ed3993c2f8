/* The part of DLPack's ABI (dlpack.h 1.x) that this project reads, declared here so that its header is not needed. */
#ifndef GG_DLPACK_ABI_H
#define GG_DLPACK_ABI_H

#include <stdint.h>

enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };
enum { kDLInt = 0, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6, kDLFloat8_e3m4 = 7, kDLFloat8_e4m3fn = 10 };
enum { kDLReadOnly = 1 }; /* of a versioned capsule's flags */

typedef struct DLDevice {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL for row-major */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLPackVersion {
  uint32_t major, minor;
} DLPackVersion;

/* What a "dltensor" capsule holds; its tensor comes first. */
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor*);
} DLManagedTensor;

/* What a "dltensor_versioned" capsule holds. */
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* What `__dlpack_c_exchange_api__` of a type points to. Functions return 0, or -1 with a Python error set. */
typedef struct DLPackExchangeAPI {
  DLPackVersion version;
  struct DLPackExchangeAPI* prev_api; /* an older major version, or NULL */
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out); /* may be NULL */
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
} DLPackExchangeAPI;

#endif
