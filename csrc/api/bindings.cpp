// gg_runtime._C: binds, nothing else.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>

#include "api/activation_gradient.hpp"
#include "api/bind_experts.hpp"
#include "api/combine.hpp"
#include "api/down_gradient.hpp"
#include "api/explain.hpp"
#include "api/group_gemm.hpp"
#include "api/grouped_mm.hpp"
#include "api/on_cpu.hpp"
#include "api/plan.hpp"
#include "api/python_errors.hpp"
#include "api/quantize.hpp"
#include "api/record_product.hpp"
#include "api/route.hpp"
#include "arrays/dtype.hpp"
#include "arrays/python_names.hpp"
#include "driver/error.hpp"
#include "select/catalog.hpp"

namespace py = pybind11;

namespace {

const char* layout_name(gg_layout layout) { return layout == GG_ANY_LAYOUT ? "any" : gg_layout_names[layout]; }

py::dict facts(const gg_artifact& a) {
  return py::dict(
      py::arg("name") = a.name, py::arg("kernel") = a.kernel, py::arg("form") = gg_form_names[a.form],
      py::arg("extents") = gg_extents_names[a.extents], py::arg("addressing") = gg_addressing_names[a.addressing],
      py::arg("epilogue") = gg_epilogue_names[a.epilogue], py::arg("source") = gg_source_names[a.source],
      py::arg("scaling") = gg_scaling_names[a.scaling], py::arg("sm") = a.sm,
      py::arg("dtype") = gg::short_name(a.dtype), py::arg("out_dtype") = gg::short_name(a.out_dtype),
      py::arg("layout") = layout_name(a.layout), py::arg("alignment") = a.alignment, py::arg("block_m") = a.block_m,
      py::arg("block_n") = a.block_n, py::arg("block_k") = a.block_k, py::arg("stages") = a.stages,
      py::arg("raster") = a.raster, py::arg("row_step") = a.row_step, py::arg("listed_tiles") = a.listed_tiles,
      py::arg("consumers") = a.consumers, py::arg("split") = a.split, py::arg("slices") = a.slices,
      py::arg("cluster") = a.cluster, py::arg("stream_gb_s") = a.stream_gb_s, py::arg("threads") = a.threads,
      py::arg("shared_bytes") = a.shared_bytes, py::arg("scratch_bytes") = a.scratch_bytes,
      py::arg("registers") = a.registers, py::arg("spill_bytes") = a.spill_bytes,
      py::arg("word_capacity") = a.word_capacity, py::arg("minimum_driver") = a.minimum_driver,
      py::arg("cubin_bytes") = a.cubin.bytes, py::arg("cubin_sha256") = a.cubin.sha256,
      py::arg("ptx_bytes") = a.ptx.bytes,
      py::arg("ptx_sha256") = a.ptx.bytes ? py::object(py::str(a.ptx.sha256)) : py::none());
}

const gg_artifact& named(const std::string& name) {
  const gg_artifact* artifact = gg::find_artifact(name);
  if (!artifact) throw gg::ValueError("no variant is called " + name + "; gg_runtime.kernels() lists them");
  return *artifact;
}

py::bytes image(const std::string& name, const std::string& kind) {
  const gg_image& found = kind == "ptx" ? named(name).ptx : named(name).cubin;
  return py::bytes(reinterpret_cast<const char*>(found.data), found.bytes);
}

py::list kernels() {
  py::list all;
  for (int i = 0; i < gg_artifact_count; i++) all.append(facts(gg_artifacts[i]));
  return all;
}

py::dict device_facts(py::handle ordinal) {
  const gg::Device& d = gg::device(gg::integer({"preload", "device"}, ordinal));
  const gg::Architecture architecture = gg::resolve_architecture(d);
  return py::dict(py::arg("ordinal") = d.ordinal, py::arg("name") = d.name, py::arg("sm") = d.sm,
                  py::arg("multiprocessors") = d.multiprocessors,
                  py::arg("shared_bytes_per_block") = d.shared_bytes_per_block, py::arg("clock_mhz") = d.clock_mhz,
                  py::arg("memory_gb_s") = d.memory_gb_s, py::arg("kernels_sm") = architecture.sm,
                  py::arg("from_ptx") = architecture.from_ptx);
}

gg::Device described(int sm, int shared_bytes) {
  gg::Device device{};
  device.sm = sm;
  device.shared_bytes_per_block = shared_bytes;
  return device;
}

py::list eligible(int sm, int shared_bytes) {
  const gg::Device device = described(sm, shared_bytes);
  py::list names;
  for (int i = 0; i < gg_artifact_count; i++) {
    if (gg::eligible(gg_artifacts[i], device)) names.append(gg_artifacts[i].name);
  }
  return names;
}

py::object group_gemm(py::handle a, py::handle b, py::handle out, py::handle out_dtype, py::handle scale_a,
                      py::handle scale_b) {
  return gg::group_gemm({a, b, out, out_dtype, scale_a, scale_b});
}

py::object route(py::handle topk_ids, py::handle experts, py::handle expert_map) {
  return gg::route({topk_ids, expert_map, gg::integer({"route", "experts"}, experts)});
}

py::object combine(py::handle y, py::handle inverse, py::handle weights, py::handle add, py::handle out,
                   py::handle scale) {
  return gg::combine({y, inverse, weights, add, out, gg::number({"combine", "scale"}, scale)});
}

py::object activation_gradient(py::handle z, py::handle dh, py::handle weights, py::handle slot, py::handle ends,
                               py::handle activation, py::handle gate_up, py::handle swiglu_limit, py::handle scale,
                               py::handle dz, py::handle h, py::handle dweights) {
  const double factor = gg::number({"activation_gradient", "scale"}, scale);
  return gg::activation_gradient(
      {z, dh, weights, slot, ends, activation, gate_up, swiglu_limit, dz, h, dweights, factor});
}

py::object down_gradient(py::handle gradient, py::handle weight, py::handle z, py::handle weights, py::handle slot,
                         py::handle ends, py::handle token, py::handle activation, py::handle gate_up,
                         py::handle swiglu_limit, double scale, py::handle dz, py::handle h, py::handle dweights,
                         bool batch_invariant, py::handle fused) {
  const py::none none;
  return gg::down_gradient(
      gg::GroupedArguments{gradient, weight, ends, none, none, none, none, none, batch_invariant, token},
      {z, none, weights, slot, ends, activation, gate_up, swiglu_limit, dz, h, dweights, scale}, fused);
}

// For a product that Python has computed.
py::object record_product(py::handle out, py::handle a, py::handle b, py::handle offs, py::handle bias,
                          bool batch_invariant) {
  const py::none none;
  const gg::GroupedArguments given{a, b, offs, bias, none, none, none, none, batch_invariant};
  const auto view = [](py::handle matrix, const char* what) { return gg::view_of(matrix, {"grouped_mm", what}); };
  return gg::record_product(given, gg::framework_part(given), view(a, "mat_a"), view(b, "mat_b"), out);
}

py::dict explain_list(py::handle a, py::handle b, py::handle out, py::handle out_dtype, py::handle scale_a,
                      py::handle scale_b, py::handle device) {
  return gg::explain(gg::ListArguments{a, b, out, out_dtype, scale_a, scale_b}, device);
}

py::dict explain_grouped(py::handle a, py::handle b, py::handle offs, py::handle bias, py::handle out,
                         py::handle out_dtype, bool batch_invariant, py::handle a_index, py::handle activation,
                         py::handle gate_up, py::handle swiglu_limit, py::handle preactivation, py::handle b_index,
                         py::handle counts, py::handle alpha, py::handle beta, py::handle k_alignment,
                         py::handle scale_a, py::handle scale_b, py::handle device) {
  return gg::explain(
      gg::GroupedArguments{a, b, offs, bias, out_dtype, out, scale_a, scale_b, batch_invariant, a_index, activation,
                           gate_up, swiglu_limit, preactivation, b_index, counts, alpha, beta, k_alignment},
      device);
}

py::dict loaded(const std::string& name, int ordinal) {
  const gg::LoadedKernel& kernel = gg::load(named(name), gg::device(ordinal));
  return py::dict(py::arg("blocks_per_multiprocessor") = kernel.blocks_per_multiprocessor,
                  py::arg("from_ptx") = kernel.from_ptx);
}

// The arguments of grouped_mm by position, and their names in that order.
// clang-format off
enum Position {
  mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b, batch_invariant,
  a_index, activation, gate_up, swiglu_limit, preactivation, b_index, counts, alpha, beta, k_alignment, variant,
  grouped_mm_count,
};
constexpr const char* grouped_mm_names[] = {
    "mat_a", "mat_b", "offs", "bias", "out_dtype", "out", "scale_a", "scale_b", "batch_invariant",
    "a_index", "activation", "gate_up", "swiglu_limit", "preactivation", "b_index", "counts", "alpha", "beta",
    "k_alignment", "variant"};
// clang-format on
static_assert(std::size(grouped_mm_names) == grouped_mm_count);

// Arguments by position, then by name, into `values`; false with a TypeError set.
bool sort_arguments(PyObject* const* given, Py_ssize_t by_position, PyObject* names, PyObject** values) {
  if (by_position > grouped_mm_count) {
    PyErr_Format(PyExc_TypeError, "grouped_mm takes %d arguments, %zd were given", grouped_mm_count, by_position);
    return false;
  }
  std::copy(given, given + by_position, values);
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const auto* found = std::find_if(std::begin(grouped_mm_names), std::end(grouped_mm_names), [&](const char* known) {
      return PyUnicode_CompareWithASCIIString(name, known) == 0;
    });
    if (found == std::end(grouped_mm_names)) {
      PyErr_Format(PyExc_TypeError, "grouped_mm has no argument %R", name);
      return false;
    }
    values[found - grouped_mm_names] = given[by_position + i];
  }
  return true;
}

