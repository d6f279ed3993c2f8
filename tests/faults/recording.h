/* What every function of fake_cuda.c does besides its own work: reads settings, records its call, fails on demand. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_line = 128 * 1024 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int setting(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

/* The setting of one device from "90,80"; the last value holds for all that follow. */
static int device_setting(const char *name, int device, int otherwise) {
  const char *text = getenv(name);
  if (!text || !*text) return otherwise;
  while (device-- > 0 && strchr(text, ',')) text = strchr(text, ',') + 1;
  return atoi(text);
}

/* One line a call. */
static void record(const char *format, ...) {
  static _Thread_local char line[max_line];
  const char *path = getenv("FAKE_CUDA_LOG");
  if (!path) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&mutex);
  FILE *log = fopen(path, "a");
  if (log) fprintf(log, "%s\n", line);
  if (log) fclose(log);
  pthread_mutex_unlock(&mutex);
}

/* Each fault of FAKE_CUDA_FAIL, counted down by calls of its function. */
static CUresult fault(const char *function) {
  static struct { char function[64]; int code, times; } faults[16];
  static int count = -1;
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&mutex);
  if (count < 0) {
    const char *text = getenv("FAKE_CUDA_FAIL");
    for (count = 0; text && count < 16; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL)
      count += sscanf(text, "%63[^:]:%d:%d", faults[count].function, &faults[count].code, &faults[count].times) == 3;
  }
  for (int i = 0; i < count && code == CUDA_SUCCESS; i++)
    if (!strcmp(faults[i].function, function) && faults[i].times > 0) faults[i].times--, code = faults[i].code;
  pthread_mutex_unlock(&mutex);
  if (code != CUDA_SUCCESS) record("{\"call\": \"%s\", \"failed\": %d}", function, code);
  return code;
}

#define FAULT_POINT()                              \
  do {                                             \
    const CUresult injected = fault(__func__);     \
    if (injected != CUDA_SUCCESS) return injected; \
  } while (0)
