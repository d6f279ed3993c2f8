#include "cta.hpp"

namespace emulator {
namespace {

constexpr int longest_turn = 300;              // instructions of a warp before another one's turn
constexpr uint64_t patience = 200000;          // instructions without progress before all that is underway ends
constexpr uint64_t deadlock_after = 20000000;  // the same before a deadlock is told

std::string hexadecimal(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

void Memory::add(uint64_t start, uint64_t bytes) {
  if (!bytes) return;
  // Memory that was given back and taken again has other bounds.
  auto first = ranges_.lower_bound(start);
  if (first != ranges_.begin() && std::prev(first)->second > start) --first;
  while (first != ranges_.end() && first->first < start + bytes) first = ranges_.erase(first);
  ranges_[start] = start + bytes;
}

void Memory::set_parameters(uint64_t start, uint64_t bytes) {
  parameters_ = start;
  parameters_end_ = start + bytes;
}

void Memory::check(uint64_t start, uint64_t bytes, bool writes) const {
  if (!writes && start >= parameters_ && start + bytes <= parameters_end_) return;
  auto after = ranges_.upper_bound(start);
  if (after != ranges_.begin() && start + bytes <= std::prev(after)->second) return;
  throw Fault((writes ? "a write of " : "a read of ") + std::to_string(bytes) + " bytes outside of all tensors, at " +
              hexadecimal(start));
}

// Shared memory starts with any bytes.
Cta::Cta(const Launch& launch, uint32_t index)
    : launch(launch),
      index(index),
      warps(launch.program.threads / lanes_of_warp),
      shared_(launch.shared_bytes),
      touched_(launch.shared_bytes / 4 + 1) {
  for (uint8_t& byte : shared_) byte = static_cast<uint8_t>(launch.random());
  for (size_t i = 0; i < warps.size(); i++) {
    warps[i].index = static_cast<int>(i);
    warps[i].fragments.push_back({0, all_lanes});
    warps[i].registers.resize(static_cast<size_t>(launch.program.registers) * lanes_of_warp);
    warps[i].accumulates.resize(launch.program.registers);
  }
}

uint64_t Cta::read(const Warp& warp, const Operand& operand, int lane) const {
  uint64_t value = 0;
  switch (operand.kind) {
    case Operand::reg:
      value = warp.registers[static_cast<size_t>(operand.index) * lanes_of_warp + lane];
      break;
    case Operand::immediate:
      value = operand.value;
      break;
    case Operand::parameter:
      value = reinterpret_cast<uint64_t>(launch.parameters) + operand.value;
      break;
    case Operand::special:
      switch (operand.name) {
        case Special::smem:
          value = shared_start;
          break;
        case Special::tid:
          value = static_cast<uint64_t>(warp.index) * lanes_of_warp + lane;
          break;
        case Special::ctaid:
          value = index;
          break;
        case Special::nctaid:
          value = launch.ctas;
          break;
        case Special::ntid:
          value = launch.program.threads;
          break;
        case Special::laneid:
          value = lane;
          break;
        case Special::lanemask_lt:
          value = (uint64_t{1} << lane) - 1;
          break;
        case Special::zero:
          break;
      }
      break;
    default:
      throw Fault("an operand that has no value");
  }
  return (operand.negated ? !(value & 1) : value) + operand.offset;
}

void Cta::write(Warp& warp, const Operand& operand, int lane, uint64_t value) {
  if (operand.kind == Operand::none) return;
  if (operand.kind != Operand::reg) throw Fault("a result that is no register");
  warp.registers[static_cast<size_t>(operand.index) * lanes_of_warp + lane] = value;
}

uint64_t Cta::address(const Warp& warp, const Operand& operand, int lane) const {
  return read(warp, operand.parts.at(0), lane);
}

uint8_t* Cta::shared(uint64_t address, size_t bytes) {
  const uint64_t at = low(address, 32);
  if (at < shared_start || at + bytes > shared_start + shared_.size()) {
    throw Fault("an access to shared memory at " + hexadecimal(at) + ", which ends at " +
                hexadecimal(shared_start + shared_.size()));
  }
  return &shared_[at - shared_start];
}

uint8_t* Cta::global(uint64_t address, size_t bytes, bool writes) {
  launch.memory.check(address, bytes, writes);
  return reinterpret_cast<uint8_t*>(address);
}

void Cta::touch(const Warp& warp, uint64_t address, size_t bytes, bool writes) {
  const uint64_t first = low(address, 32) - shared_start;
  for (uint64_t at = first / 4; at <= (first + bytes - 1) / 4; at++) {
    Touched& word = touched_[at];
    (writes ? word.written_at : word.read_at) = executed_;
    (writes ? word.writer : word.reader) = warp.index;
  }
}

void Cta::need_fence(const Warp& warp, uint64_t address, size_t bytes, bool fills) {
  const auto need = [&](uint64_t& touched_at, int by, const char* what) {
    if (touched_at && std::max(warps[by].fenced_at, warp.fenced_at) <= touched_at) {
      throw Fault(std::string("no fence.proxy.async between what warp ") + std::to_string(by) + " has " + what +
                  " at " + hexadecimal(low(address, 32)) + " and what TMA or wgmma do there");
    }
    touched_at = 0;
  };
  shared(address, bytes);
  const uint64_t first = low(address, 32) - shared_start;
  for (uint64_t at = first / 4; at <= (first + bytes - 1) / 4; at++) {
    Touched& word = touched_[at];
    need(word.written_at, word.writer, "written");
    if (fills) need(word.read_at, word.reader, "read");
  }
}

Mbarrier& Cta::mbarrier(uint64_t address) {
  const auto found = mbarriers.find(static_cast<uint32_t>(address));
  if (found == mbarriers.end()) throw Fault("there is no mbarrier at " + hexadecimal(low(address, 32)));
  return found->second;
}

void Cta::complete(Mbarrier& barrier) {
  if (barrier.arrivals_left < 0) throw Fault("an mbarrier has more arrivals than its count");
  if (barrier.arrivals_left || barrier.bytes_left) return;
  barrier.phase++;
  barrier.arrivals_left = barrier.count;
  progress();
}

void Cta::finish(Queue& queue, int64_t groups) {
  int64_t left = 0;
  for (const Pending& one : queue) left += one.ends_group();
  while (!queue.empty() && left > groups) {
    const Pending one = queue.front();
    queue.pop_front();
    if (one.ends_group()) {
      left--;
    } else {
      one.act();
    }
    progress();
  }
}

// Negative `groups`: all, those of no group too.
void Cta::finish_products(Warp& warp, int64_t groups) {
  if (groups < 0) warp.products.push_back({});
  finish(warp.products, std::max<int64_t>(groups, 0));
  if (warp.products.empty()) warp.accumulates.assign(warp.accumulates.size(), false);
}

// ptxas waits for a product whose sums other instructions touch.
void Cta::need_sums(Warp& warp, const Operand& operand) {
  if (operand.kind == Operand::reg && warp.accumulates[operand.index]) finish_products(warp, -1);
  for (const Operand& part : operand.parts) need_sums(warp, part);
}

// Some of the loads and copies that are underway, whichever, or all.
bool Cta::finish_some(bool all) {
  bool any = false;
  for (size_t left = all ? loads.size() : launch.random() % 2; left && !loads.empty(); left--) {
    const size_t at = launch.random() % loads.size();
    const auto load = loads[at];
    loads.erase(loads.begin() + static_cast<ptrdiff_t>(at));
    load();
    any = true;
  }
  for (Warp& warp : warps) {
    while (!warp.copies.empty() && (all || launch.random() % 2)) {
      const Pending one = warp.copies.front();
      warp.copies.pop_front();
      if (one.act) one.act();
      any = true;
    }
  }
  if (any) progress();
  return any;
}

// Warps take turns of any length in any order, and what they started ends late: an order that is not forced shows.
void Cta::run() {
  std::vector<int> ready;
  while (true) {
    ready.clear();
    bool all_done = true;
    for (const Warp& warp : warps) {
      all_done &= warp.is_done();
      if (!warp.is_done() && warp.barrier < 0) ready.push_back(warp.index);
    }
    if (all_done) break;
    if (ready.empty()) deadlock();
    Warp& warp = warps[ready[launch.random() % ready.size()]];
    warp.yields = false;
    for (auto turn = launch.random() % longest_turn + 1; turn; turn--) {
      step(warp);
      if (warp.is_done() || warp.barrier >= 0 || warp.yields) break;
    }
    if (launch.random() % 4 == 0) finish_some(false);
    if (executed_ - progress_at_ > patience && !finish_some(true) && executed_ - progress_at_ > deadlock_after) {
      deadlock();
    }
  }
  finish_some(true);
  for (Warp& warp : warps) {
    for (Queue& stores : warp.stores) {
      stores.push_back({});
      finish(stores, 0);
    }
  }
}

void Cta::deadlock() const {
  std::string message = "a deadlock:";
  for (const Warp& warp : warps) {
    if (warp.is_done()) continue;
    const Instruction& at = launch.program.instructions[warp.fragments[0].at];
    message += "\n  warp " + std::to_string(warp.index) +
               (warp.barrier >= 0 ? " at barrier " + std::to_string(warp.barrier) : " at " + at.text.substr(0, 100));
  }
  throw Fault(message);
}

// Fragments at one place become one. The one that is behind the others goes on, so that they meet again; where it is at
// an instruction of the whole warp, which may lie before what others come from, it waits for them.
void Cta::choose(std::vector<Fragment>& fragments) const {
  std::sort(fragments.begin(), fragments.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  for (size_t i = 0; i + 1 < fragments.size();) {
    if (fragments[i].at != fragments[i + 1].at) {
      i++;
      continue;
    }
    fragments[i].lanes |= fragments[i + 1].lanes;
    fragments.erase(fragments.begin() + static_cast<ptrdiff_t>(i) + 1);
  }
  const auto goes_on = std::find_if(fragments.begin(), fragments.end(), [&](const Fragment& one) {
    return !launch.program.instructions.at(one.at).of_whole_warp;
  });
  if (goes_on != fragments.end()) std::iter_swap(fragments.begin(), goes_on);
}

void Cta::step(Warp& warp) {
  std::vector<Fragment>& fragments = warp.fragments;
  if (fragments.size() > 1) choose(fragments);
  const int at = fragments[0].at;
  uint32_t lanes = fragments[0].lanes;
  const Instruction& instruction = launch.program.instructions.at(at);
  executed_++;
  if (instruction.guard >= 0) {
    const uint64_t* guard = &warp.registers[static_cast<size_t>(instruction.guard) * lanes_of_warp];
    for_lanes(lanes, [&](int lane) {
      if ((guard[lane] & 1) == instruction.guard_negated) lanes &= ~(1u << lane);
    });
  }
  try {
    if (instruction.jump != Instruction::no_jump) return branch(warp, instruction, lanes);
    if (!warp.products.empty() && instruction.name != "wgmma") {
      for (const Operand& operand : instruction.operands) need_sums(warp, operand);
    }
    if (lanes) instruction.execute(*this, warp, instruction, lanes);
    fragments[0].at++;
  } catch (const Fault& fault) {
    throw Fault(std::string(fault.what()) + "\n  warp " + std::to_string(warp.index) + " of CTA " +
                std::to_string(index) + ": " + instruction.text.substr(0, 300));
  }
}

void Cta::branch(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  std::vector<Fragment>& fragments = warp.fragments;
  const Fragment here = fragments[0];
  fragments.erase(fragments.begin());
  if (here.lanes & ~lanes) fragments.push_back({here.at + 1, here.lanes & ~lanes});
  if (lanes && instruction.jump == Instruction::branch) fragments.push_back({instruction.target, lanes});
  if (instruction.jump == Instruction::indexed_branch) {
    for_lanes(lanes, [&](int lane) {
      const auto target = instruction.targets.at(low(read(warp, instruction.operands[0], lane), 32));
      fragments.push_back({target, 1u << lane});
    });
  }
  if (instruction.jump == Instruction::end) progress();
}

Execute executor(const std::string& name) {
  for (const Executors* table : {&arithmetic(), &memory_instructions(), &matrix_instructions(), &warp_instructions()}) {
    const auto found = table->find(name);
    if (found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace emulator
