// A product that has been launched, and torch's autograd behind it: a node that knows how to compute its gradients.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_grouped.hpp"

namespace gg {

// `out` as torch's autograd knows it: the output of gg_runtime.torch.eager.GroupedMM of those of mat_a, mat_b and bias
// whose gradients are recorded. `a` and `b` are the views of the matrices.
pybind11::object record_product(const GroupedArguments& given, const FrameworkPart& part, const Tensor& a,
                                const Tensor& b, pybind11::handle out);

// A type of classes whose attributes are looked up in the class first, and nowhere else where they are found: what such
// a class has itself must be no descriptor.
pybind11::object recorder_type();

// The forward of that function: (ctx, inputs...), called by torch from within record_product.
extern PyMethodDef keep_product_method;

}  // namespace gg
