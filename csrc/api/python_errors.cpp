#include "api/python_errors.hpp"

#include <new>
#include <string>

#include "driver/error.hpp"
#include "driver/gil.hpp"

namespace py = pybind11;

namespace gg {
namespace {

void set_error(const char* type, const std::string& text) {
  PyErr_SetString(py::module_::import("gg_runtime.errors").attr(type).ptr(), text.c_str());
}

}  // namespace

void translate(std::exception_ptr error) {
  // What is caught and is no C++ exception: before 3.14, Python ends a daemon thread at exit by pthread_exit.
  if (!error) wait_for_exit();
  try {
    std::rethrow_exception(error);
  } catch (const ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const RuntimeError& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (const UnsupportedError& e) {
    set_error("UnsupportedError", e.what());
  } catch (const ArtifactError& e) {
    set_error("ArtifactError", e.what());
  } catch (const CudaError& e) {
    const py::object type = py::module_::import("gg_runtime.errors").attr("CudaError");
    PyErr_SetObject(type.ptr(), type(e.what(), e.call, e.code, e.name).ptr());
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
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  }
}

}  // namespace gg
