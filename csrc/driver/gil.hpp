// Python's lock, given up while the driver works.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace gg {

// For a thread that Python ends at exit: it stays where it is until the process has ended.
[[noreturn]] inline void wait_for_exit() {
  for (;;) pause();
}

// Gives the GIL up for a scope. Where the interpreter is shutting down, a daemon thread does not get it back: before
// 3.14 Python ends the thread by pthread_exit, whose unwinding a destructor does not let through, so that the whole
// process would abort (pybind11's gil_scoped_release does). Here the thread stays where it is until the process has
// ended, which is what Python 3.14 does.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      wait_for_exit();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace gg
