#include "arrays/torch_tensor.hpp"

#include <algorithm>
#include <map>

#include "arrays/array_protocols.hpp"
#include "arrays/dtype.hpp"
#include "arrays/python_names.hpp"
#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// self.name(arguments...), the last ones by keyword where `keywords` names them.
template <typename... Arguments>
py::object call_method(const py::object& name, py::handle keywords, py::handle self, const Arguments&... arguments) {
  PyObject* values[] = {self.ptr(), arguments.ptr()...};
  const size_t by_keyword = keywords ? static_cast<size_t>(PyTuple_GET_SIZE(keywords.ptr())) : 0;
  const size_t by_position = 1 + sizeof...(arguments) - by_keyword;
  PyObject* result = PyObject_VectorcallMethod(name.ptr(), values, by_position, keywords.ptr());
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// Whether a function of no arguments gives True.
bool is_true(const py::object& function) {
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function.ptr()));
  if (!answer) throw py::error_already_set();
  return answer.ptr() == Py_True;
}

// What new tensors are made after.
struct Mold {
  py::object like;
  py::object dtype;  // null: that of `like`
  int64_t element_bytes;
};

// torch's own dtypes, null where this torch has none: float8_e4m3fn came with 2.1.
std::vector<py::object> torch_dtypes(const py::object& torch) {
  std::vector<py::object> found;
  found.reserve(GG_DTYPE_COUNT);
  for (int i = 0; i < GG_DTYPE_COUNT; i++) {
    found.push_back(py::getattr(torch, full_name(static_cast<gg_dtype>(i)), py::object()));
  }
  return found;
}

// An attribute of a type's objects that is a data descriptor, or null: it comes before what an object's own dictionary
// says, so that it may be called without the search, which takes as long again.
py::object data_descriptor(py::handle type, const char* name) {
  auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
  py::object found = py::getattr(type, name, py::object());
  const bool is_first = found && Py_TYPE(found.ptr())->tp_descr_get && Py_TYPE(found.ptr())->tp_descr_set;
  return is_first && of->tp_getattro == PyObject_GenericGetAttr ? found : py::object();
}

// Whether a subclass says what operations on its tensors do, in place of kernels on their memory.
bool has_own_dispatch(py::handle type, const py::module_& torch) {
  constexpr const char* name = "__torch_dispatch__";
  const py::object own = py::getattr(type, name, py::none()),
                   plain = py::getattr(torch.attr("Tensor"), name, py::none());
  return !own.is(plain);
}

// Names and torch objects are looked up once for each type and kept in the object: statics would be initialized under a
// lock that Python code could wait on.
class TorchFramework final : public Framework {
 public:
  TorchFramework(py::handle type, const DLPackExchangeAPI* api, const py::module_& torch)
      : api_(api),
        makes_plain_tensors_(type.is(torch.attr("Tensor")) || type.is(torch.attr("nn").attr("Parameter"))),
        torch_(torch),
        stands_for_others_(has_own_dispatch(type, torch)),
        requires_grad_of_type_(data_descriptor(type, "requires_grad")) {}

  Tensor view(py::handle array, const char* what, int index) const override;
  CUstream current_stream(py::handle array, int device) const override;
  bool synchronous() const override { return false; }
  bool pools_captures() const override { return true; }
  std::vector<py::object> empty(py::handle like, gg_dtype dtype, const Shapes& shapes) const override;
  py::object empty_stack(py::handle like, gg_dtype dtype, int64_t groups, int64_t rows, int64_t columns) const override;
  py::object empty_int32(py::handle like, const std::vector<int64_t>& shape) const override;
  py::object scratch(py::handle like, size_t bytes, uint64_t* address) const override;
  bool records_gradients() const override { return is_true(is_grad_enabled_); }
  bool transforms_functions() const override { return transforms_ && is_true(transforms_); }
  bool requires_grad(py::handle array) const override;
  bool in_forward_mode() const override;
  bool has_tangent(py::handle array) const override;
  bool is_traced() const override { return is_tracing_ && is_true(is_tracing_); }
  bool stands_for_others() const override { return stands_for_others_; }

 private:
  bool is_negated(py::handle array, const Tensor& tensor) const;
  py::object plain(py::handle like) const;
  Mold mold_of(py::handle like, gg_dtype dtype) const;
  py::object made(const Mold& mold, const py::tuple& shape, const py::tuple& strides) const;
  py::object matrix(const Mold& mold, int64_t rows, int64_t columns) const;
  void fill_block(const Mold& mold, const Shapes& shapes, const std::vector<size_t>& members,
                  std::vector<py::object>& outputs) const;

