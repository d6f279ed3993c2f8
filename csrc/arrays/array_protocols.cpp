#include "arrays/array_protocols.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>

#include "arrays/dtype.hpp"
#include "driver/driver.hpp"
#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr int legacy_default_stream = 1;  // as `__dlpack__` and `__cuda_array_interface__` count

std::string described(py::handle array, const char* what, int index) {
  return array_name(what, index) + ", of type " + Py_TYPE(array.ptr())->tp_name + ",";
}

// Throws if the tensor has elements but no address: a meta, fake or lazy one.
void need_memory(const Tensor& tensor, py::handle array, const char* what, int index) {
  const bool may_be_empty = tensor.rank > 3;  // its last sizes are not known here, and every call refuses it
  if (tensor.data != 0 || may_be_empty || is_empty(tensor)) return;
  throw TypeError(
      described(array, what, index) +
      " has elements but no memory, as meta and fake tensors have none, nor tensors that wrap another; pass "
      "a tensor with memory: .to_local() of a DTensor, .wait() of the result of a collective");
}

bool is_true(py::handle array, const char* attribute) {
  return py::getattr(array, attribute, py::none()).ptr() == Py_True;
}

// What to do about an array whose reader raised the error.
const char* advice_on(const py::error_already_set& error, py::handle array, const Framework& framework) {
  if (is_true(array, "is_meta")) return "; it has a shape and no values: pass a tensor of the CPU or of a GPU";
  if (framework.transforms_functions()) {
    return "; torch.func's transforms (vmap and others) do not go through it: call it outside of them";
  }
  if (framework.immutable() && !py::hasattr(array, "__dlpack_device__")) {
    return "; inside of jax.jit, jax.grad and jax.vmap arrays have no memory: call it outside of them";
  }
  if (error.matches(PyExc_BufferError)) return "; memory is used where it lies: pass a copy that can be exported";
  return "";
}

// Runs a reader and puts into its errors which array they are about. Of a framework's own message the first line is
// kept: torch appends its C++ stack.
template <typename Read>
Tensor reading(py::handle array, const char* what, int index, const Read& read) {
  const auto refused = [&](const std::string& why, const char* advice = "") {
    return TypeError(described(array, what, index) + " cannot be read: " + why.substr(0, why.find('\n')) + advice);
  };
  try {
    const Tensor tensor = read();  // returned in place: this runs for each array of each call
    need_memory(tensor, array, what, index);
    return tensor;
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // an interrupt or an exit is not about the array
    throw refused(
        py::str(error.type().attr("__name__")).cast<std::string>() + ": " + py::str(error.value()).cast<std::string>(),
        advice_on(error, array, framework_of(array, what, index)));
  } catch (const py::buffer_error& error) {
    throw refused(error.what());
  } catch (const py::cast_error&) {
    throw refused(
        "its interface gives a value of a wrong type, a negative size, a mask, or strides that are too few or "
        "no multiples of an element");
  }
}

bool is_cuda(int dlpack_type) { return dlpack_type == kDLCUDA || dlpack_type == kDLCUDAManaged; }

void set_device(Tensor& tensor, int dlpack_type, int ordinal) {
  const bool cpu = dlpack_type == kDLCPU || dlpack_type == kDLCUDAHost;
  tensor.device_type = is_cuda(dlpack_type) ? DeviceType::cuda : cpu ? DeviceType::cpu : DeviceType::other;
  tensor.device = cpu ? 0 : ordinal;
}

