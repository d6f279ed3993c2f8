// Which form a call of grouped_mm takes, which arguments go with it, and whether its operands fit each other.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_grouped.hpp"

namespace gg {

GroupedForm form_of(const GroupedViews& views);

// Which arguments mean something to which form. Throws ValueError, as all of them.
void check_arguments_of(GroupedForm form, const GroupedArguments& given);
void check_goes_with(bool given, const char* what, GroupedForm form, GroupedForms forms);
void check_has_ends(const GroupedViews& views, GroupedForm form, const GroupedArguments& given);

// mat_a and mat_b, which `views` has; their K may be that of the indices in it. TypeError for their dtypes.
void check_dtypes(const GroupedViews& views, GroupedForm form);
void check_operands(const GroupedViews& views, GroupedForm form);

// int32 [E] on the device, `of_each` group: ends or counts.
void check_extents(const GroupedViews& views, const Tensor& extents, const char* what, const char* of_each);

GroupedSizes sizes_of(const GroupedViews& views, GroupedForm form);

}  // namespace gg
