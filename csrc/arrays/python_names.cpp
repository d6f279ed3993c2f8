#include "arrays/python_names.hpp"

#include <string>

namespace py = pybind11;

namespace gg {
namespace {

// "gg_runtime.". Daemon threads may ask at exit: it is never destroyed.
std::string& prefix() {
  static auto& kept = *new std::string;
  return kept;
}

}  // namespace

void set_package(const py::module_& extension) {
  const auto name = extension.attr("__name__").cast<std::string>();
  prefix() = name.substr(0, name.rfind('.') + 1);
}

py::module_ package_module(const char* name) { return py::module_::import((prefix() + name).c_str()); }

py::object interned(const char* text) {
  PyObject* made = PyUnicode_InternFromString(text);
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace gg
