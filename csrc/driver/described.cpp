#include "driver/described.hpp"

#include <algorithm>
#include <climits>
#include <iterator>

#include "driver/error.hpp"
#include "driver/gpus.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr const char* known[] = {"sm", "multiprocessors", "shared_bytes_per_block", "name", "clock_mhz", "memory_gb_s"};
constexpr const char* needed_and_taken =
    "it needs sm, multiprocessors and shared_bytes_per_block, and takes name, clock_mhz and memory_gb_s";

// Of clocks and memory rates: no GPU is outside, and no time that is scaled by them is 0 or infinite.
constexpr double least = 1, most = 1e6;

std::string as_text(py::handle value) { return py::repr(value).cast<std::string>(); }

bool is_known(py::handle key) {
  return PyUnicode_Check(key.ptr()) && std::any_of(std::begin(known), std::end(known), [&](const char* name) {
           return PyUnicode_CompareWithASCIIString(key.ptr(), name) == 0;
         });
}

// What the caller of `function` says.
class Description {
 public:
  Description(py::handle described, const char* function) : function_(function) {
    if (!PyDict_Check(described.ptr())) {
      throw TypeError(function_ + ": device is a " + Py_TYPE(described.ptr())->tp_name +
                      ", a dict of sm, multiprocessors and shared_bytes_per_block is needed; leave it out to ask about "
                      "the GPU that the matrices are on");
    }
    facts_ = py::reinterpret_borrow<py::dict>(described);
    for (const auto& fact : facts_) {
      if (!is_known(fact.first)) {
        throw ValueError(function_ + ": device has " + as_text(fact.first) + ", which is no fact that is known; " +
                         needed_and_taken);
      }
    }
  }

  int count(const char* name) const {
    if (!facts_.contains(name)) throw ValueError(function_ + ": device lacks \"" + name + "\"; " + needed_and_taken);
    const py::object value = facts_[name];
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    const long long number = index ? PyLong_AsLongLong(index.ptr()) : 0;
    if (PyErr_Occurred()) PyErr_Clear();  // no integer, or too large a one
    if (!PyBool_Check(value.ptr()) && number > 0 && number <= INT_MAX) return static_cast<int>(number);
    throw refused(name, value, "a positive int is needed, such as 90 for sm");
  }

  // 0 where the caller does not say.
  double rate(const char* name) const {
    if (!facts_.contains(name)) return 0;
    const py::object value = facts_[name];
    const double number = PyBool_Check(value.ptr()) ? 0 : PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred()) PyErr_Clear();  // no number, or too large a one
    if (number >= least && number <= most) return number;
    throw refused(name, value,
                  "a number from 1 to 1000000 is needed, such as 1980 for clock_mhz; leave it out if it is unknown");
  }

  std::string name() const {
    if (!facts_.contains("name")) return "the device described";
    const py::object value = facts_["name"];
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &bytes) : nullptr;
    if (PyErr_Occurred()) PyErr_Clear();  // surrogates, which UTF-8 has no bytes for
    std::string name = text ? std::string(text, static_cast<size_t>(bytes)) : std::string();
    if (!name.empty() && name.find('\0') == std::string::npos) return name;
    throw refused("name", value, "a str is needed, such as \"NVIDIA H200\", as the driver names the GPU");
  }

 private:
  ValueError refused(const char* name, py::handle value, const std::string& needed) const {
    return ValueError(function_ + ": device has " + name + " = " + as_text(value) + ", " + needed);
  }

  std::string function_;
  py::dict facts_;
};

}  // namespace

Device described_device(py::handle described, const char* function) {
  const Description description(described, function);
  Device device{};
  device.ordinal = -1;
  device.sm = description.count("sm");
  device.multiprocessors = description.count("multiprocessors");
  device.shared_bytes_per_block = description.count("shared_bytes_per_block");
  device.name = description.name();
  device.clock_mhz = description.rate("clock_mhz");
  device.memory_gb_s = description.rate("memory_gb_s");
  compare_with_measured(device);
  return device;
}

}  // namespace gg