void set_dlpack_dtype(Tensor& tensor, DLDataType dtype) {
  if (dtype.code == kDLBool) return set_dtype(tensor, "bool");
  static constexpr const char* float8[] = {"e3m4",     "e4m3", "e4m3b11",  "e4m3fn",
                                           "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"};
  const int kind = dtype.code - static_cast<int>(kDLFloat8_e3m4);
  if (kind >= 0 && kind < static_cast<int>(std::size(float8)) && dtype.bits == 8 && dtype.lanes == 1) {
    return set_dtype(tensor, (std::string("float8_") + float8[kind]).c_str());
  }
  static constexpr const char* families[] = {"int", "uint", "float", "handle", "bfloat", "complex"};
  const char* family = dtype.code < std::size(families) ? families[dtype.code] : "float";  // the last: 6 bits and fewer
  char name[sizeof tensor.dtype_name];
  std::snprintf(name, sizeof name, "%s%u%s", family, dtype.bits + 0u, dtype.lanes == 1 ? "" : "xN");
  set_dtype(tensor, name);
}

// A dtype that calls take, and its name as a Tensor has it.
struct UsualDtype {
  uint32_t packed;  // as DLPack has it
  gg_dtype dtype;
  char name[sizeof Tensor::dtype_name];

  UsualDtype(int code, int bytes, gg_dtype taken, const char* text)
      : packed(pack(static_cast<uint32_t>(code), static_cast<uint32_t>(8 * bytes), 1)),
        dtype(taken) {
    std::strncpy(name, text, sizeof name);
  }
  static uint32_t pack(uint32_t code, uint32_t bits, uint32_t lanes) { return lanes << 16 | bits << 8 | code; }
};

const std::vector<UsualDtype>& usual_dtypes() {
  static const std::vector<UsualDtype> known = [] {
    std::vector<UsualDtype> made;
    made.reserve(GG_DTYPE_COUNT + 2);
    for (int i = 0; i < GG_DTYPE_COUNT; i++) {
      made.emplace_back(gg_dtypes[i].dlpack_code, gg_dtypes[i].bytes, static_cast<gg_dtype>(i), gg_dtypes[i].framework);
    }
    made.emplace_back(kDLInt, 4, GG_ANY_DTYPE, "int32");
    made.emplace_back(kDLInt, 8, GG_ANY_DTYPE, "int64");
    made.emplace_back(kDLUInt, 1, GG_ANY_DTYPE, "uint8");
    return made;
  }();
  return known;
}

// These are set without formatting: this runs for each array of each call.
void set_usual_dtype(Tensor& tensor, DLDataType dtype) {
  const uint32_t packed = UsualDtype::pack(dtype.code, dtype.bits, dtype.lanes);
  for (const UsualDtype& usual : usual_dtypes()) {
    if (usual.packed != packed) continue;
    tensor.dtype = usual.dtype;
    std::memcpy(tensor.dtype_name, usual.name, sizeof usual.name);
    return;
  }
  set_dlpack_dtype(tensor, dtype);
}

Tensor tensor_of(const DLTensor& array) {
  Tensor tensor;
  tensor.data = reinterpret_cast<uintptr_t>(array.data) + array.byte_offset;
  set_device(tensor, array.device.device_type, array.device.device_id);
  set_extents(tensor, array.ndim, array.shape, array.strides);
  set_usual_dtype(tensor, array.dtype);
  return tensor;
}

// What a capsule without a version cannot say.
bool is_read_only(const DLManagedTensor&) { return false; }
bool is_read_only(const DLManagedTensorVersioned& managed) { return managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY; }
bool is_copied(const DLManagedTensor&) { return false; }
bool is_copied(const DLManagedTensorVersioned& managed) { return managed.flags & DLPACK_FLAG_BITMASK_IS_COPIED; }
bool is_understood(const DLManagedTensor&) { return true; }
bool is_understood(const DLManagedTensorVersioned& managed) { return managed.version.major == DLPACK_MAJOR_VERSION; }

// Reads a capsule and gives what it holds back to its producer: the array itself keeps the memory.
template <typename Managed>
Tensor consume(py::handle capsule, const char* name, const char* used_name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed || PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw py::error_already_set();
  const bool understood = is_understood(*managed), copied = understood && is_copied(*managed);
  Tensor tensor{};
  if (understood) {
    tensor = tensor_of(managed->dl_tensor);
    tensor.read_only = is_read_only(*managed);
  }
  if (managed->deleter) managed->deleter(managed);
  if (!understood) throw py::buffer_error("its capsule is of another major version of DLPack than 1");
  if (copied) throw py::buffer_error("its capsule holds a copy, which is gone with it");
  return tensor;
}

