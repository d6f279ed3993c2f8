// Arrays of any framework in, one plain struct out: DLPack's C exchange API, else attributes, else protocols.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/artifact.h"

namespace gg {

enum class DeviceType { cpu, cuda, other };

// A view of an array: nothing owned, valid while the Python object lives and is not resized.
struct Tensor {
  uint64_t data;  // address of the first element
  DeviceType device_type;
  int device;  // CUDA ordinal; 0 on the CPU
  int rank;
  int64_t shape[3];     // of the first three dimensions; those past `rank` are 1
  int64_t stride[3];    // in elements
  gg_dtype dtype;       // GG_ANY_DTYPE where the array's dtype is not one of gg_dtype
  char dtype_name[16];  // the array's own dtype in words ("int32")
  bool read_only = false;
};

inline bool is_empty(const Tensor& t) { return t.shape[0] == 0 || t.shape[1] == 0 || t.shape[2] == 0; }

using Shapes = std::vector<std::pair<int64_t, int64_t>>;

// How arrays of one Python type are read, and how outputs and scratch of the same framework are made. One object for
// each type, made at its first use and kept with a reference to the type.
class Framework {
 public:
  virtual ~Framework() = default;

  // Reads an array. `what` and `index` name it in messages: "A" and 3 make "A[3]". Throws TypeError for an object that
  // is no array or has no memory.
  virtual Tensor view(pybind11::handle array, const char* what, int index) const = 0;

  // The stream that work on this array, which is on CUDA device `device`, belongs on now; asked at each call, never
  // kept. Arrays of one call have to be ordered on the stream of the first.
  virtual CUstream current_stream(pybind11::handle array, int device) const = 0;

  // Whether the framework cannot see work on that stream (JAX): view has ordered what is pending before it, and who
  // launches must wait for it before an output or scratch memory goes back to the framework.
  virtual bool synchronous() const = 0;

  // Whether its arrays must not change (JAX): none may be an output again.
  virtual bool immutable() const { return false; }

  // New row-major outputs [rows, columns] of a dtype on the device of `like`, each on 16 bytes. Those of a torch list
  // may share one block of memory, which lives as long as any of them. Throws TypeError where no way to make them is
  // known.
  virtual std::vector<pybind11::object> empty(pybind11::handle like, gg_dtype dtype, const Shapes& shapes) const = 0;

  // A new stack of row-major matrices, one behind the other; else as `empty`.
  virtual pybind11::object empty_stack(pybind11::handle like, gg_dtype dtype, int64_t groups, int64_t rows,
                                       int64_t columns) const = 0;

  // A new row-major int32 array on the device of `like`. Throws TypeError as `empty` does.
  virtual pybind11::object empty_int32(pybind11::handle like, const std::vector<int64_t>& shape) const = 0;

  // Device memory of the framework's allocator on the device of `like`; `address` is aligned to 128 bytes. The object
  // returned owns it; memory freed on the current stream is reused in its order. Throws TypeError as `empty` does.
  virtual pybind11::object scratch(pybind11::handle like, size_t bytes, uint64_t* address) const = 0;

  // Whether memory that is freed during a capture is handed out again to that capture alone, as torch does. Else a
  // replay would write over what has the memory by then.
  virtual bool pools_captures() const { return false; }

  // Whether operations are recorded for gradients now, and whether one on this array would be.
  virtual bool records_gradients() const { return false; }
  virtual bool requires_grad(pybind11::handle) const { return false; }
  // Whether operations carry tangents along now, as torch's forward-mode differentiation does, and whether this array
  // has one.
  virtual bool in_forward_mode() const { return false; }
  virtual bool has_tangent(pybind11::handle) const { return false; }
  // Whether arrays may be tracers of a function that the framework transforms now: torch.func's grad, vmap and others.
  virtual bool transforms_functions() const { return false; }

  // Whether operations are written down now, to be repeated without this code: torch.jit.trace.
  virtual bool is_traced() const { return false; }

  // Whether arrays of this type stand for others, which the framework alone finds: torch's FakeTensor and DTensor.
  virtual bool stands_for_others() const { return false; }
};

// "a list", "an int", "None": what was passed in place of something else.
std::string kind_of(pybind11::handle object);

// The framework of the array's type. Throws TypeError naming `what` when the object follows no protocol that is known.
const Framework& framework_of(pybind11::handle array, const char* what, int index);

}  // namespace gg
