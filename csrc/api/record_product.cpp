#include "api/record_product.hpp"

#include <pybind11/gil_safe_call_once.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "api/python_errors.hpp"
#include "arrays/python_names.hpp"
#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// What a node keeps: gg_runtime/torch/gradients.py has the meaning of these.
struct Kept {
  PyObject *out, *tensors;
  bool transposed, batch_invariant;
};

// That of the call of record_product that this thread is in. It comes to `forward` past the arguments: torch looks at
// each of those, and takes 0.1 us for one that is no tensor.
thread_local const Kept* recording = nullptr;

// Calls may be nested: what torch runs before `forward` can start a garbage collection, and that a finalizer.
class Recording {
 public:
  explicit Recording(const Kept& kept) : outer_(recording) { recording = &kept; }
  ~Recording() { recording = outer_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  const Kept* outer_;
};

struct Names {
  py::object apply[2][2];  // for gradients of mat_a or without, and of mat_b
  py::object to_save = interned("to_save"), save_for_backward = interned("save_for_backward");
  py::object transposed = interned("transposed"), batch_invariant = interned("batch_invariant");
  bool has_slot = py::hasattr(py::module_::import("torch").attr("_C").attr("_FunctionBase"), "to_save");

  Names() {
    const py::object recorders = package_module("torch.eager").attr("RECORDERS");
    for (const bool of_a : {false, true}) {
      for (const bool of_b : {false, true}) {
        apply[of_a][of_b] = recorders[py::make_tuple(of_a, of_b)].attr("apply");
      }
    }
  }
};

const Names& names() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Names> stored;
  return stored.call_once_and_store_result([] { return Names(); }).get_stored();
}

void set(PyObject* object, const py::object& name, PyObject* value) {
  if (PyObject_SetAttr(object, name.ptr(), value) != 0) throw py::error_already_set();
}

// ctx.save_for_backward(*tensors), which sets `to_save` and does nothing else.
void save(PyObject* ctx, PyObject* tensors) {
  if (names().has_slot) return set(ctx, names().to_save, tensors);
  py::handle(ctx).attr(names().save_for_backward)(*py::reinterpret_borrow<py::tuple>(tensors));
}

PyObject* keep_product(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    if (!recording || count < 1) throw RuntimeError("keep_product: torch calls it, while a product is recorded");
    save(given[0], recording->tensors);
    if (recording->transposed) set(given[0], names().transposed, Py_True);
    if (recording->batch_invariant) set(given[0], names().batch_invariant, Py_True);
    return py::reinterpret_borrow<py::object>(recording->out);
  });
}

bool is_transposed(const Tensor& matrices) {
  return matrices.stride[matrices.rank - 2] == 1 && matrices.stride[matrices.rank - 1] != 1;
}

// The given ones of three.
py::object tuple_of(py::handle first, py::handle second, py::handle third) {
  const py::handle items[] = {first, second, third};
  py::tuple made(std::count_if(std::begin(items), std::end(items), [](py::handle item) { return !!item; }));
  Py_ssize_t i = 0;
  for (const py::handle item : items) {
    if (item) PyTuple_SET_ITEM(made.ptr(), i++, item.inc_ref().ptr());
  }
  return made;
}

}  // namespace

// The gradient of one matrix needs the other, and how the one lies.
py::object record_product(const GroupedArguments& given, const FrameworkPart& part, const Tensor& a, const Tensor& b,
                          py::handle out) {
  const auto if_so = [](bool wanted, py::handle array) { return wanted ? array : py::handle(); };
  const py::object tensors = tuple_of(if_so(part.mat_b, given.mat_a), if_so(part.mat_a, given.mat_b), given.offs);
  const py::object inputs =
      tuple_of(if_so(part.mat_a, given.mat_a), if_so(part.mat_b, given.mat_b), if_so(part.bias, given.bias));
  const bool transposed = part.mat_a != part.mat_b && is_transposed(part.mat_b ? b : a);
  const Kept kept{out.ptr(), tensors.ptr(), transposed, given.batch_invariant};
  const Recording now(kept);
  PyObject* recorded = PyObject_Call(names().apply[part.mat_a][part.mat_b].ptr(), inputs.ptr(), nullptr);
  if (!recorded) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(recorded);
}

namespace {

// Its own attribute of a class: none of them is a descriptor that gives another object.
PyObject* own_attribute(PyObject* of, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(reinterpret_cast<PyTypeObject*>(of)->tp_dict, name);
  if (found || PyErr_Occurred()) return Py_XNewRef(found);
  return PyType_Type.tp_getattro(of, name);
}

// What `apply` looks up in its class, and the same interned, whose hashes are known. recorder_type interns them, once
// at import: in a static's constructor, a thread that waits for it with the GIL could block the thread that is in it.
constexpr const char* looked_up[] = {"_backward_cls", "forward", "setup_context", "clear_saved_tensors_on_access",
                                     "boxed_grads_call"};
PyObject* interned_names[std::size(looked_up)];

// The same by characters, which is how `apply` asks: Python would make a string of them each time, and hash it.
PyObject* own_attribute_by_text(PyObject* of, char* text) {
  const auto found = std::find_if(std::begin(looked_up), std::end(looked_up),
                                  [&](const char* one) { return std::strcmp(one, text) == 0; });
  if (found != std::end(looked_up)) {
    if (PyObject* name = interned_names[found - std::begin(looked_up)]) return own_attribute(of, name);
  }
  PyObject* name = PyUnicode_FromString(text);
  if (!name) return nullptr;
  PyObject* value = own_attribute(of, name);
  Py_DECREF(name);
  return value;
}

}  // namespace

py::object recorder_type() {
  std::transform(std::begin(looked_up), std::end(looked_up), interned_names, PyUnicode_InternFromString);
  PyType_Slot slots[] = {{Py_tp_getattr, reinterpret_cast<void*>(&own_attribute_by_text)},
                         {Py_tp_getattro, reinterpret_cast<void*>(&own_attribute)},
                         {0, nullptr}};
  PyType_Spec spec{"gg_runtime._C.RecorderType", 0, 0, Py_TPFLAGS_DEFAULT, slots};
  const auto bases = py::make_tuple(py::handle(reinterpret_cast<PyObject*>(&PyType_Type)));
  PyObject* made = PyType_FromSpecWithBases(&spec, bases.ptr());
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

PyMethodDef keep_product_method{
    "keep_product", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&keep_product)), METH_FASTCALL, nullptr};

}  // namespace gg
