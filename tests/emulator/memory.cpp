// Loads, stores and copies, and the barriers that copies complete.
#include "tensor_map.hpp"

namespace emulator {
namespace {

template <bool writes>
void access(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const Operand &place = at.operands[writes ? 0 : 1], &value = at.operands[writes ? 1 : 0];
  const bool is_list = value.kind == Operand::list;
  const size_t count = is_list ? value.parts.size() : 1, bytes = at.type().bits / 8;
  for_lanes(lanes, [&](int lane) {
    const uint64_t address = cta.address(warp, place, lane);
    if (address % (bytes * count)) {
      if (!at.has(Word::param)) throw Fault("an access of a vector that is not aligned");
    }
    uint8_t* memory =
        at.has(Word::shared) ? cta.shared(address, bytes * count) : cta.global(address, bytes * count, writes);
    if (at.has(Word::shared)) cta.touch(warp, address, bytes * count, writes);
    for (size_t i = 0; i < count; i++, memory += bytes) {
      const Operand& one = is_list ? value.parts[i] : value;
      uint64_t bits = writes ? cta.read(warp, one, lane) : 0;
      if (writes) {
        std::memcpy(memory, &bits, bytes);
        continue;
      }
      std::memcpy(&bits, memory, bytes);
      if (at.type().kind == 's') bits = static_cast<uint64_t>(as_signed(bits, at.type().bits));
      cta.write(warp, one, lane, bits);
    }
  });
}

// atom gives what was there, red gives nothing.
void atom(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const size_t place = at.name == "red" ? 0 : 1, bytes = at.type().bits / 8;
  for_lanes(lanes, [&](int lane) {
    const uint64_t address = cta.address(warp, at.operands[place], lane);
    uint8_t* memory = at.has(Word::shared) ? cta.shared(address, bytes) : cta.global(address, bytes, true);
    if (at.has(Word::shared)) cta.touch(warp, address, bytes, true);
    uint64_t before = 0;
    std::memcpy(&before, memory, bytes);
    const uint64_t value = low(cta.read(warp, at.operands[place + 1], lane), at.type().bits);
    uint64_t after = 0;
    if (at.has(Word::add)) {
      after = at.type().kind == 'f' ? bits_of(f32(before) + f32(value)) : before + value;
    } else if (at.has(Word::exch)) {
      after = value;
    } else if (at.has(Word::or_)) {
      after = before | value;
    } else if (at.has(Word::cas)) {
      after = before == value ? cta.read(warp, at.operands[place + 2], lane) : before;
    } else {
      throw Fault("an unknown atomic operation");
    }
    std::memcpy(memory, &after, bytes);
    if (place) cta.write(warp, at.operands[0], lane, before);
  });
}

void mbarrier(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  const std::vector<Operand>& operands = at.operands;
  for_lanes(lanes, [&](int lane) {
    const bool waits = at.has(Word::try_wait) || at.has(Word::test_wait), arrives = at.has(Word::arrive);
    const uint64_t address = cta.address(warp, operands[waits || arrives ? 1 : 0], lane);
    if (at.has(Word::init)) {
      const auto count = static_cast<int64_t>(cta.read(warp, operands[1], lane));
      cta.shared(address, 8);
      cta.mbarriers[static_cast<uint32_t>(address)] = {count, count, 0, 0};
    } else if (at.has(Word::inval)) {
      cta.mbarriers.erase(static_cast<uint32_t>(address));
    } else if (arrives) {
      Mbarrier& barrier = cta.mbarrier(address);
      const auto number = operands.size() > 2 ? static_cast<int64_t>(cta.read(warp, operands[2], lane)) : 1;
      if (at.has(Word::expect_tx)) barrier.bytes_left += number;
      barrier.arrivals_left -= at.has(Word::expect_tx) ? 1 : number;
      cta.complete(barrier);
    } else if (waits) {
      const bool done = (cta.mbarrier(address).phase & 1) != (cta.read(warp, operands[2], lane) & 1);
      cta.write(warp, operands[0], lane, done);
      warp.yields |= !done;
    } else if (at.has(Word::expect_tx)) {
      cta.mbarrier(address).bytes_left += static_cast<int64_t>(cta.read(warp, operands[1], lane));
    } else {
      throw Fault("an unknown instruction of mbarriers");
    }
  });
}

// cp.async: done later, in order; the rest of `bytes` behind what is read is filled with zeros.
void copy_words(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint64_t to = cta.address(warp, at.operands[0], lane), from = cta.address(warp, at.operands[1], lane);
    const uint64_t bytes = cta.read(warp, at.operands[2], lane);
    uint64_t read = bytes;
    if (at.operands.size() > 3) {
      const Operand& size = at.operands[3];  // a number of bytes, or a predicate: whether nothing is read
      read = size.is_predicate ? (cta.read(warp, size, lane) & 1 ? 0 : bytes) : low(cta.read(warp, size, lane), 32);
    }
    if (from % bytes || to % bytes) throw Fault("a copy that is not aligned");
    cta.shared(to, bytes);
    if (read) cta.global(from, read, false);
    warp.copies.push_back({[&cta, &warp, to, from, bytes, read] {
      uint8_t* memory = cta.shared(to, bytes);
      cta.touch(warp, to, bytes, true);
      std::memset(memory, 0, bytes);
      if (read) std::memcpy(memory, cta.global(from, read, false), read);
    }});
  });
}

