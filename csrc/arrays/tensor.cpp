#include "arrays/tensor.hpp"

#include <pybind11/stl.h>

#include <atomic>
#include <cstring>

#include "arrays/array_protocols.hpp"
#include "arrays/dtype.hpp"
#include "arrays/python_names.hpp"
#include "arrays/torch_tensor.hpp"
#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

enum class Protocol { exchange, cuda_interface, host_interface, capsule };

// Arrays that are not torch's: read by a protocol. What no protocol does (outputs, scratch, the current stream) is
// asked of the adapter that gg_runtime/frameworks.py has for their framework; None where it has none.
class ProtocolFramework final : public Framework {
 public:
  ProtocolFramework(Protocol protocol, const DLPackExchangeAPI* api, py::object adapter)
      : protocol_(protocol),
        api_(api),
        adapter_(std::move(adapter)),
        immutable_(py::hasattr(adapter_, "immutable")) {}

  Tensor view(py::handle array, const char* what, int index) const override;
  CUstream current_stream(py::handle array, int device) const override;

  // A `__dlpack__` array can be waited for, but nothing tells its framework to wait for us.
  bool synchronous() const override { return protocol_ == Protocol::capsule; }
  bool immutable() const override { return immutable_; }

  std::vector<py::object> empty(py::handle like, gg_dtype dtype, const Shapes& shapes) const override {
    const py::object& adapter = adapter_for(like, "pass out=, what to write into");
    return adapter.attr("empty")(like, full_name(dtype), shapes).cast<std::vector<py::object>>();
  }
  py::object empty_stack(py::handle like, gg_dtype dtype, int64_t groups, int64_t rows,
                         int64_t columns) const override {
    const py::object& adapter = adapter_for(like, "pass out=, what to write into");
    const py::tuple shape = py::make_tuple(groups, rows, columns);
    return adapter.attr("empty")(like, full_name(dtype), py::make_tuple(shape))[py::int_(0)];
  }
  py::object empty_int32(py::handle like, const std::vector<int64_t>& shape) const override {
    const py::object& adapter = adapter_for(like, "pass arrays of torch, CuPy or JAX");
    return adapter.attr("empty")(like, "int32", py::make_tuple(py::tuple(py::cast(shape))))[py::int_(0)];
  }
  py::object scratch(py::handle like, size_t bytes, uint64_t* address) const override;

 private:
  const py::object& adapter_for(py::handle like, const char* advice) const;

  Protocol protocol_;
  const DLPackExchangeAPI* api_;
  py::object adapter_;
  bool immutable_;
};

Tensor ProtocolFramework::view(py::handle array, const char* what, int index) const {
  switch (protocol_) {
    case Protocol::exchange:
      return read_exchange(*api_, array, what, index);
    case Protocol::cuda_interface:
      return read_cuda_interface(array, what, index);
    case Protocol::host_interface:
      return read_host_interface(array, what, index);
    default:
      return read_capsule(array, what, index);
  }
}

CUstream ProtocolFramework::current_stream(py::handle array, int device) const {
  if (protocol_ == Protocol::exchange) return exchange_stream(*api_, device);
  py::object stream = py::none();
  if (py::hasattr(adapter_, "current_stream")) {
    stream = adapter_.attr("current_stream")(device);
  } else if (protocol_ == Protocol::cuda_interface) {
    stream = array.attr("__cuda_array_interface__").attr("get")("stream");
  }
  return stream.is_none() ? nullptr : reinterpret_cast<CUstream>(stream.cast<uintptr_t>());
}

const py::object& ProtocolFramework::adapter_for(py::handle like, const char* advice) const {
  if (!adapter_.is_none()) return adapter_;
  throw TypeError(std::string("gg_runtime cannot allocate arrays of type ") + Py_TYPE(like.ptr())->tp_name + "; " +
                  advice);
}

py::object ProtocolFramework::scratch(py::handle like, size_t bytes, uint64_t* address) const {
  const py::object& adapter =
      adapter_for(like, "this call needs scratch memory on the GPU: pass torch, CuPy or JAX arrays");
  const py::tuple made = adapter.attr("scratch")(like, bytes + scratch_alignment - 1);
  *address = aligned_scratch(made[1].cast<uint64_t>());
  return made[0];
}

// Types seen so far, the newest first. Entries are never changed nor freed and hold their type, so its address is not
// used again; a reader needs no lock. Two threads may enter one type, which does no harm.
struct Known {
  PyTypeObject* type;
  std::unique_ptr<Framework> framework;
  const Known* next;
};

std::atomic<const Known*> known{nullptr};

// Looked up in the type first: a property of the array may raise.
bool has(py::handle array, const char* attribute) {
  return py::hasattr(py::type::handle_of(array), attribute) || py::hasattr(array, attribute);
}

bool is_torch_tensor(py::handle array) {
  const py::str name("torch");
  const auto torch = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  if (!torch && PyErr_Occurred()) throw py::error_already_set();
  return torch && py::hasattr(torch, "Tensor") && py::isinstance(array, torch.attr("Tensor"));
}

std::unique_ptr<Framework> framework_for(py::handle array, const char* what, int index) {
  const py::handle type = py::type::handle_of(array);
  const DLPackExchangeAPI* api = exchange_api(type);
  if (is_torch_tensor(array)) return torch_framework(type, api);
  py::object adapter = package_module("frameworks").attr("adapter_of")(type);
  const auto made_for = [&](Protocol protocol) {
    return std::make_unique<ProtocolFramework>(protocol, api, std::move(adapter));
  };
  // Of JAX only `__dlpack__` waits for work that is pending: its other interfaces are without a stream.
  const bool orders_by_capsule = py::hasattr(adapter, "orders_by_capsule") && has(array, "__dlpack__");
  if (api && !orders_by_capsule) return made_for(Protocol::exchange);
  if (!orders_by_capsule && has(array, "__cuda_array_interface__")) return made_for(Protocol::cuda_interface);
  if (has(array, "__array_interface__")) return made_for(Protocol::host_interface);
  if (has(array, "__dlpack__")) return made_for(Protocol::capsule);
  throw TypeError(array_name(what, index) + " is " + kind_of(array) +
                  "; an array of torch, CuPy, JAX or NumPy is needed, or one with __dlpack__ or "
                  "__cuda_array_interface__");
}

const Framework& first_framework_of(py::handle array, const char* what, int index) {
  auto entry = std::make_unique<Known>();
  entry->type = Py_TYPE(array.ptr());
  entry->framework = framework_for(array, what, index);
  Py_INCREF(entry->type);
  entry->next = known.load();
  while (!known.compare_exchange_weak(entry->next, entry.get())) {
  }
  return *entry.release()->framework;
}

}  // namespace

std::string kind_of(py::handle object) {
  if (object.is_none()) return "None";
  const std::string type = Py_TYPE(object.ptr())->tp_name;
  const bool begins_with_vowel = std::strchr("aeiouAEIOU", type[0]);
  return (begins_with_vowel ? "an " : "a ") + type;
}

const Framework& framework_of(py::handle array, const char* what, int index) {
  const PyTypeObject* type = Py_TYPE(array.ptr());
  for (const Known* entry = known.load(std::memory_order_acquire); entry; entry = entry->next) {
    if (entry->type == type) return *entry->framework;
  }
  return first_framework_of(array, what, index);
}

}  // namespace gg
