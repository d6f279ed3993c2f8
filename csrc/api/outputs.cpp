#include "api/outputs.hpp"

#include "launch/experts.hpp"

namespace py = pybind11;

namespace gg {

void make_missing_outputs(CheckedList& list) {
  if (list.has_outputs) return;
  Shapes shapes;
  shapes.reserve(list.size());
  for (size_t i = 0; i < list.size(); i++) shapes.emplace_back(list.a[i].shape[0], list.b[i].shape[1]);
  std::vector<py::object> made = list.framework->empty(list.like, list.out_dtype, shapes);
  list.c.reserve(made.size());
  list.arrays_out = py::tuple(made.size());
  for (size_t i = 0; i < made.size(); i++) {
    list.c.push_back(list.framework->view(made[i], "out", static_cast<int>(i)));
    PyTuple_SET_ITEM(list.arrays_out.ptr(), static_cast<Py_ssize_t>(i), made[i].release().ptr());
  }
  list.has_outputs = true;
}

void make_missing_output(CheckedGrouped& product) {
  if (product.out) return;
  const Framework& by = *product.framework;
  const GroupedSizes& sizes = product.sizes;
  const int64_t columns = product.output_columns();
  if (product.has_output_stack()) {
    product.out = by.empty_stack(product.like, product.out_dtype, sizes.groups, sizes.m, columns);
  } else {
    product.out = std::move(by.empty(product.like, product.out_dtype, {{sizes.m, columns}})[0]);
  }
  product.set_output(by.view(product.out, "out", -1));
}

void make_missing_output(CheckedExperts& layer) {
  if (layer.out) return;
  const Shapes shapes{{layer.sizes.tokens, layer.sizes.hidden}};
  layer.out = std::move(layer.framework->empty(layer.like, layer.out_dtype, shapes)[0]);
  layer.out_view = layer.framework->view(layer.out, "out", -1);
}

uint64_t workspace_of(const CheckedExperts& layer, const Device& device, std::vector<py::object>& owners) {
  if (layer.workspace.rank > 0) return layer.workspace.data;
  uint64_t address = 0;
  const size_t bytes = used_workspace_bytes(layer, device);
  if (bytes > 0) owners.push_back(layer.framework->scratch(layer.like, bytes, &address));
  return address;
}

}  // namespace gg
