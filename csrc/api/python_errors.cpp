#include "api/python_errors.hpp"

#include <new>
#include <string>

#include "arrays/python_names.hpp"
#include "driver/error.hpp"
#include "driver/gil.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// Texts quote the environment and the driver, which may not be UTF-8.
py::object decoded(const std::string& text) {
  const auto size = static_cast<Py_ssize_t>(text.size());
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), size, "replace");
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

void set_error(py::handle type, const std::exception& error) {
  PyErr_SetObject(type.ptr(), decoded(error.what()).ptr());
}

py::object type_of_ours(const char* name) { return package_module("errors").attr(name); }

}  // namespace

void translate(std::exception_ptr error) {
  // What is caught and is no C++ exception: before 3.14, Python ends a daemon thread at exit by pthread_exit.
  if (!error) wait_for_exit();
  try {
    std::rethrow_exception(error);
  } catch (const ValueError& e) {
    set_error(PyExc_ValueError, e);
  } catch (const TypeError& e) {
    set_error(PyExc_TypeError, e);
  } catch (const RuntimeError& e) {
    set_error(PyExc_RuntimeError, e);
  } catch (const UnsupportedError& e) {
    set_error(type_of_ours("UnsupportedError"), e);
  } catch (const ArtifactError& e) {
    set_error(type_of_ours("ArtifactError"), e);
  } catch (const CudaError& e) {
    const py::object type = type_of_ours("CudaError");
    PyErr_SetObject(type.ptr(), type(decoded(e.what()), e.call, e.code, e.name).ptr());
  }
}

void set_current_error() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (...) {
    try {
      translate(std::current_exception());
    } catch (const std::exception& error) {
      set_error(PyExc_RuntimeError, error);
    }
  }
}

}  // namespace gg
