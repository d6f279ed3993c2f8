// Tensor cores: matrices to and from shared memory, and products of them.
#include "tensor_map.hpp"

namespace emulator {
namespace {

using Floats = std::vector<float>;

float value_of(const uint8_t* bytes, char kind) {
  if (kind == 'e') return e4m3(*bytes);
  if (kind == 'g') return e5m2(*bytes);
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return kind == 'h' ? bf16(bits) : f16(bits);
}

const Operand& part(const Operand& operand, int i) {
  return operand.kind == Operand::list ? operand.parts.at(i) : operand;
}

// 8x8 matrices of 16-bit elements; each lane has two neighbours of a row.
template <bool loads>
void move_matrices(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  need_whole_warp(lanes);
  const Operand &registers = at.operands[loads ? 0 : 1], &place = at.operands[loads ? 1 : 0];
  uint32_t values[4][lanes_of_warp];
  const auto for_elements = [&](int matrix, const auto& act) {
    uint8_t* rows[8];
    for (int row = 0; row < 8; row++) {
      const uint64_t address = cta.address(warp, place, matrix * 8 + row);
      if (address % 16) throw Fault("a row of a matrix that lies on no 16 bytes");
      rows[row] = cta.shared(address, 16);
      cta.touch(warp, address, 16, !loads);
    }
    for (int lane = 0; lane < lanes_of_warp; lane++) {
      for (int e = 0; e < 2; e++) {
        const int row = lane / 4, column = lane % 4 * 2 + e;
        act(lane, e, at.has(Word::trans) ? rows[column] + 2 * row : rows[row] + 2 * column);
      }
    }
  };
  for (int matrix = 0; matrix < at.matrices; matrix++) {
    for (int lane = 0; lane < lanes_of_warp; lane++) {
      values[matrix][lane] = loads ? 0 : static_cast<uint32_t>(cta.read(warp, part(registers, matrix), lane));
    }
    for_elements(matrix, [&](int lane, int e, uint8_t* element) {
      uint16_t bits = static_cast<uint16_t>(values[matrix][lane] >> 16 * e);
      if (loads) {
        std::memcpy(&bits, element, sizeof bits);
        values[matrix][lane] |= static_cast<uint32_t>(bits) << 16 * e;
      } else {
        std::memcpy(element, &bits, sizeof bits);
      }
    });
  }
  if (!loads) return;
  for (int matrix = 0; matrix < at.matrices; matrix++) {
    for (int lane = 0; lane < lanes_of_warp; lane++)
      cta.write(warp, part(registers, matrix), lane, values[matrix][lane]);
  }
}

// What a wgmma descriptor says of an operand in shared memory.
struct Descriptor {
  uint32_t start, leading, stride, row;  // bytes; a row is what is swizzled

  explicit Descriptor(uint64_t bits)
      : start((bits & 0x3fff) << 4),
        leading((bits >> 16 & 0x3fff) << 4),
        stride((bits >> 32 & 0x3fff) << 4),
        row(bits >> 62 == 0 ? 16 : 256u >> (bits >> 62)) {
    if (bits >> 49 & 7) throw Fault("a descriptor with a base offset");
  }

