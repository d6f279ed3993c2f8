// gg_runtime._C: binds, nothing else.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "error.hpp"
#include "grouped_gemm.hpp"

namespace py = pybind11;

namespace {

constexpr const char* kernel_names[] = {"basic", "tma", "hopper", "pack"};
constexpr const char* layout_names[] = {"nn", "nt", "tn", "tt", "strided"};

const char* dtype_name(gg_dtype dtype) { return dtype == GG_FP16 ? "fp16" : dtype == GG_BF16 ? "bf16" : "any"; }
const char* layout_name(gg_layout layout) { return layout == GG_ANY_LAYOUT ? "any" : layout_names[layout]; }

py::dict facts(const gg_artifact& a) {
  return py::dict(
      py::arg("name") = a.name, py::arg("kernel") = kernel_names[a.kernel], py::arg("sm") = a.sm,
      py::arg("dtype") = dtype_name(a.dtype), py::arg("layout") = layout_name(a.layout),
      py::arg("alignment") = a.alignment, py::arg("block_m") = a.block_m, py::arg("block_n") = a.block_n,
      py::arg("block_k") = a.block_k, py::arg("stages") = a.stages, py::arg("raster") = a.raster,
      py::arg("threads") = a.threads, py::arg("cluster") = a.cluster, py::arg("shared_bytes") = a.shared_bytes,
      py::arg("scratch_bytes") = a.scratch_bytes, py::arg("registers") = a.registers,
      py::arg("spill_bytes") = a.spill_bytes, py::arg("word_capacity") = a.word_capacity,
      py::arg("minimum_driver") = a.minimum_driver, py::arg("cubin_bytes") = a.cubin.bytes,
      py::arg("cubin_sha256") = a.cubin.sha256, py::arg("ptx_bytes") = a.ptx.bytes,
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

py::dict device_facts(int ordinal) {
  const gg::Device& d = gg::device(ordinal);
  const gg::Serving serving = gg::serving(d);
  return py::dict(py::arg("ordinal") = d.ordinal, py::arg("name") = d.name, py::arg("sm") = d.sm,
                  py::arg("multiprocessors") = d.multiprocessors,
                  py::arg("shared_bytes_per_block") = d.shared_bytes_per_block,
                  py::arg("kernels_sm") = serving.sm, py::arg("from_ptx") = serving.from_ptx);
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

py::dict loaded(const std::string& name, int ordinal) {
  const gg::LoadedKernel& kernel = gg::load(named(name), gg::device(ordinal));
  return py::dict(py::arg("blocks_per_multiprocessor") = kernel.blocks_per_multiprocessor,
                  py::arg("from_ptx") = kernel.from_ptx);
}

void set_error(const char* type, const std::string& text) {
  PyErr_SetString(py::module_::import("gg_runtime.errors").attr(type).ptr(), text.c_str());
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const gg::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const gg::TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const gg::UnsupportedError& e) {
    set_error("UnsupportedError", e.what());
  } catch (const gg::ArtifactError& e) {
    set_error("ArtifactError", e.what());
  } catch (const gg::CudaError& e) {
    const py::object type = py::module_::import("gg_runtime.errors").attr("CudaError");
    PyErr_SetObject(type.ptr(), type(e.what(), e.call, e.code, e.name).ptr());
  }
}

}  // namespace

PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  py::register_exception_translator(translate);
  m.def("group_gemm", &gg::group_gemm, py::arg("group_A"), py::arg("group_B"), py::arg("out") = py::none());
  m.def("explain", &gg::explain);
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
  py::class_<gg::Plan>(m, "Plan")
      .def(py::init<py::handle, py::handle, py::handle, const std::string&>())
      .def("run", &gg::Plan::run)
      .def_property_readonly("out", &gg::Plan::out)
      .def_property_readonly("on_cpu", &gg::Plan::on_cpu)
      .def_property_readonly("variant", &gg::Plan::variant)
      .def_property_readonly("grid", &gg::Plan::grid)
      .def_property_readonly("slots", &gg::Plan::slots)
      .def_property_readonly("by_value", &gg::Plan::by_value);
}
