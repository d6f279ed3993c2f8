// Instructions on registers alone.
#include <algorithm>

#include "cta.hpp"

namespace emulator {
namespace {

// The value of each of a register's elements, as float32.
float element(uint64_t bits, const Type& type) {
  switch (type.kind) {
    case 'h':
    case 'y':
      return bf16(bits);
    case 'e':
      return e4m3(bits);
    case 'g':
      return e5m2(bits);
    default:
      return type.bits / type.count == 16 ? f16(bits) : f32(bits);
  }
}

uint64_t rounded(float value, const Type& type) {
  switch (type.kind) {
    case 'h':
    case 'y':
      return to_bf16(value);
    case 'e':
      return to_e4m3(value);
    case 'g':
      throw Fault("rounding to e5m2 is not emulated");
    default:
      return type.bits / type.count == 16 ? to_f16(value) : bits_of(value);
  }
}

// result = f(a, b, c) of each lane, by numbers of up to 64 bits.
template <typename Function>
void on_integers(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes, Function function) {
  const int bits = at.type().bits, result_bits = at.has(Word::wide) ? 2 * bits : bits;
  const bool is_signed = at.type().kind == 's';
  for_lanes(lanes, [&](int lane) {
    uint64_t values[3] = {};
    for (size_t i = 1; i < at.operands.size() && i < 4; i++) {
      values[i - 1] = cta.read(warp, at.operands[i], lane);
      const int own_bits = i == 3 ? result_bits : bits;
      values[i - 1] =
          is_signed ? static_cast<uint64_t>(as_signed(values[i - 1], own_bits)) : low(values[i - 1], own_bits);
    }
    cta.write(warp, at.operands[0], lane, low(function(values[0], values[1], values[2]), result_bits));
  });
}

template <typename Function>
void on_floats(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes, Function function) {
  const Type& type = at.type();
  const int bits = type.bits / type.count;
  for_lanes(lanes, [&](int lane) {
    uint64_t result = 0;
    for (int e = 0; e < type.count; e++) {
      float values[3] = {};
      for (size_t i = 1; i < at.operands.size(); i++) {
        values[i - 1] = element(cta.read(warp, at.operands[i], lane) >> bits * e, type);
      }
      result |= rounded(function(values[0], values[1], values[2]), type) << bits * e;
    }
    cta.write(warp, at.operands[0], lane, result);
  });
}

bool on_whole_numbers(const Instruction& at) {
  const char kind = at.type().kind;
  return kind == 'b' || kind == 'u' || kind == 's';
}

void add(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!on_whole_numbers(at)) return on_floats(cta, warp, at, lanes, [](float a, float b, float) { return a + b; });
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t b, uint64_t) { return a + b; });
}

void sub(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!on_whole_numbers(at)) return on_floats(cta, warp, at, lanes, [](float a, float b, float) { return a - b; });
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t b, uint64_t) { return a - b; });
}

uint64_t product(const Instruction& at, uint64_t a, uint64_t b) {
  if (!at.has(Word::hi)) return a * b;
  const int bits = at.type().bits;
  if (at.type().kind == 's') {
    const auto whole = static_cast<__int128>(static_cast<int64_t>(a)) * static_cast<int64_t>(b);
    return static_cast<uint64_t>(whole >> bits);
  }
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> bits);
}

void mul(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!on_whole_numbers(at)) return on_floats(cta, warp, at, lanes, [](float a, float b, float) { return a * b; });
  on_integers(cta, warp, at, lanes, [&](uint64_t a, uint64_t b, uint64_t) { return product(at, a, b); });
}

void mad(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!on_whole_numbers(at)) {
    return on_floats(cta, warp, at, lanes, [](float a, float b, float c) { return std::fma(a, b, c); });
  }
  on_integers(cta, warp, at, lanes, [&](uint64_t a, uint64_t b, uint64_t c) { return product(at, a, b) + c; });
}

// By zero all bits are set, and the remainder is the dividend.
void div(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!on_whole_numbers(at)) return on_floats(cta, warp, at, lanes, [](float a, float b, float) { return a / b; });
  const bool is_signed = at.type().kind == 's';
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t b, uint64_t) {
    if (!b) return ~uint64_t{0};
    return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(a) / static_cast<int64_t>(b)) : a / b;
  });
}

void rem(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const bool is_signed = at.type().kind == 's';
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t b, uint64_t) {
    if (!b) return a;
    return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(a) % static_cast<int64_t>(b)) : a % b;
  });
}

template <bool largest>
void extreme(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!on_whole_numbers(at)) {
    const bool keeps_nan = at.has(Word::nan_result);
    return on_floats(cta, warp, at, lanes, [=](float a, float b, float) {
      if (keeps_nan && (a != a || b != b)) return NAN;
      return largest ? std::fmax(a, b) : std::fmin(a, b);
    });
  }
  const bool is_signed = at.type().kind == 's';
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t b, uint64_t) {
    const bool first_is_less = is_signed ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
    return first_is_less == largest ? b : a;
  });
}

