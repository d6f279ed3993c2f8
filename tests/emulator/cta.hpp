// One CTA: its warps, shared memory, barriers, and what is underway behind its instructions.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <unordered_map>
#include <vector>

#include "numbers.hpp"
#include "ptx.hpp"

namespace emulator {

constexpr int lanes_of_warp = 32;
constexpr uint32_t all_lanes = 0xffffffff;
constexpr uint32_t shared_start = 1024;  // the driver keeps what is before it

// Device memory that calls know of. An access elsewhere is a Fault.
class Memory {
 public:
  void add(uint64_t start, uint64_t bytes);
  void check(uint64_t start, uint64_t bytes, bool writes) const;
  // Readable as long as a kernel runs.
  void set_parameters(uint64_t start, uint64_t bytes);

 private:
  std::map<uint64_t, uint64_t> ranges_;  // start -> end
  uint64_t parameters_ = 0, parameters_end_ = 0;
};

// Lanes that are at one place of the program.
struct Fragment {
  int at;
  uint32_t lanes;
};

// What a thread issued and waits for in groups: the end of a group has no action.
struct Pending {
  std::function<void()> act;
  bool ends_group() const { return !act; }
};
using Queue = std::deque<Pending>;

struct Warp {
  int index;
  std::vector<Fragment> fragments;
  std::vector<uint64_t> registers;          // of all lanes, one register behind the other
  std::vector<bool> accumulates;            // registers that products in flight write
  Queue copies, products;                   // cp.async, wgmma
  std::array<Queue, lanes_of_warp> stores;  // of tiles, by TMA
  int barrier = -1;                         // that it waits at
  uint32_t barrier_threads = 0;
  bool yields = false;
  uint64_t fenced_at = 0;  // when fence.proxy.async was last here

  bool is_done() const { return fragments.empty(); }
};

struct Mbarrier {
  int64_t count, arrivals_left, bytes_left;
  uint64_t phase;
};

// Who read a word of shared memory last, and who wrote it, as loads, stores and cp.async do: not TMA, not wgmma.
struct Touched {
  uint64_t read_at = 0, written_at = 0;  // 0: never
  int reader = 0, writer = 0;            // warps
};

struct Launch {
  const Program& program;
  const uint8_t* parameters;
  uint32_t ctas;
  size_t shared_bytes;
  Memory& memory;
  std::mt19937& random;
};

struct Cta {
  Cta(const Launch& launch, uint32_t index);
  void run();

  uint64_t read(const Warp& warp, const Operand& operand, int lane) const;
  void write(Warp& warp, const Operand& operand, int lane, uint64_t value);
  // Where a memory operand points to.
  uint64_t address(const Warp& warp, const Operand& operand, int lane) const;
  uint8_t* shared(uint64_t address, size_t bytes);
  uint8_t* global(uint64_t address, size_t bytes, bool writes);
  void touch(const Warp& warp, uint64_t address, size_t bytes, bool writes);
  // TMA and wgmma reach shared memory through the async proxy. A Fault where they are to read what was written through
  // the other one, or to fill what was written or read, and neither that warp nor this one had a fence in between. What
  // had one needs no other.
  void need_fence(const Warp& warp, uint64_t address, size_t bytes, bool fills);
  void fence(Warp& warp) { warp.fenced_at = executed_; }
  Mbarrier& mbarrier(uint64_t address);
  // Turns the barrier's phase where nothing is left of it.
  void complete(Mbarrier& barrier);
  void progress() { progress_at_ = executed_; }
  // Does what is pending until `groups` are left.
  void finish(Queue& queue, int64_t groups);
  void finish_products(Warp& warp, int64_t groups);

  const Launch& launch;
  const uint32_t index;
  std::vector<Warp> warps;
  std::vector<std::function<void()>> loads;  // of tiles, by TMA: they come in any order
  std::map<uint32_t, uint32_t> arrived;      // threads, at barriers that have not opened
  std::unordered_map<uint32_t, Mbarrier> mbarriers;

 private:
  void choose(std::vector<Fragment>& fragments) const;
  void step(Warp& warp);
  void branch(Warp& warp, const Instruction& instruction, uint32_t lanes);
  void need_sums(Warp& warp, const Operand& operand);
  bool finish_some(bool all);
  [[noreturn]] void deadlock() const;

  std::vector<uint8_t> shared_;
  std::vector<Touched> touched_;  // of each 4 bytes
  uint64_t executed_ = 0, progress_at_ = 0;
};

// Calls `act` with each lane of the mask.
template <typename Act>
void for_lanes(uint32_t lanes, Act act) {
  for (int lane = 0; lane < lanes_of_warp; lane++) {
    if (lanes >> lane & 1) act(lane);
  }
}

inline void need_whole_warp(uint32_t lanes) {
  if (lanes != all_lanes) throw Fault("a part of a warp is at an instruction of the whole warp");
}

// Tables of the families of instructions, one a file.
using Executors = std::map<std::string, Execute>;
const Executors& arithmetic();
const Executors& memory_instructions();
const Executors& matrix_instructions();
const Executors& warp_instructions();

}  // namespace emulator
