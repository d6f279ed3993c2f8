#include "launch/plan_memory.hpp"

#include <algorithm>

#include "driver/error.hpp"
#include "driver/gil.hpp"

namespace gg {
namespace {

// Not for a stream that is captured: asking would end the capture in error.
StreamId id_of(CUstream stream) {
  unsigned long long id = 0;
  driver().check(driver().cuStreamGetId(stream, &id), "cuStreamGetId");
  return id;
}

Event::State state_of(const Event& event) {
  const RelaxedCapture relaxed;
  return event.state();
}

// What one call allocated, for the graph that repeats it.
class CallMemory final : public Retirable {
 public:
  explicit CallMemory(std::vector<pybind11::object> owners) : owners_(std::move(owners)) {}
  bool in_use() const override { return false; }

 private:
  std::vector<pybind11::object> owners_;
};

}  // namespace

void keep_call_memory(const std::vector<pybind11::object>& owners, bool pools_captures, const Device& device,
                      CUstream stream) {
  if (owners.empty() || pools_captures) return;
  release_retired();
  const CurrentContext current(device);
  const Capture capture = capture_of(stream);
  if (capture.active) keep_with_graph(capture, make_retirable<CallMemory>(owners));
}

PlanMemory::PlanMemory(std::vector<pybind11::object> owners, bool has_upload, bool pools_captures, CUstream stream)
    : owners_(std::move(owners)),
      made_on_(stream),
      has_upload_(has_upload),
      pools_captures_(pools_captures) {
  const Capture capture = capture_of(stream);
  (capture.active ? made_in_ : made_on_id_) = capture.active ? capture.id : id_of(stream);
  ready_ = make_retirable<Event>(Event::Kind::plain);
  if (capture.active) ready_in_replay_ = make_retirable<Event>(Event::Kind::recorded_by_graph);
  {
    const WithoutGil unlocked;  // as in launch_with: the stream may be full behind a host function, which needs it
    ready_->record(stream);
    if (capture.active) ready_in_replay_->record_in_replays(stream);
  }
  if (capture.active) keep_with_graph(capture, ready_in_replay_);
}

bool PlanMemory::in_use() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const Run& run) { return run.done->state() == Event::State::pending; });
}

StreamId PlanMemory::before_launch(CUstream stream, const std::shared_ptr<PlanMemory>& self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Capture capture = capture_of(stream);
  if (capture.active && capture.id == made_in_) {
    if (stream != made_on_) ready_->order_before(stream, false);
    // A pool hands memory out in the order of the stream that it was made on: other branches do not follow that.
    if (!pools_captures_ || stream != made_on_) keep_with_graph(capture, self);
    return 0;
  }
  const StreamId id = capture.active ? 0 : id_of(stream);
  const bool on_own_stream = id != 0 && id == made_on_id_;
  if (!is_ready_ && !on_own_stream) wait_until_ready(stream, capture);
  if (capture.active) keep_with_graph(capture, self);
  if (capture.active || on_own_stream) return 0;
  run_on(id).launching++;
  return id;
}

// The last launch on the stream. A stream that had none gets an entry.
PlanMemory::Run& PlanMemory::run_on(StreamId stream) {
  const auto known = std::find_if(runs_.begin(), runs_.end(), [&](const Run& run) { return run.stream == stream; });
  if (known != runs_.end()) return *known;
  const RelaxedCapture relaxed;
  const auto is_done = [](const Run& run) { return run.launching == 0 && run.done->state() == Event::State::done; };
  runs_.erase(std::remove_if(runs_.begin(), runs_.end(), is_done), runs_.end());
  runs_.push_back({stream, std::make_unique<Event>(Event::Kind::plain)});
  return runs_.back();
}

void PlanMemory::wait_until_ready(CUstream stream, const Capture& capture) {
  const Event& ready = made_in_ ? *ready_in_replay_ : *ready_;
  const Event::State state = state_of(ready);
  if (state == Event::State::never_recorded) {
    if (!has_upload_) return;  // nothing of a graph has used the memory yet
    throw RuntimeError(
        "Plan: it was made while a CUDA graph was captured, so its list is written when that graph is replayed, which "
        "has not happened yet; replay the graph first, or make the Plan before the capture");
  }
  if (state == Event::State::pending) ready.order_before(stream, capture.active);
  else is_ready_ = made_in_ == 0;  // each replay writes the list again
}

void PlanMemory::after_launch(CUstream stream, StreamId foreign) {
  if (foreign == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Run& run = run_on(foreign);
  run.launching--;
  run.done->record(stream);
}

}  // namespace gg
