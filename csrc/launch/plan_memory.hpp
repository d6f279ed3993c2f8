// The device memory of a Plan, or of a call: when it may be read, and when it may be used for something else.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <vector>

#include "driver/capture.hpp"
#include "driver/event.hpp"

namespace gg {

// As cuStreamGetId tells it: no two streams of a process ever have the same. 0: none, as of a stream that is captured,
// which cannot be asked.
using StreamId = uint64_t;

// The list that was uploaded for a Plan, and the scratch memory of its kernel. The framework that allocated the memory
// hands it out in the order of the stream that was current then: it may still be in use by earlier work on that stream,
// and later work gets it as soon as its owners are released. Launches on that stream need no more. For those on other
// streams, and for those that a graph repeats:
//   - they wait for what the stream had been given when the Plan was made, the upload included, unless that is known to
//     be done;
//   - the memory is kept until they are done, and by every graph that holds one.
class PlanMemory final : public Retirable {
 public:
  // `stream` has been given the upload, if there is a list to upload; where that is captured, keep_call_memory has kept
  // the memory with the graph. `pools_captures`: as Framework has it. The device's context is current here and below.
  PlanMemory(std::vector<pybind11::object> owners, bool has_upload, bool pools_captures, CUstream stream);

  bool in_use() const override;

  // To be called before and after a launch that reads the memory is given to the stream. Throws RuntimeError where the
  // upload is part of a graph that has not been replayed yet. `self` is what this object is shared by.
  StreamId before_launch(CUstream stream, const std::shared_ptr<PlanMemory>& self);
  void after_launch(CUstream stream, StreamId foreign);

 private:
  struct Run {
    StreamId stream;
    std::unique_ptr<Event> done;  // made before the launch, so that none is given to the stream without it
    int launching = 0;            // launches between before_launch and after_launch
  };

  void wait_until_ready(CUstream stream, const Capture& capture);
  Run& run_on(StreamId stream);

  std::mutex mutex_;
  std::vector<pybind11::object> owners_;
  CUstream made_on_;
  StreamId made_on_id_ = 0;
  uint64_t made_in_ = 0;  // the capture's id, or 0
  bool has_upload_, pools_captures_;
  bool is_ready_ = false;                   // known to be, for ever
  std::shared_ptr<Event> ready_;            // by the stream; within the capture, if the Plan was made in one
  std::shared_ptr<Event> ready_in_replay_;  // by the last replay of that capture's graph
  std::vector<Run> runs_;                   // the last launch on each other stream
};

// Calls `launches`, which gives the stream launches that read the memory, if there is any. Within launch_in_order: a
// full stream may keep the driver waiting, for a host function that needs the GIL.
template <typename Launches>
void launch_with(const std::shared_ptr<PlanMemory>& memory, CUstream stream, const Launches& launches) {
  if (!memory) return launches();
  const StreamId foreign = memory->before_launch(stream, memory);
  try {
    launches();
  } catch (...) {
    memory->after_launch(stream, foreign);  // the first of several may have been given to the stream
    throw;
  }
  memory->after_launch(stream, foreign);
}

// For owners of memory that the launches of one call on the stream will read, before these: where they are captured,
// the graph keeps the memory, unless the framework has pools for captures. Also of a call that fails half-way.
void keep_call_memory(const std::vector<pybind11::object>& owners, bool pools_captures, const Device& device,
                      CUstream stream);

}  // namespace gg