  const DLPackExchangeAPI* api_;
  bool makes_plain_tensors_;
  py::object torch_;
  bool stands_for_others_;
  py::object requires_grad_of_type_;
  py::object is_grad_enabled_ = torch_.attr("is_grad_enabled");
  py::object transforms_ = py::getattr(py::getattr(torch_, "_C", py::none()), "_are_functorch_transforms_active",
                                       py::object());  // null before 2.0
  py::object is_tracing_ = py::getattr(py::getattr(torch_, "_C", py::none()), "_is_tracing", py::object());
  py::object forward_mode_ = py::getattr(py::getattr(torch_, "autograd", py::none()), "forward_ad", py::none());
  py::object forward_mode_names_ = py::getattr(forward_mode_, "__dict__", py::dict());  // none before 1.8
  py::object current_level_ = interned("_current_level");
  py::object is_neg_ = torch_.attr("Tensor").attr("is_neg");
  py::object uint8_ = torch_.attr("uint8");
  py::object int32_ = torch_.attr("int32");
  std::vector<py::object> dtypes_ = torch_dtypes(torch_);
  py::object dtype_keyword_ = py::make_tuple("dtype");
  py::object new_empty_strided_ = interned("new_empty_strided");
  py::object split_ = interned("unsafe_split_with_sizes");
  py::object requires_grad_ = interned("requires_grad");
  py::object dtype_ = interned("dtype");
};

std::vector<int64_t> integers(const py::object& sequence) {
  std::vector<int64_t> values;
  for (const py::handle item : sequence) values.push_back(item.cast<int64_t>());
  return values;
}

Tensor read_attributes(py::handle array) {
  Tensor tensor;
  const py::object device = array.attr("device");
  const auto kind = device.attr("type").cast<std::string>();
  tensor.device_type = kind == "cuda" ? DeviceType::cuda : kind == "cpu" ? DeviceType::cpu : DeviceType::other;
  tensor.device = tensor.device_type == DeviceType::cuda ? device.attr("index").cast<int>() : 0;
  const std::vector<int64_t> shape = integers(array.attr("shape")), stride = integers(array.attr("stride")());
  set_extents(tensor, static_cast<int>(shape.size()), shape.data(), stride.data());
  const auto dtype = py::str(array.attr("dtype")).cast<std::string>();  // "torch.float16"
  set_dtype(tensor, dtype.c_str() + dtype.find('.') + 1);
  tensor.data = array.attr("data_ptr")().cast<uint64_t>();
  return tensor;
}

Tensor TorchFramework::view(py::handle array, const char* what, int index) const {
  const Tensor tensor = api_ ? read_exchange(*api_, array, what, index)
                             : read_by([&] { return read_attributes(array); }, array, what, index);
  if (!is_negated(array, tensor)) return tensor;
  throw TypeError(array_name(what, index) +
                  " has torch's negative bit set: its memory holds the values with the other sign; pass " +
                  array_name(what, index) + ".resolve_neg()");
}

// torch sets the bit on the imaginary part of a conjugate, and keeps it on views of that: every other number of complex
// memory, whose strides are even. Only tensors of such strides are asked, which takes 0.1 us each. as_strided can give
// such a view odd strides, which this does not see.
bool TorchFramework::is_negated(py::handle array, const Tensor& tensor) const {
  for (int d = 0; d < std::min(tensor.rank, 3); d++) {
    if (tensor.shape[d] > 1 && tensor.stride[d] % 2 != 0) return false;
  }
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(is_neg_.ptr(), array.ptr()));
  if (!answer) throw py::error_already_set();
  return answer.ptr() == Py_True;
}

CUstream TorchFramework::current_stream(py::handle, int device) const {
  if (api_) return exchange_stream(*api_, device);
  const py::object stream = torch_.attr("cuda").attr("current_stream")(device).attr("cuda_stream");
  return reinterpret_cast<CUstream>(stream.cast<uintptr_t>());
}

// A tensor of the same dtype and device whose methods give torch.Tensor, and not a subclass with a meaning of its own.
py::object TorchFramework::plain(py::handle like) const {
  if (makes_plain_tensors_) return py::reinterpret_borrow<py::object>(like);
  return torch_.attr("empty")(0, py::arg("dtype") = like.attr("dtype"), py::arg("device") = like.attr("device"));
}

// The fastest way to a new tensor from Python: 1.9 us where new_empty takes 2.5 and torch.empty 4.2.
py::object TorchFramework::made(const Mold& mold, const py::tuple& shape, const py::tuple& strides) const {
  if (!mold.dtype) return call_method(new_empty_strided_, {}, mold.like, shape, strides);
  return call_method(new_empty_strided_, dtype_keyword_, mold.like, shape, strides, mold.dtype);
}

py::object TorchFramework::matrix(const Mold& mold, int64_t rows, int64_t columns) const {
  return made(mold, py::make_tuple(rows, columns), py::make_tuple(std::max<int64_t>(columns, 1), 1));
}

