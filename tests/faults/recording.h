/* What every function of fake_cuda.c does besides its own work: reads settings, records its call, fails on demand. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { max_line = 128 * 1024 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int setting(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

/* The setting of one device from "90,80"; the last value holds for all that follow. */
static int device_setting(const char* name, int device, int otherwise) {
  const char* text = getenv(name);
  if (!text || !*text) return otherwise;
  while (device-- > 0 && strchr(text, ',')) text = strchr(text, ',') + 1;
  return atoi(text);
}

static void wait_ms(int milliseconds) {
  if (milliseconds <= 0) return;
  struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  while (nanosleep(&left, &left) != 0) { /* a signal does not end what a GPU takes its time for */
  }
}

/* "function:milliseconds", more after commas. */
static int slowness(const char* function) {
  const char* text = getenv("FAKE_CUDA_SLOW");
  const char* found = text ? strstr(text, function) : NULL;
  return found && found[strlen(function)] == ':' ? atoi(found + strlen(function) + 1) : 0;
}

/* Where calls are recorded; NULL: nowhere. */
static const char* log_path(void) {
  const char* path = getenv("FAKE_CUDA_LOG");
  return path && *path ? path : NULL;
}

/* One line a call, in one write: forked children append to the same file. */
static void record(const char* format, ...) {
  static _Thread_local char line[max_line];
  const char* path = log_path();
  if (!path) return;
  va_list arguments;
  va_start(arguments, format);
  int bytes = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (bytes < 0 || bytes > max_line - 2) abort();
  line[bytes++] = '\n';
  pthread_mutex_lock(&mutex);
  const int log = open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
  if (log >= 0 && write(log, line, (size_t)bytes) != bytes) abort();
  if (log >= 0) close(log);
  pthread_mutex_unlock(&mutex);
}

/* Each fault of FAKE_CUDA_FAIL, counted down by calls of its function. */
static CUresult fault(const char* function) {
  static struct {
    char function[64];
    int code, times;
  } faults[16];
  static int count = -1;
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&mutex);
  if (count < 0) {
    const char* text = getenv("FAKE_CUDA_FAIL");
    for (count = 0; text && count < 16; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL)
      count += sscanf(text, "%63[^:]:%d:%d", faults[count].function, &faults[count].code, &faults[count].times) == 3;
  }
  for (int i = 0; i < count && code == CUDA_SUCCESS; i++)
    if (!strcmp(faults[i].function, function) && faults[i].times > 0) faults[i].times--, code = faults[i].code;
  pthread_mutex_unlock(&mutex);
  if (code != CUDA_SUCCESS) record("{\"call\": \"%s\", \"failed\": %d}", function, code);
  return code;
}

/* What the context reports from now on, as after a kernel that faulted; scripts call it by ctypes. */
static CUresult broken = CUDA_SUCCESS;
void fake_cuda_break_context(CUresult code) { __atomic_store_n(&broken, code, __ATOMIC_SEQ_CST); }

static CUresult context_fault(const char* function) {
  static const char* const tell[] = {"cuLaunch", "cuStream", "cuEvent", "cuKernelGet", "cuLibraryLoad", "cuOccupancy"};
  for (size_t i = 0; i < sizeof tell / sizeof *tell; i++)
    if (!strncmp(function, tell[i], strlen(tell[i]))) return __atomic_load_n(&broken, __ATOMIC_SEQ_CST);
  return CUDA_SUCCESS;
}

/* The driver shuts down in a handler of exit() that cuInit registers. What calls it later is recorded as such. */
static int has_shut_down;
static void shut_down(void) { has_shut_down = 1; }
static void shut_down_at_exit(void) { atexit(shut_down); }

/* FAKE_CUDA_FAIL_NTH, "number:code": the only call of all, counted from 1, that fails. cuKernelGetParamInfo is not
   counted: it is asked for each of some hundred parameters. */
static CUresult fault_of_the_nth(const char* function) {
  static int calls;
  if (!strcmp(function, "cuKernelGetParamInfo")) return CUDA_SUCCESS;
  const int number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  const char* text = getenv("FAKE_CUDA_FAIL_NTH");
  if (!text || atoi(text) != number) return CUDA_SUCCESS;
  const CUresult code = atoi(strchr(text, ':') + 1);
  record("{\"call\": \"%s\", \"failed\": %d}", function, code);
  return code;
}

static CUresult what_goes_wrong(const char* function) {
  if (has_shut_down) {
    record("{\"call\": \"%s\", \"after_exit\": true}", function);
    return CUDA_ERROR_DEINITIALIZED;
  }
  wait_ms(slowness(function));
  CUresult injected = fault(function);
  if (injected == CUDA_SUCCESS) injected = fault_of_the_nth(function);
  return injected != CUDA_SUCCESS ? injected : context_fault(function);
}

#define FAULT_POINT()                                 \
  do {                                                \
    const CUresult wrong = what_goes_wrong(__func__); \
    if (wrong != CUDA_SUCCESS) return wrong;          \
  } while (0)