// Runs for each layer of a model, hence past pybind11's dispatcher.
PyObject* grouped_mm(PyObject*, PyObject* const* given, Py_ssize_t by_position, PyObject* names) {
  PyObject* values[grouped_mm_count];
  std::fill(std::begin(values), std::end(values), Py_None);
  if (!sort_arguments(given, by_position, names, values)) return nullptr;
  const int is_invariant = values[batch_invariant] == Py_None ? 0 : PyObject_IsTrue(values[batch_invariant]);
  if (is_invariant < 0) return nullptr;
  return gg::guarded([&] {
    const gg::GroupedArguments arguments{
        values[mat_a],      values[mat_b],   values[offs],         values[bias],          values[out_dtype],
        values[out],        values[scale_a], values[scale_b],      is_invariant == 1,     values[a_index],
        values[activation], values[gate_up], values[swiglu_limit], values[preactivation], values[b_index],
        values[counts],     values[alpha],   values[beta],         values[k_alignment]};
    return gg::grouped_mm(arguments, values[variant]);
  });
}

PyMethodDef grouped_mm_method{"grouped_mm", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&grouped_mm)),
                              METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace

PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  gg::set_package(m);
  py::register_local_exception_translator(gg::translate);
  m.def("group_gemm", &group_gemm);
  m.attr("grouped_mm") = py::reinterpret_steal<py::object>(PyCFunction_New(&grouped_mm_method, nullptr));
  m.attr("keep_product") = py::reinterpret_steal<py::object>(PyCFunction_New(&gg::keep_product_method, nullptr));
  m.def("record_product", &record_product);
  m.attr("RecorderType") = gg::recorder_type();
  m.def("route", &route);
  m.def("combine", &combine);
  m.def("activation_gradient", &activation_gradient);
  m.def("quantize_1x128", &gg::quantize_1x128);
  m.def("down_gradient", &down_gradient);
  gg::bind_experts(m);
  m.def("explain_list", &explain_list);
  m.def("explain_grouped", &explain_grouped);
  m.def("kernels", &kernels);
  m.def("image", &image);
  m.def("image_sha256", [](const std::string& name, const std::string& kind) {
    return gg::sha256(kind == "ptx" ? named(name).ptx : named(name).cubin);
  });
  m.def("device_count", &gg::device_count);
  m.def("device", &device_facts);
  m.def("driver_version", [] { return gg::driver().version; });
  m.def("eligible", &eligible);
  m.def("load", &loaded);
  m.attr("build_id") = py::str(gg_build_id);
  py::class_<gg::OnCpu>(m, "OnCpu", py::module_local())
      .def_property_readonly("out_dtype", [](const gg::OnCpu& checked) { return gg::full_name(checked.out_dtype); });
  // Local: a second copy of the package, which another one carries, registers a Plan of its own.
  py::class_<gg::Plan>(m, "Plan", py::module_local())
      .def(py::init([](py::handle a, py::handle b, py::handle out, py::handle out_dtype, py::handle scale_a,
                       py::handle scale_b, const std::string& variant, bool checked) {
        return new gg::Plan(gg::ListArguments{a, b, out, out_dtype, scale_a, scale_b}, variant, checked);
      }))
      .def(py::init([](py::handle a, py::handle b, py::handle offs, py::handle bias, py::handle out,
                       py::handle out_dtype, py::handle scale_a, py::handle scale_b, bool batch_invariant,
                       py::handle a_index, py::handle activation, py::handle gate_up, py::handle swiglu_limit,
                       py::handle preactivation, py::handle b_index, py::handle counts, py::handle alpha,
                       py::handle beta, py::handle k_alignment, const std::string& variant, bool checked) {
        return new gg::Plan(gg::GroupedArguments{a, b, offs, bias, out_dtype, out, scale_a, scale_b, batch_invariant,
                                                 a_index, activation, gate_up, swiglu_limit, preactivation, b_index,
                                                 counts, alpha, beta, k_alignment},
                            variant, checked);
      }))
      .def("run", &gg::Plan::run)
      .def_property_readonly("out", &gg::Plan::out)
      .def_property_readonly(
          "out_dtype",
          [](const gg::Plan& plan) { return plan.out_dtype() == GG_ANY_DTYPE ? "" : gg::full_name(plan.out_dtype()); })
      .def_property_readonly("on_cpu", &gg::Plan::on_cpu)
      .def_property_readonly("variant", &gg::Plan::variant)
      .def_property_readonly("grid", &gg::Plan::grid)
      .def_property_readonly("slots", &gg::Plan::resident_ctas)
      .def_property_readonly("launches", &gg::Plan::launches)
      .def_property_readonly("by_value", &gg::Plan::by_value);
}