void abs(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const uint64_t sign = uint64_t{1} << (at.type().bits - 1);
  if (at.type().is_float()) {
    return on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t, uint64_t) { return a & ~sign; });
  }
  on_integers(cta, warp, at, lanes,
              [](uint64_t a, uint64_t, uint64_t) { return static_cast<int64_t>(a) < 0 ? 0 - a : a; });
}

void neg(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const uint64_t sign = uint64_t{1} << (at.type().bits - 1);
  const bool is_float = at.type().is_float();
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t, uint64_t) { return is_float ? a ^ sign : 0 - a; });
}

void and_(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t b, uint64_t) { return a & b; });
}
void or_(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t b, uint64_t) { return a | b; });
}
void xor_(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t b, uint64_t) { return a ^ b; });
}
void not_(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t, uint64_t) { return ~a; });
}

// Counts are of 32 bits, whatever the values.
void shl(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const auto bits = static_cast<uint32_t>(at.type().bits);
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t b, uint64_t) {
    const auto count = static_cast<uint32_t>(b);
    return count >= bits ? 0 : a << count;
  });
}

void shr(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const bool is_signed = at.type().kind == 's';
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t b, uint64_t) {
    const auto count = std::min(static_cast<uint32_t>(b), 64u);
    if (is_signed) return static_cast<uint64_t>(static_cast<int64_t>(a) >> std::min(count, 63u));
    return count == 64 ? 0 : a >> count;
  });
}

// `length` bits from `start` on; beyond the end of a signed number its sign goes on.
void bfe(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const int bits = at.type().bits;
  const bool is_signed = at.type().kind == 's';
  on_integers(cta, warp, at, lanes, [=](uint64_t a, uint64_t b, uint64_t c) {
    const int start = static_cast<int>(b & 255), length = static_cast<int>(c & 255);
    if (!length) return uint64_t{0};
    if (!is_signed) return start >= bits ? 0 : low(low(a, bits) >> start, length);
    const int64_t shifted = static_cast<int64_t>(a) >> std::min(start, 63);
    return static_cast<uint64_t>(as_signed(static_cast<uint64_t>(shifted), std::min(length, 64)));
  });
}

// Any four of the eight bytes of a and b; bit 3 of a choice takes the byte's sign instead.
void prmt(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t b, uint64_t choices) {
    const uint64_t bytes = low(a, 32) | b << 32;
    uint64_t result = 0;
    for (int i = 0; i < 4; i++) {
      const uint64_t choice = choices >> 4 * i & 15, byte = bytes >> 8 * (choice & 7) & 255;
      result |= (choice & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return result;
  });
}

void popc(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_integers(cta, warp, at, lanes, [](uint64_t a, uint64_t, uint64_t) { return __builtin_popcountll(a); });
}

void selp(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const bool first = cta.read(warp, at.operands[3], lane) & 1;
    const uint64_t value = cta.read(warp, at.operands[first ? 1 : 2], lane);
    cta.write(warp, at.operands[0], lane, low(value, at.type().bits));
  });
}

// eq and the like are false of NaN, equ and the like are true.
template <typename Value>
bool compare(const Instruction& at, Value a, Value b) {
  const bool unordered = a != a || b != b;
  if (at.has(Word::nan)) return unordered;
  if (at.has(Word::num)) return !unordered;
  if (at.has(Word::equ)) return unordered || a == b;
  if (at.has(Word::neu)) return unordered || a != b;
  if (at.has(Word::ltu)) return unordered || a < b;
  if (at.has(Word::leu)) return unordered || a <= b;
  if (at.has(Word::gtu)) return unordered || a > b;
  if (at.has(Word::geu)) return unordered || a >= b;
  if (unordered) return false;
  if (at.has(Word::eq)) return a == b;
  if (at.has(Word::ne)) return a != b;
  if (at.has(Word::lt)) return a < b;
  if (at.has(Word::le)) return a <= b;
  if (at.has(Word::gt)) return a > b;
  if (at.has(Word::ge)) return a >= b;
  throw Fault("an unknown comparison");
}

void setp(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const Type& type = at.type();
  const size_t first = at.two_results ? 2 : 1;
  for_lanes(lanes, [&](int lane) {
    const uint64_t a = cta.read(warp, at.operands[first], lane), b = cta.read(warp, at.operands[first + 1], lane);
    bool result = false;
    if (type.is_float()) {
      result = compare(at, element(a, type), element(b, type));
    } else if (type.kind == 's') {
      result = compare(at, as_signed(a, type.bits), as_signed(b, type.bits));
    } else {
      result = compare(at, low(a, type.bits), low(b, type.bits));
    }
    if (at.operands.size() > first + 2) {
      const bool other = cta.read(warp, at.operands[first + 2], lane) & 1;
      result = at.has(Word::and_) ? result && other : at.has(Word::or_) ? result || other : result != other;
    }
    cta.write(warp, at.operands[0], lane, result);
    if (at.two_results) cta.write(warp, at.operands[1], lane, !result);
  });
}