  // Of the 16 bytes that begin at an element; `outer` counts rows or columns, `k` along the sums.
  uint32_t place(uint32_t outer, uint32_t k, uint32_t bytes, bool outer_is_contiguous) const {
    uint32_t offset = 0;
    if (outer_is_contiguous) {
      const uint32_t per_row = row / bytes;
      offset = outer % per_row * bytes + outer / per_row * leading + k % 8 * row + k / 8 * stride;
    } else if (row == 16) {
      offset = outer % 8 * row + outer / 8 * stride + k * bytes / 16 * leading;
    } else {
      offset = outer % 8 * row + outer / 8 * stride + k * bytes;
    }
    return swizzled(start + offset, row);
  }
};

// Calls act(outer, k, place) for each 16 bytes of an operand, from `first` on.
template <typename Act>
void for_operand(const Descriptor& at, int first, int outer, int depth, int bytes, bool outer_is_contiguous, Act act) {
  const int step = outer_is_contiguous ? 16 / bytes : 1, step_k = outer_is_contiguous ? 1 : 16 / bytes;
  for (int k = 0; k < depth; k += step_k) {
    for (int i = 0; i < outer; i += step) act(i, k, at.place(first + i, k, bytes, outer_is_contiguous));
  }
}

// [k][outer], from `first` on.
Floats read_operand(Cta& cta, const Descriptor& at, int first, int outer, int depth, char kind,
                    bool outer_is_contiguous) {
  Floats values(static_cast<size_t>(outer) * depth);
  const int bytes = kind == 'e' || kind == 'g' ? 1 : 2;
  for_operand(at, first, outer, depth, bytes, outer_is_contiguous, [&](int i, int k, uint32_t place) {
    const uint8_t* from = cta.shared(place, 16);
    for (int e = 0; e < 16 / bytes; e++, from += bytes) {
      const int to = outer_is_contiguous ? k * outer + i + e : (k + e) * outer + i;
      values[to] = value_of(from, kind);
    }
  });
  return values;
}

// The same of A in registers: 16 rows, of which a lane has two, and runs of neighbours along K.
Floats read_fragment(const std::vector<std::array<uint32_t, lanes_of_warp>>& registers, int depth, char kind) {
  Floats values(16 * static_cast<size_t>(depth));
  const int bytes = kind == 'e' || kind == 'g' ? 1 : 2, together = 4 / bytes;
  for (size_t i = 0; i < registers.size(); i++) {
    for (int lane = 0; lane < lanes_of_warp; lane++) {
      uint8_t packed[4];
      std::memcpy(packed, &registers[i][lane], sizeof packed);
      const size_t row = lane / 4 + i % 2 * 8, k = lane % 4 * together + i / 2 * together * 4;
      for (int e = 0; e < together; e++) values[(k + e) * 16 + row] = value_of(packed + e * bytes, kind);
    }
  }
  return values;
}

// Where a lane's element `i` of a result with 16 rows lies.
struct ResultPlace {
  int row, column;
  ResultPlace(int lane, int i) : row(lane / 4 + i / 2 % 2 * 8), column(i / 4 * 8 + lane % 4 * 2 + i % 2) {}
};

// [16][columns] of A [k][16] and B [k][columns].
Floats product(const Floats& a, const Floats& b, int columns, int depth) {
  Floats sums(static_cast<size_t>(columns) * 16);
  for (int k = 0; k < depth; k++) {
    for (int row = 0; row < 16; row++) {
      const float factor = a[k * 16 + row];
      for (int column = 0; column < columns; column++) sums[row * columns + column] += factor * b[k * columns + column];
    }
  }
  return sums;
}

void mma(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  need_whole_warp(lanes);
  const auto fragment_of = [&](const Operand& operand) {
    std::vector<std::array<uint32_t, lanes_of_warp>> registers(operand.parts.size());
    for (size_t i = 0; i < registers.size(); i++) {
      for (int lane = 0; lane < lanes_of_warp; lane++) {
        registers[i][lane] = static_cast<uint32_t>(cta.read(warp, operand.parts[i], lane));
      }
    }
    return registers;
  };
  const char kind_a = at.types.at(1).kind, kind_b = at.types.at(2).kind;
  const Floats a = read_fragment(fragment_of(at.operands[1]), at.k, kind_a);
  // B is as A's first eight rows: its registers go to every other place.
  std::vector<std::array<uint32_t, lanes_of_warp>> spread;
  for (const auto& one : fragment_of(at.operands[2])) {
    spread.push_back(one);
    spread.push_back({});
  }
  const Floats wide = read_fragment(spread, at.k, kind_b);
  Floats b(static_cast<size_t>(at.k) * 8);
  for (int k = 0; k < at.k; k++) std::copy_n(&wide[k * 16], 8, &b[k * 8]);
  const Floats sums = product(a, b, 8, at.k);
  for (int lane = 0; lane < lanes_of_warp; lane++) {
    for (int i = 0; i < 4; i++) {
      const ResultPlace place(lane, i);
      const float before = f32(cta.read(warp, at.operands[3].parts[i], lane));
      cta.write(warp, at.operands[0].parts[i], lane, bits_of(before + sums[place.row * 8 + place.column]));
    }
  }
}

// A warp of a group has 16 of the 64 rows. What the operands hold is read when the product is waited for.
void start_product(Cta& cta, Warp& warp, const Instruction& at) {
  const std::vector<Operand>& operands = at.operands;
  const char kind_a = at.types.at(1).kind, kind_b = at.types.at(2).kind;
  const bool a_in_registers = operands[1].kind == Operand::list, sixteen_bit = kind_a == 'f' || kind_a == 'h';
  const auto flag = [&](size_t i) { return i < operands.size() && (cta.read(warp, operands[i], 0) & 1); };
  if (static_cast<int>(operands[0].parts.size()) != at.n / 2) throw Fault("a product with other accumulators");
  if (cta.read(warp, operands[4], 0) != 1 || cta.read(warp, operands[5], 0) != 1) throw Fault("a negated operand");
  const bool adds = flag(3), a_by_rows = sixteen_bit && !a_in_registers && flag(6);
  const bool b_by_columns = sixteen_bit && flag(a_in_registers ? 6 : 7);
  Floats a;
  uint64_t place_a = 0;
  if (a_in_registers) {
    std::vector<std::array<uint32_t, lanes_of_warp>> registers(4);
    for (int i = 0; i < 4; i++) {
      for (int lane = 0; lane < lanes_of_warp; lane++) {
        registers[i][lane] = static_cast<uint32_t>(cta.read(warp, operands[1].parts[i], lane));
      }
    }
    a = read_fragment(registers, at.k, kind_a);
  } else {
    place_a = cta.read(warp, operands[1], 0);
  }
  const Descriptor in_b(cta.read(warp, operands[2], 0));
  const auto need_fence = [&](int, int, uint32_t place) { cta.need_fence(warp, place, 16, false); };
  const int bytes = sixteen_bit ? 2 : 1, own_rows = warp.index % 4 * 16;
  if (!a_in_registers) for_operand(Descriptor(place_a), own_rows, 16, at.k, bytes, a_by_rows, need_fence);
  for_operand(in_b, 0, at.n, at.k, bytes, b_by_columns, need_fence);
  for (const Operand& sum : operands[0].parts) warp.accumulates[sum.index] = true;
  warp.products.push_back({[=, &cta, &warp, &at]() mutable {
    if (!a_in_registers) a = read_operand(cta, Descriptor(place_a), own_rows, 16, at.k, kind_a, a_by_rows);
    const Floats b = read_operand(cta, in_b, 0, at.n, at.k, kind_b, b_by_columns), sums = product(a, b, at.n, at.k);
    for (int lane = 0; lane < lanes_of_warp; lane++) {
      for (int i = 0; i < at.n / 2; i++) {
        const ResultPlace place(lane, i);
        const Operand& to = at.operands[0].parts[i];
        const float before = adds ? f32(cta.read(warp, to, lane)) : 0;
        cta.write(warp, to, lane, bits_of(before + sums[place.row * at.n + place.column]));
      }
    }
  }});
}

void wgmma(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  need_whole_warp(lanes);
  if (at.has(Word::fence)) return;
  if (at.has(Word::commit_group)) return warp.products.push_back({});
  if (at.has(Word::wait_group)) {
    return cta.finish_products(warp, static_cast<int64_t>(cta.read(warp, at.operands[0], 0)));
  }
  if (!at.has(Word::mma_async)) throw Fault("an unknown instruction of wgmma");
  start_product(cta, warp, at);
}

}  // namespace

const Executors& matrix_instructions() {
  static const Executors table = {
      {"ldmatrix", move_matrices<true>},
      {"mma", mma},
      {"stmatrix", move_matrices<false>},
      {"wgmma", wgmma},
  };
  return table;
}

}  // namespace emulator
