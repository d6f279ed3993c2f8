// What a call would do, without doing it; on `device` if the caller describes one, else on the arrays' own.
#pragma once

#include <pybind11/pybind11.h>

#include "driver/driver.hpp"
#include "forms/check_experts.hpp"
#include "forms/check_grouped.hpp"
#include "forms/check_list.hpp"
#include "launch/product_parts.hpp"

namespace gg {

pybind11::dict explain(const ListArguments& arguments, pybind11::handle device);
pybind11::dict explain(const GroupedArguments& arguments, pybind11::handle device);
pybind11::dict explain(const ExpertsArguments& arguments, pybind11::handle device);

// Of a product that was checked.
pybind11::dict explain_product(const GroupedProblem& product, const PartsOptions& options, const Device& device);

}  // namespace gg