// Asked without a copy, as an output is to be written where it lies; and with a version, which tells what may not be
// written. DLPack 0 has neither argument, and `copy` came after `max_version`: what an array does not know is left out.
py::object exported(const py::object& dlpack, bool on_cuda) {
  py::dict options;
  if (on_cuda) options["stream"] = legacy_default_stream;
  const py::tuple version = py::make_tuple(1, 0);
  const auto unknown_argument = [](const py::error_already_set& error) { return error.matches(PyExc_TypeError); };
  try {
    return dlpack(**options, py::arg("max_version") = version, py::arg("copy") = false);
  } catch (const py::error_already_set& error) {
    if (!unknown_argument(error)) throw;
  }
  try {
    return dlpack(**options, py::arg("max_version") = version);
  } catch (const py::error_already_set& error) {
    if (!unknown_argument(error)) throw;
  }
  return dlpack(**options);
}

// The interface does not say on which device the memory is.
int device_of(py::handle array, uint64_t address) {
  if (py::hasattr(array, "__dlpack_device__")) {
    return array.attr("__dlpack_device__")().cast<std::pair<int, int>>().second;
  }
  int ordinal = 0;
  if (address == 0) return ordinal;
  const Driver& cuda = driver();
  if (!cuda.cuPointerGetAttribute) {
    throw UnsupportedError(
        "an array has __cuda_array_interface__ without __dlpack_device__, and this NVIDIA driver "
        "cannot tell on which GPU it is; pass an array with __dlpack__, or update the driver");
  }
  cuda.check(cuda.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
             "cuPointerGetAttribute", "finding the device of an array");
  return ordinal;
}

// The interface has no code for bfloat16 and float8: the dtype's own name tells.
void set_interface_dtype(Tensor& tensor, py::handle array, const std::string& typestr) {
  if (typestr == "<f2") return set_dtype(tensor, "float16");
  if (typestr == "<f4") return set_dtype(tensor, "float32");
  if (typestr == "<i4") return set_dtype(tensor, "int32");
  if (typestr == "<i8") return set_dtype(tensor, "int64");
  if (typestr == "|u1" && !py::hasattr(array, "dtype")) return set_dtype(tensor, "uint8");  // a buffer of bytes
  const py::object dtype = py::getattr(array, "dtype", py::str(typestr));
  set_dtype(tensor, py::str(dtype).cast<std::string>().c_str());
}

Tensor tensor_of_interface(py::handle array, const py::dict& interface) {
  Tensor tensor;
  const py::object type = interface["typestr"], steps = interface.attr("get")("strides");
  const std::string typestr = py::isinstance<py::str>(type) ? type.cast<std::string>() : "";
  set_interface_dtype(tensor, array, typestr);
  const auto memory = interface["data"].cast<py::tuple>();
  tensor.data = memory[0].cast<uint64_t>();
  tensor.read_only = memory.size() > 1 && memory[1].cast<bool>();
  const auto shape = interface["shape"].cast<std::vector<int64_t>>();
  std::vector<int64_t> strides;
  if (!steps.is_none()) strides = steps.cast<std::vector<int64_t>>();
  const bool sizes = std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; });
  const bool masked = !interface.attr("get")("mask").is_none();
  if (!sizes || masked || (!steps.is_none() && strides.size() != shape.size())) throw py::cast_error();
  const int64_t item_bytes = typestr.size() < 3 ? 2 : std::max(1L, std::strtol(typestr.c_str() + 2, nullptr, 10));
  for (int64_t& stride : strides) {
    if (stride % item_bytes != 0) throw py::cast_error();
    stride /= item_bytes;
  }
  set_extents(tensor, static_cast<int>(shape.size()), shape.data(), steps.is_none() ? nullptr : strides.data());
  return tensor;
}

}  // namespace

