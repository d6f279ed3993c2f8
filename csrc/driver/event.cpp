#include "driver/event.hpp"

namespace gg {

Event::Event(Kind kind) : kind_(kind) {
  const unsigned flags = kind == Kind::plain ? CU_EVENT_DISABLE_TIMING : 0;
  driver().check(driver().cuEventCreate(&event_, flags), "cuEventCreate");
}

Event::~Event() {
  try {
    driver().cuEventDestroy_v2(event_);
  } catch (...) {
    // A forked child has no driver, and the event is not its own.
  }
}

void Event::record(CUstream stream) { driver().check(driver().cuEventRecord(event_, stream), "cuEventRecord"); }

void Event::record_in_replays(CUstream stream) {
  driver().check(driver().cuEventRecordWithFlags(event_, stream, CU_EVENT_RECORD_EXTERNAL), "cuEventRecordWithFlags");
}

Event::State Event::state() const {
  CUresult code = CUDA_SUCCESS;
  if (kind_ == Kind::recorded_by_graph) {
    float milliseconds = 0;
    code = driver().cuEventElapsedTime(&milliseconds, event_, event_);
    if (code == CUDA_ERROR_INVALID_HANDLE) return State::never_recorded;
  } else {
    code = driver().cuEventQuery(event_);
  }
  return code == CUDA_SUCCESS || nothing_runs_after(code) ? State::done : State::pending;
}

void Event::order_before(CUstream stream, bool in_replays) const {
  driver().check(driver().cuStreamWaitEvent(stream, event_, in_replays ? CU_EVENT_WAIT_EXTERNAL : 0),
                 "cuStreamWaitEvent");
}

}  // namespace gg
