#include "driver/retired.hpp"

#include <atomic>

#include "driver/driver.hpp"

namespace gg {
namespace {

std::atomic<Retirable*> retired{nullptr};

}  // namespace

void retire(Retirable* object) noexcept {
  object->next_ = retired.load();
  while (!retired.compare_exchange_weak(object->next_, object)) {
  }
}

void release_retired() noexcept {
  if (!retired.load()) return;
  try {
    const RelaxedCapture relaxed;
    for (bool freed = true; freed;) {  // what is freed may own others
      freed = false;
      Retirable* next = retired.exchange(nullptr);
      while (Retirable* object = next) {
        next = object->next_;
        if (object->in_use()) retire(object);
        else delete object, freed = true;
      }
    }
  } catch (...) {
    // No driver to ask, as in a forked child: everything stays.
  }
}

}  // namespace gg