py::object TorchFramework::empty_stack(py::handle like, gg_dtype dtype, int64_t groups, int64_t rows,
                                       int64_t columns) const {
  const int64_t pitch = std::max<int64_t>(columns, 1), step = pitch * std::max<int64_t>(rows, 1);
  return made(mold_of(like, dtype), py::make_tuple(groups, rows, columns), py::make_tuple(step, pitch, 1));
}

// The outputs of `members`, which have one width, as rows of one block: allocating and splitting it costs less than two
// allocations. unsafe_split_with_sizes gives tensors that autograd takes for separate ones; the views that
// split_with_sizes gives refuse to be changed in place.
void TorchFramework::fill_block(const Mold& mold, const Shapes& shapes, const std::vector<size_t>& members,
                                std::vector<py::object>& outputs) const {
  const int64_t columns = shapes[members[0]].second;
  const bool aligned = std::all_of(members.begin(), members.end(), [&](size_t member) {
    return static_cast<uint64_t>(shapes[member].first) * static_cast<uint64_t>(columns * mold.element_bytes) % 16 == 0;
  });
  if (members.size() == 1 || !aligned) {
    for (const size_t member : members) outputs[member] = matrix(mold, shapes[member].first, columns);
    return;
  }
  int64_t rows = 0;
  py::list heights(members.size());
  for (size_t i = 0; i < members.size(); i++) {
    rows += shapes[members[i]].first;
    heights[i] = py::int_(shapes[members[i]].first);
  }
  const py::tuple parts = call_method(split_, {}, matrix(mold, rows, columns), heights);
  for (size_t i = 0; i < members.size(); i++) outputs[members[i]] = parts[i];
}

Mold TorchFramework::mold_of(py::handle like, gg_dtype dtype) const {
  if (!dtypes_[dtype]) throw TypeError(std::string("this PyTorch has no ") + full_name(dtype) + "; 2.1 or later has");
  Mold mold{plain(like), dtypes_[dtype], element_bytes(dtype)};
  const auto own = py::reinterpret_steal<py::object>(PyObject_GetAttr(mold.like.ptr(), dtype_.ptr()));
  if (!own) throw py::error_already_set();
  if (own.is(mold.dtype)) mold.dtype = py::object();
  return mold;
}

std::vector<py::object> TorchFramework::empty(py::handle like, gg_dtype dtype, const Shapes& shapes) const {
  std::map<int64_t, std::vector<size_t>> of_width;
  for (size_t i = 0; i < shapes.size(); i++) of_width[shapes[i].second].push_back(i);
  const Mold mold = mold_of(like, dtype);
  std::vector<py::object> outputs(shapes.size());
  for (const auto& [columns, members] : of_width) fill_block(mold, shapes, members, outputs);
  return outputs;
}

py::object TorchFramework::empty_int32(py::handle like, const std::vector<int64_t>& shape) const {
  py::tuple sizes(shape.size()), strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    sizes[d] = py::int_(shape[d]);
    strides[d] = py::int_(step);
    step *= std::max<int64_t>(shape[d], 1);
  }
  return call_method(new_empty_strided_, dtype_keyword_, plain(like), sizes, strides, int32_);
}

// The caching allocator hands out multiples of 512 bytes on 512, but other allocators can be plugged in.
py::object TorchFramework::scratch(py::handle like, size_t bytes, uint64_t* address) const {
  const py::tuple size = py::make_tuple(bytes + scratch_alignment - 1);
  py::object block = call_method(new_empty_strided_, dtype_keyword_, plain(like), size, py::make_tuple(1), uint8_);
  *address = aligned_scratch(view(block, "scratch", -1).data);
  return block;
}

bool TorchFramework::in_forward_mode() const {
  PyObject* level = PyDict_GetItemWithError(forward_mode_names_.ptr(), current_level_.ptr());
  if (!level && PyErr_Occurred()) throw py::error_already_set();
  return level && PyLong_Check(level) && PyLong_AsLong(level) >= 0;
}

bool TorchFramework::has_tangent(py::handle array) const {
  return !forward_mode_.attr("unpack_dual")(array).attr("tangent").is_none();
}

bool TorchFramework::requires_grad(py::handle array) const {
  PyObject *of_type = requires_grad_of_type_.ptr(), *self = array.ptr();
  PyObject* answer = of_type ? Py_TYPE(of_type)->tp_descr_get(of_type, self, reinterpret_cast<PyObject*>(Py_TYPE(self)))
                             : PyObject_GetAttr(self, requires_grad_.ptr());
  const py::object wanted = py::reinterpret_steal<py::object>(answer);
  if (!wanted) throw py::error_already_set();
  return wanted.ptr() == Py_True;
}

}  // namespace

std::unique_ptr<Framework> torch_framework(py::handle type, const DLPackExchangeAPI* api) {
  return std::make_unique<TorchFramework>(type, api, py::module_::import("torch"));
}

}  // namespace gg
