// Instructions by which lanes and warps meet.
#include <algorithm>

#include "cta.hpp"

namespace emulator {
namespace {

void nothing(Cta&, Warp&, const Instruction&, uint32_t) {}

void fence(Cta& cta, Warp& warp, const Instruction& at, uint32_t) {
  if (at.has(Word::async)) cta.fence(warp);
}

int first_of(uint32_t lanes) { return __builtin_ctz(lanes); }

void shfl(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const size_t source = at.two_results ? 2 : 1;
  uint64_t values[lanes_of_warp], results[lanes_of_warp];
  for (int lane = 0; lane < lanes_of_warp; lane++) values[lane] = cta.read(warp, at.operands[source], lane);
  uint32_t in_range = 0;
  for_lanes(lanes, [&](int lane) {
    const int by = static_cast<int>(cta.read(warp, at.operands[source + 1], lane) & 31);
    const auto limits = static_cast<int>(cta.read(warp, at.operands[source + 2], lane));
    const int segment = limits >> 8 & 31, clamp = limits & 31;
    const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int from = 0;
    bool found = false;
    if (at.has(Word::up)) {
      from = lane - by;
      found = from >= last;
    } else {
      from = at.has(Word::down) ? lane + by : at.has(Word::bfly) ? lane ^ by : first | (by & ~segment);
      found = from <= last;
    }
    if (!found) from = lane;
    if (!(lanes >> from & 1)) throw Fault("a shuffle takes from a lane that is not there");
    results[lane] = values[from];
    in_range |= static_cast<uint32_t>(found) << lane;
  });
  for_lanes(lanes, [&](int lane) {
    cta.write(warp, at.operands[0], lane, results[lane]);
    if (at.two_results) cta.write(warp, at.operands[1], lane, in_range >> lane & 1);
  });
}

void redux(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (low(cta.read(warp, at.operands[2], first_of(lanes)), 32) != lanes) {
    throw Fault("a reduction over other lanes than those that are there");
  }
  const bool is_signed = at.type().kind == 's';
  const auto value_of = [&](int lane) {
    const uint64_t value = cta.read(warp, at.operands[1], lane);
    return is_signed ? as_signed(value, 32) : static_cast<int64_t>(low(value, 32));
  };
  int64_t result = value_of(first_of(lanes));
  for_lanes(lanes & (lanes - 1), [&](int lane) {
    const int64_t value = value_of(lane);
    if (at.has(Word::max)) {
      result = std::max(result, value);
    } else if (at.has(Word::min)) {
      result = std::min(result, value);
    } else if (at.has(Word::add)) {
      result += value;
    } else if (at.has(Word::or_)) {
      result |= value;
    } else if (at.has(Word::and_)) {
      result &= value;
    } else {
      throw Fault("an unknown reduction");
    }
  });
  for_lanes(lanes, [&](int lane) { cta.write(warp, at.operands[0], lane, low(static_cast<uint64_t>(result), 32)); });
}

void match(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (!at.has(Word::any)) throw Fault("only match.any is emulated");
  const auto value_of = [&](int lane) { return low(cta.read(warp, at.operands[1], lane), at.type().bits); };
  uint32_t same[lanes_of_warp] = {};
  for_lanes(lanes, [&](int lane) {
    for_lanes(lanes,
              [&](int other) { same[lane] |= static_cast<uint32_t>(value_of(lane) == value_of(other)) << other; });
  });
  for_lanes(lanes, [&](int lane) { cta.write(warp, at.operands[0], lane, same[lane]); });
}

void elect(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    cta.write(warp, at.operands[0], lane, first_of(lanes));
    cta.write(warp, at.operands[1], lane, lane == first_of(lanes));
  });
}

void vote(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (low(cta.read(warp, at.operands[2], first_of(lanes)), 32) != lanes) {
    throw Fault("a vote of other lanes than those that are there");
  }
  if (!at.has(Word::all)) throw Fault("only vote.all is emulated");
  bool result = true;
  for_lanes(lanes, [&](int lane) { result &= cta.read(warp, at.operands[1], lane) != 0; });
  for_lanes(lanes, [&](int lane) { cta.write(warp, at.operands[0], lane, result); });
}

// Opens when as many threads as it is for have arrived.
void barrier(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (at.has(Word::warp)) return;
  need_whole_warp(lanes);
  const auto number = static_cast<uint32_t>(cta.read(warp, at.operands[0], 0));
  const auto threads = at.operands.size() > 1 ? static_cast<uint32_t>(cta.read(warp, at.operands[1], 0))
                                              : static_cast<uint32_t>(cta.launch.program.threads);
  uint32_t& arrived = cta.arrived[number];
  arrived += lanes_of_warp;
  if (!at.has(Word::arrive)) {
    warp.barrier = static_cast<int>(number);
    warp.barrier_threads = threads;
  }
  cta.progress();
  if (arrived < threads) return;
  if (arrived > threads) throw Fault("a barrier has more threads than it is for");
  arrived = 0;
  for (Warp& other : cta.warps) {
    if (other.barrier != static_cast<int>(number)) continue;
    if (other.barrier_threads != threads) throw Fault("warps wait at one barrier with different counts");
    other.barrier = -1;
  }
}

}  // namespace

const Executors& warp_instructions() {
  static const Executors table = {
      {"bar", barrier}, {"barrier", barrier}, {"elect", elect},       {"fence", fence}, {"griddepcontrol", nothing},
      {"match", match}, {"membar", nothing},  {"nanosleep", nothing}, {"redux", redux}, {"setmaxnreg", nothing},
      {"shfl", shfl},   {"vote", vote},
  };
  return table;
}

}  // namespace emulator
