// The library's errors as Python raises them.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace gg {

// Sets the Python error for one of the library's own; throws any other again.
void translate(std::exception_ptr error);

// Sets the Python error for what is being handled, whatever it is.
void set_current_error();

// What `call` returns, for a function that Python calls past pybind11's dispatcher; null with an error set.
template <typename Call>
PyObject* guarded(const Call& call) {
  try {
    return pybind11::object(call()).release().ptr();
  } catch (...) {
    set_current_error();
  }
  return nullptr;
}

}  // namespace gg
