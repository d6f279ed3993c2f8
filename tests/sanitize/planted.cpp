// Mistakes that AddressSanitizer and UndefinedBehaviorSanitizer must report, for ctypes.
#include <cstdlib>

#pragma GCC visibility push(default)
extern "C" {

int read_past_the_end(int count) {
  int* volatile values = static_cast<int*>(std::calloc(static_cast<size_t>(count), sizeof(int)));
  const int past = values[count];
  std::free(values);
  return past;
}

int read_after_free(int count) {
  int* volatile values = static_cast<int*>(std::calloc(static_cast<size_t>(count), sizeof(int)));
  std::free(values);
  return values[0];
}

int overflow(int value) { return value + 1; }
}
