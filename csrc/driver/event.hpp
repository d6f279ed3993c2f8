// CUDA events.
#pragma once

#include "driver/driver.hpp"
#include "driver/retired.hpp"

namespace gg {

// Made in the current context.
class Event final : public Retirable {
 public:
  enum class Kind {
    plain,
    recorded_by_graph,  // keeps a time, by which the driver tells an event that was never recorded from a finished one
  };
  enum class State { never_recorded, pending, done };  // never_recorded: of the kind recorded_by_graph alone

  explicit Event(Kind kind);
  ~Event() override;
  bool in_use() const override { return false; }  // the driver frees it after the work that it is for

  // Behind what the stream has been given.
  void record(CUstream stream);

  // Each replay of the graph that `stream` is captured into records it.
  void record_in_replays(CUstream stream);

  // Asked in a relaxed capture mode. Where the driver does not answer, the event counts as pending; in a context that
  // is in error or gone, where nothing runs any more, as done.
  State state() const;

  // What the stream is given from now on waits for the event; from a capture on, what its replays do.
  void order_before(CUstream stream, bool in_replays) const;

 private:
  CUevent event_ = nullptr;
  Kind kind_;
};

}  // namespace gg