std::string array_name(const char* what, int index) {
  return index < 0 ? what : std::string(what) + "[" + std::to_string(index) + "]";
}

void set_extents(Tensor& tensor, int rank, const int64_t* shape, const int64_t* strides) {
  tensor.rank = rank;
  for (int d = 0; d < 3; d++) {
    tensor.shape[d] = d < rank ? shape[d] : 1;
    tensor.stride[d] = d < rank && strides ? strides[d] : 1;
  }
  if (strides) return;
  int64_t step = 1;
  for (int d = rank - 1; d >= 0; d--) {
    if (d < 3) tensor.stride[d] = step;
    // More than there are addresses, which check_memory tells, unless the array is empty.
    if (__builtin_mul_overflow(step, shape[d], &step)) step = std::numeric_limits<int64_t>::max();
  }
}

void set_dtype(Tensor& tensor, const char* name) {
  std::strncpy(tensor.dtype_name, name, sizeof tensor.dtype_name);
  tensor.dtype_name[sizeof tensor.dtype_name - 1] = 0;
  tensor.dtype = dtype_named(tensor.dtype_name);
}

const DLPackExchangeAPI* exchange_api(py::handle type) {
  for (const char* attribute : {"__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"}) {
    const py::object found = py::getattr(type, attribute, py::none());
    void* address = nullptr;
    if (PyCapsule_IsValid(found.ptr(), "dlpack_exchange_api")) {
      address = PyCapsule_GetPointer(found.ptr(), "dlpack_exchange_api");
    } else if (PyLong_Check(found.ptr())) {  // torch's first version of it
      address = PyLong_AsVoidPtr(found.ptr());
      if (!address) PyErr_Clear();  // one that is none
    }
    const auto* header = static_cast<const DLPackExchangeAPIHeader*>(address);  // the API's first field
    while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
    const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
    if (api && api->dltensor_from_py_object_no_sync && api->current_work_stream) return api;
  }
  return nullptr;
}

Tensor read_by(const std::function<Tensor()>& read, py::handle array, const char* what, int index) {
  return reading(array, what, index, read);
}

Tensor read_exchange(const DLPackExchangeAPI& api, py::handle array, const char* what, int index) {
  return reading(array, what, index, [&] {
    DLTensor tensor;
    if (api.dltensor_from_py_object_no_sync(array.ptr(), &tensor) != 0) throw py::error_already_set();
    return tensor_of(tensor);
  });
}

CUstream exchange_stream(const DLPackExchangeAPI& api, int device) {
  void* stream = nullptr;
  if (api.current_work_stream(kDLCUDA, device, &stream) != 0) throw py::error_already_set();
  return static_cast<CUstream>(stream);
}

Tensor read_capsule(py::handle array, const char* what, int index) {
  return reading(array, what, index, [&] {
    const auto device = array.attr("__dlpack_device__")().cast<std::pair<int, int>>();
    const py::object dlpack = array.attr("__dlpack__");
    const py::object capsule = exported(dlpack, is_cuda(device.first));
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
      return consume<DLManagedTensorVersioned>(capsule, "dltensor_versioned", "used_dltensor_versioned");
    }
    return consume<DLManagedTensor>(capsule, "dltensor", "used_dltensor");
  });
}

Tensor read_cuda_interface(py::handle array, const char* what, int index) {
  return reading(array, what, index, [&] {
    Tensor tensor = tensor_of_interface(array, array.attr("__cuda_array_interface__"));
    set_device(tensor, kDLCUDA, device_of(array, tensor.data));
    return tensor;
  });
}

Tensor read_host_interface(py::handle array, const char* what, int index) {
  return reading(array, what, index, [&] {
    Tensor tensor = tensor_of_interface(array, array.attr("__array_interface__"));
    set_device(tensor, kDLCPU, 0);
    return tensor;
  });
}

}  // namespace gg