void ex2(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_floats(cta, warp, at, lanes, [](float a, float, float) { return std::exp2(a); });
}
void lg2(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_floats(cta, warp, at, lanes, [](float a, float, float) { return std::log2(a); });
}
void rcp(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_floats(cta, warp, at, lanes, [](float a, float, float) { return 1 / a; });
}
void sqrt(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_floats(cta, warp, at, lanes, [](float a, float, float) { return std::sqrt(a); });
}
void rsqrt(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_floats(cta, warp, at, lanes, [](float a, float, float) { return 1 / std::sqrt(a); });
}
void tanh(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  on_floats(cta, warp, at, lanes, [](float a, float, float) { return std::tanh(a); });
}

float whole(const Instruction& at, float value) {
  if (at.has(Word::rni)) return std::nearbyint(value);
  if (at.has(Word::rmi)) return std::floor(value);
  if (at.has(Word::rpi)) return std::ceil(value);
  return std::trunc(value);
}

uint64_t float_to_integer(float value, const Type& to) {
  if (value != value) return 0;
  const double least = to.kind == 's' ? -std::ldexp(1.0, to.bits - 1) : 0;
  const double beyond = std::ldexp(1.0, to.kind == 's' ? to.bits - 1 : to.bits);
  if (value <= least) return low(static_cast<uint64_t>(static_cast<int64_t>(least)), to.bits);
  if (value >= beyond) return low(to.kind == 's' ? (uint64_t{1} << (to.bits - 1)) - 1 : ~uint64_t{0}, to.bits);
  return low(to.kind == 's' ? static_cast<uint64_t>(static_cast<int64_t>(value)) : static_cast<uint64_t>(value),
             to.bits);
}

uint64_t converted(const Instruction& at, uint64_t bits, const Type& to, const Type& from) {
  const bool rounds = at.has(Word::rni) || at.has(Word::rzi) || at.has(Word::rmi) || at.has(Word::rpi);
  if (from.is_float()) {
    const float value = element(bits, from);
    if (to.is_float()) return rounded(rounds ? whole(at, value) : value, to);
    return float_to_integer(whole(at, value), to);
  }
  const uint64_t value = from.kind == 's' ? static_cast<uint64_t>(as_signed(bits, from.bits)) : low(bits, from.bits);
  if (!to.is_float()) return low(value, to.bits);
  return rounded(from.kind == 's' ? static_cast<float>(static_cast<int64_t>(value)) : static_cast<float>(value), to);
}

// Of a pair the first source is the high one.
void cvt(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const Type &to = at.types.at(0), &from = at.types.at(1);
  for_lanes(lanes, [&](int lane) {
    uint64_t result = 0;
    if (to.count == 2) {
      const bool from_pair = from.count == 2;
      const int to_bits = to.bits / 2, from_bits = from.bits / 2;
      for (int e = 0; e < 2; e++) {
        const uint64_t source = cta.read(warp, at.operands[from_pair ? 1 : 2 - e], lane);
        result |= rounded(element(from_pair ? low(source >> from_bits * e, from_bits) : source, from), to)
                  << to_bits * e;
      }
    } else {
      result = converted(at, cta.read(warp, at.operands[1], lane), to, from);
    }
    cta.write(warp, at.operands[0], lane, result);
  });
}

void mov(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const Operand &to = at.operands[0], &from = at.operands[1];
  const int bits = at.type().bits;
  for_lanes(lanes, [&](int lane) {
    uint64_t value = 0;
    if (from.kind == Operand::list) {
      const int each = bits / static_cast<int>(from.parts.size());
      for (size_t i = from.parts.size(); i-- > 0;)
        value = value << each | low(cta.read(warp, from.parts[i], lane), each);
    } else {
      value = low(cta.read(warp, from, lane), bits);
    }
    if (to.kind != Operand::list) return cta.write(warp, to, lane, value);
    const int each = bits / static_cast<int>(to.parts.size());
    for (const Operand& part : to.parts) {
      cta.write(warp, part, lane, low(value, each));
      value >>= each;
    }
  });
}

// Addresses of parameters are generic ones as they are.
void cvta(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) { cta.write(warp, at.operands[0], lane, cta.read(warp, at.operands[1], lane)); });
}

}  // namespace

const Executors& arithmetic() {
  static const Executors table = {
      {"abs", abs},
      {"add", add},
      {"and", and_},
      {"bfe", bfe},
      {"cvt", cvt},
      {"cvta", cvta},
      {"div", div},
      {"ex2", ex2},
      {"fma", mad},
      {"lg2", lg2},
      {"mad", mad},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"mov", mov},
      {"mul", mul},
      {"neg", neg},
      {"not", not_},
      {"or", or_},
      {"popc", popc},
      {"prmt", prmt},
      {"rcp", rcp},
      {"rem", rem},
      {"rsqrt", rsqrt},
      {"selp", selp},
      {"setp", setp},
      {"shl", shl},
      {"shr", shr},
      {"sqrt", sqrt},
      {"sub", sub},
      {"tanh", tanh},
      {"xor", xor_},
  };
  return table;
}

}  // namespace emulator
