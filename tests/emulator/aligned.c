/* Blocks of memory on 512 bytes, as CUDA's allocators give them; torch asks for 64 on the CPU. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

typedef int (*Allocate)(void**, size_t, size_t);

int posix_memalign(void** block, size_t alignment, size_t bytes) {
  static Allocate next;
  if (!next) next = (Allocate)dlsym(RTLD_NEXT, "posix_memalign");
  return next(block, alignment < 512 ? 512 : alignment, bytes);
}
