// Objects that several owners share, of which any thread may be the last, CUDA graphs among them: a graph lets go of
// what it keeps on a thread of the driver, which may call neither the driver nor Python. So the last owner only puts
// the object into a list, and release_retired() frees it later.
#pragma once

#include <memory>
#include <utility>

namespace gg {

class Retirable {
 public:
  Retirable() = default;
  virtual ~Retirable() = default;
  Retirable(const Retirable&) = delete;
  Retirable& operator=(const Retirable&) = delete;

  // Whether work on a GPU may still need the object though nobody owns it. Asked with the driver at hand, in a relaxed
  // capture mode.
  virtual bool in_use() const = 0;

 private:
  friend void retire(Retirable*) noexcept;
  friend void release_retired() noexcept;
  Retirable* next_ = nullptr;
};

// From any thread, with or without the GIL.
void retire(Retirable* object) noexcept;

template <typename T, typename... Arguments>
std::shared_ptr<T> make_retirable(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), retire);
}

// Frees what was retired and is not in use. With the GIL held. In a forked child it frees nothing.
void release_retired() noexcept;

}  // namespace gg
