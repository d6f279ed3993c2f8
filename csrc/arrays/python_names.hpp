// What is looked up in Python by name. The package of this extension is gg_runtime, or a copy of it that another
// package carries: each has errors and adapters of its own.
#pragma once

#include <pybind11/pybind11.h>

namespace gg {

// Called once, at import. `extension` is what Python calls the module: "gg_runtime._C".
void set_package(const pybind11::module_& extension);

// A module of the package, by its name in there: "errors".
pybind11::module_ package_module(const char* name);

// A string that Python keeps once.
pybind11::object interned(const char* text);

}  // namespace gg
