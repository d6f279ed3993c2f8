// Streams that are captured into a CUDA graph.
#pragma once

#include <cstdint>
#include <memory>

#include "driver/driver.hpp"
#include "driver/retired.hpp"

namespace gg {

// The capture that a stream takes part in now.
struct Capture {
  bool active = false;
  uint64_t id = 0;          // unique in the process
  CUgraph graph = nullptr;  // null in a capture that has failed: what is launched into it reports that
};

// Of a stream of the current context.
Capture capture_of(CUstream stream);

// The graph of an active capture, and every graph made from it, owns `object` too.
void keep_with_graph(const Capture& capture, const std::shared_ptr<Retirable>& object);

}  // namespace gg
