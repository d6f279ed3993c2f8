// Number formats of PTX, as bits in the low end of a register.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator {

template <typename To, typename From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float f32(uint64_t bits) { return bits_as<float>(static_cast<uint32_t>(bits)); }
inline uint32_t bits_of(float value) { return bits_as<uint32_t>(value); }

inline float bf16(uint64_t bits) { return f32(bits << 16 & 0xffffffff); }
inline uint16_t to_bf16(float value) {
  if (value != value) return 0x7fff;
  const uint32_t bits = bits_of(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float f16(uint64_t bits) { return static_cast<float>(bits_as<_Float16>(static_cast<uint16_t>(bits))); }
inline uint16_t to_f16(float value) { return bits_as<uint16_t>(static_cast<_Float16>(value)); }

// Formats of 8 bits: `exponent` and `mantissa` bits behind the sign.
inline float eight_bits(unsigned bits, int exponent, int mantissa) {
  const int e = static_cast<int>(bits >> mantissa & ((1u << exponent) - 1)), bias = (1 << (exponent - 1)) - 1;
  const int m = static_cast<int>(bits & ((1u << mantissa) - 1));
  const float magnitude = e ? std::ldexp(1.0f + std::ldexp(static_cast<float>(m), -mantissa), e - bias)
                            : std::ldexp(static_cast<float>(m), 1 - bias - mantissa);
  return bits & 128 ? -magnitude : magnitude;
}

inline float e4m3(uint64_t bits) { return (bits & 127) == 127 ? NAN : eight_bits(bits & 255, 4, 3); }
inline float e5m2(uint64_t bits) {
  if ((bits & 124) != 124) return eight_bits(bits & 255, 5, 2);
  return bits & 3 ? NAN : bits & 128 ? -INFINITY : INFINITY;
}

// To the nearest, ties to even; what is too large becomes the largest.
inline uint8_t to_e4m3(float value) {
  const unsigned sign = std::signbit(value) ? 128 : 0, largest = 0x7e;
  const float magnitude = std::fabs(value);
  if (value != value) return 127;
  unsigned below = 0;
  for (unsigned step = 64; step; step /= 2) {
    if (below + step <= largest && e4m3(below + step) <= magnitude) below += step;
  }
  if (below == largest) return static_cast<uint8_t>(sign | largest);
  const float under = magnitude - e4m3(below), over = e4m3(below + 1) - magnitude;
  return static_cast<uint8_t>(sign | (below + (over < under || (over == under && below % 2))));
}

inline uint64_t low(uint64_t value, int bits) { return bits >= 64 ? value : value & ((uint64_t{1} << bits) - 1); }
inline int64_t as_signed(uint64_t value, int bits) {
  return bits >= 64 ? static_cast<int64_t>(value) : static_cast<int64_t>(value << (64 - bits)) >> (64 - bits);
}

}  // namespace emulator
