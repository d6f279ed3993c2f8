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

ValueError refused(const char* name, py::handle value, const std::string& needed) {
  return ValueError("explain: device has " + std::string(name) + " = " + as_text(value) + ", " + needed);
}

bool is_known(py::handle key) {
  return PyUnicode_Check(key.ptr()) && std::any_of(std::begin(known), std::end(known), [&](const char* name) {
           return PyUnicode_CompareWithASCIIString(key.ptr(), name) == 0;
         });
}

int count(const py::dict& facts, const char* name) {
  if (!facts.contains(name)) {
    throw ValueError(std::string("explain: device lacks \"") + name + "\"; " + needed_and_taken);
  }
  const py::object value = facts[name];
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  const long long number = index ? PyLong_AsLongLong(index.ptr()) : 0;
  if (PyErr_Occurred()) PyErr_Clear();  // no integer, or too large a one
  if (!PyBool_Check(value.ptr()) && number > 0 && number <= INT_MAX) return static_cast<int>(number);
  throw refused(name, value, "a positive int is needed, such as 90 for sm");
}

// 0 where the caller does not say.
double rate(const py::dict& facts, const char* name) {
  if (!facts.contains(name)) return 0;
  const py::object value = facts[name];
  const double number = PyBool_Check(value.ptr()) ? 0 : PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred()) PyErr_Clear();  // no number, or too large a one
  if (number >= least && number <= most) return number;
  throw refused(name, value,
                "a number from 1 to 1000000 is needed, such as 1980 for clock_mhz; leave it out if it is unknown");
}

std::string name_of(const py::dict& facts) {
  if (!facts.contains("name")) return "the device described";
  const py::object value = facts["name"];
  Py_ssize_t bytes = 0;
  const char* text = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &bytes) : nullptr;
  if (PyErr_Occurred()) PyErr_Clear();  // surrogates, which UTF-8 has no bytes for
  std::string name = text ? std::string(text, static_cast<size_t>(bytes)) : std::string();
  if (!name.empty() && name.find('\0') == std::string::npos) return name;
  throw refused("name", value, "a str is needed, such as \"NVIDIA H200\", as the driver names the GPU");
}

}  // namespace

Device described_device(py::handle described) {
  if (!PyDict_Check(described.ptr())) {
    throw TypeError(std::string("explain: device is a ") + Py_TYPE(described.ptr())->tp_name +
                    ", a dict of sm, multiprocessors and shared_bytes_per_block is needed; leave it out to ask about "
                    "the GPU that the matrices are on");
  }
  const auto facts = py::reinterpret_borrow<py::dict>(described);
  for (const auto& fact : facts) {
    if (!is_known(fact.first)) {
      throw ValueError("explain: device has " + as_text(fact.first) + ", which is no fact that is known; " +
                       needed_and_taken);
    }
  }
  Device device{};
  device.ordinal = -1;
  device.sm = count(facts, "sm");
  device.multiprocessors = count(facts, "multiprocessors");
  device.shared_bytes_per_block = count(facts, "shared_bytes_per_block");
  device.name = name_of(facts);
  device.clock_mhz = rate(facts, "clock_mhz");
  device.memory_gb_s = rate(facts, "memory_gb_s");
  compare_with_measured(device);
  return device;
}

}  // namespace gg
