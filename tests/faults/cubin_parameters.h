/* Where a cubin has its kernel's parameters: as NVIDIA's driver finds them, in section .nv.info.SYMBOL. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { kparam_info = 0x17, sized_record = 4 }; /* of .nv.info: EIATTR_KPARAM_INFO, and a value with as many bytes */

static uint64_t read_number(const unsigned char* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << 8 * i;
  return value;
}

/* The section of that name, or NULL. */
static const unsigned char* section_named(const unsigned char* image, const char* name, uint64_t* bytes) {
  const unsigned char* headers = image + read_number(image + 40, 8);
  const uint64_t header_bytes = read_number(image + 58, 2), count = read_number(image + 60, 2);
  const unsigned char* of_names = headers + header_bytes * read_number(image + 62, 2);
  const char* names = (const char*)image + read_number(of_names + 24, 8);
  for (uint64_t i = 0; i < count; i++) {
    const unsigned char* header = headers + header_bytes * i;
    if (strcmp(names + read_number(header, 4), name)) continue;
    *bytes = read_number(header + 32, 8);
    return image + read_number(header + 24, 8);
  }
  return NULL;
}

/* Whether the kernel has a parameter of that number; then its place in the launch buffer, in bytes. */
static int cubin_parameter(const unsigned char* image, const char* symbol, size_t number, size_t* offset,
                           size_t* size) {
  char name[128];
  uint64_t bytes = 0;
  snprintf(name, sizeof name, ".nv.info.%s", symbol);
  const unsigned char* records = section_named(image, name, &bytes);
  for (uint64_t at = 0; records && at + 4 <= bytes;) {
    const unsigned char* record = records + at;
    const int is_sized = record[0] == sized_record;
    at += 4 + (is_sized ? read_number(record + 2, 2) : 0);
    /* index, 16 bits each of ordinal and offset, and the size in the upper 14 bits of a word */
    if (!is_sized || record[1] != kparam_info || read_number(record + 8, 2) != number) continue;
    *offset = read_number(record + 10, 2), *size = read_number(record + 12, 4) >> 18;
    return 1;
  }
  return 0;
}
