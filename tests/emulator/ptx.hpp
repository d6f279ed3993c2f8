// PTX as Triton writes it: one kernel, its instructions and where its parameters lie.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace emulator {

// What a kernel may not do, or what the emulator does not know.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Type {
  char kind = 0;  // b, u, s, f; h: bfloat16; x and y: two of float16 and of bfloat16; e and g: e4m3 and e5m2; p
  int bits = 0;
  int count = 1;
  bool is_float() const { return kind == 'f' || kind == 'h'; }
};

enum class Special { smem, tid, ctaid, nctaid, ntid, laneid, lanemask_lt, zero };

struct Operand {
  enum Kind { none, reg, immediate, parameter, special, list, memory } kind = none;
  int index = -1;  // of a register
  Special name = Special::zero;
  uint64_t value = 0;          // of an immediate; where a parameter lies among all
  int64_t offset = 0;          // is added
  bool negated = false;        // of a predicate
  bool is_predicate = false;   // of a register that inline assembly declares
  std::vector<Operand> parts;  // of a list; of an address: what it starts from, and what else stands in the brackets
};

// The words between the dots that change what an instruction does.
enum class Word : uint8_t {
  add,
  all,
  and_,
  any,
  arrive,
  async,
  bfly,
  bulk,
  cas,
  commit_group,
  down,
  eq,
  exch,
  expect_tx,
  fence,
  ge,
  gt,
  hi,
  idx,
  init,
  inval,
  le,
  lt,
  max,
  mbarrier,
  min,
  mma_async,
  nan,
  ne,
  noinc,
  num,
  or_,
  param,
  reduce,
  rmi,
  rni,
  rpi,
  rzi,
  shared,
  shared_cluster,
  tensor,
  test_wait,
  trans,
  try_wait,
  up,
  wait_all,
  wait_group,
  warp,
  wide,
  xor_,
  nan_result,
  equ,
  neu,
  ltu,
  leu,
  gtu,
  geu
};

struct Instruction;
struct Cta;
struct Warp;
using Execute = void (*)(Cta&, Warp&, const Instruction&, uint32_t lanes);

struct Instruction {
  enum Jump { no_jump, branch, indexed_branch, end } jump = no_jump;
  std::string text;
  std::string name;  // up to the first dot
  Execute execute = nullptr;
  uint64_t words = 0;       // a bit for each Word
  std::vector<Type> types;  // in order
  int m = 0, n = 0, k = 0;  // of a matrix product
  int matrices = 1;         // of ldmatrix and stmatrix
  int rank = 0;             // of a tensor map
  int guard = -1;           // the predicate of @p
  bool guard_negated = false;
  bool of_whole_warp = false;
  bool two_results = false;  // d|p
  std::vector<Operand> operands;
  int target = -1;
  std::vector<int> targets;  // of an indexed branch

  bool has(Word word) const { return words >> static_cast<int>(word) & 1; }
  const Type& type() const;  // the last one, which most instructions are of
};

struct Program {
  std::string kernel;
  std::vector<Instruction> instructions;
  int registers = 0;
  int threads = 0;
  size_t parameter_bytes = 0;
};

// Raises Fault where it finds what it does not know.
Program parse(const std::string& ptx);

// Of an instruction's first word; a null pointer where there is none.
Execute executor(const std::string& name);

}  // namespace emulator