// Arrives on the barrier when all copies that the thread has asked for are done.
void arrive_behind_copies(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint64_t address = cta.address(warp, at.operands[0], lane);
    if (!at.has(Word::noinc)) cta.mbarrier(address).arrivals_left++;
    warp.copies.push_back({[&cta, address] {
      Mbarrier& barrier = cta.mbarrier(address);
      barrier.arrivals_left--;
      cta.complete(barrier);
    }});
  });
}

void copy_tile(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (at.has(Word::reduce) && !at.has(Word::add)) throw Fault("an unknown reduction of a tile");
  const bool loads = at.has(Word::shared_cluster);
  const Operand &tensor = at.operands[loads ? 1 : 0], &place = at.operands[loads ? 0 : 1];
  for_lanes(lanes, [&](int lane) {
    const TensorMap map = read_tensor_map(cta, cta.address(warp, tensor, lane));
    if (map.rank != at.rank) throw Fault("a tensor map of another rank");
    Coordinates start = {};
    for (int d = 0; d < map.rank; d++) {
      start[d] = static_cast<int32_t>(cta.read(warp, tensor.parts.at(1).parts.at(d), lane));
    }
    const uint64_t shared = cta.address(warp, place, lane);
    if (shared % 128) throw Fault("a tile in shared memory that lies on no 128 bytes");
    need_fence(cta, warp, map, start, shared, loads);
    if (!loads) {
      const auto store = at.has(Word::reduce) ? add_tile : store_tile;
      warp.stores[lane].push_back({[&cta, map, start, shared, store] { store(cta, map, start, shared); }});
      return;
    }
    const uint64_t barrier = cta.address(warp, at.operands[2], lane);
    cta.loads.emplace_back([&cta, map, start, shared, barrier] {
      load_tile(cta, map, start, shared);
      Mbarrier& completed = cta.mbarrier(barrier);
      completed.bytes_left -= static_cast<int64_t>(map.box_bytes());
      cta.complete(completed);
    });
  });
}

void cp(Cta& cta, Warp& warp, const Instruction& at, uint32_t lanes) {
  if (at.has(Word::bulk)) {
    if (at.has(Word::tensor)) return copy_tile(cta, warp, at, lanes);
    for_lanes(lanes, [&](int lane) {
      Queue& stores = warp.stores[lane];
      if (at.has(Word::commit_group)) return stores.push_back({});
      if (!at.has(Word::wait_group)) throw Fault("an unknown copy");
      cta.finish(stores, static_cast<int64_t>(cta.read(warp, at.operands[0], lane)));
    });
    return;
  }
  if (at.has(Word::mbarrier)) return arrive_behind_copies(cta, warp, at, lanes);
  if (at.has(Word::commit_group)) return warp.copies.push_back({});
  if (at.has(Word::wait_group)) return cta.finish(warp.copies, static_cast<int64_t>(cta.read(warp, at.operands[0], 0)));
  if (at.has(Word::wait_all)) {
    warp.copies.push_back({});
    return cta.finish(warp.copies, 0);
  }
  copy_words(cta, warp, at, lanes);
}

}  // namespace

const Executors& memory_instructions() {
  static const Executors table = {
      {"atom", atom}, {"cp", cp}, {"ld", access<false>}, {"mbarrier", mbarrier}, {"red", atom}, {"st", access<true>},
  };
  return table;
}

}  // namespace emulator
