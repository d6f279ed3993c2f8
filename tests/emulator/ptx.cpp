#include "ptx.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

namespace emulator {
namespace {

using Strings = std::vector<std::string>;

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::string without_comments(const std::string& text) {
  std::string kept;
  for (size_t at = 0; at < text.size() && text[at]; at++) {
    if (text[at] == '/' && text[at + 1] == '/') at = std::min(text.find('\n', at), text.size());
    if (at < text.size()) kept += text[at];
  }
  return kept;
}

// At commas outside of brackets.
Strings split(const std::string& text, char separator = ',') {
  Strings found;
  std::string current;
  int depth = 0;
  for (const char c : text) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c != separator || depth) {
      current += c;
      continue;
    }
    found.push_back(trimmed(current));
    current.clear();
  }
  if (!trimmed(current).empty()) found.push_back(trimmed(current));
  return found;
}

bool is_name(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '$'; });
}

const std::map<std::string, Type> types = {
    {"b8", {'b', 8}},         {"b16", {'b', 16}}, {"b32", {'b', 32}},  {"b64", {'b', 64}},
    {"u8", {'u', 8}},         {"u16", {'u', 16}}, {"u32", {'u', 32}},  {"u64", {'u', 64}},
    {"s8", {'s', 8}},         {"s16", {'s', 16}}, {"s32", {'s', 32}},  {"s64", {'s', 64}},
    {"f16", {'f', 16}},       {"f32", {'f', 32}}, {"bf16", {'h', 16}}, {"f16x2", {'x', 32, 2}},
    {"bf16x2", {'y', 32, 2}}, {"e4m3", {'e', 8}}, {"e5m2", {'g', 8}},  {"e4m3x2", {'e', 16, 2}},
    {"e5m2x2", {'g', 16, 2}}, {"pred", {'p', 1}},
};

const std::map<std::string, Word> words = {
    {"add", Word::add},
    {"all", Word::all},
    {"and", Word::and_},
    {"any", Word::any},
    {"arrive", Word::arrive},
    {"async", Word::async},
    {"bfly", Word::bfly},
    {"bulk", Word::bulk},
    {"cas", Word::cas},
    {"commit_group", Word::commit_group},
    {"down", Word::down},
    {"eq", Word::eq},
    {"equ", Word::equ},
    {"exch", Word::exch},
    {"expect_tx", Word::expect_tx},
    {"fence", Word::fence},
    {"ge", Word::ge},
    {"geu", Word::geu},
    {"gt", Word::gt},
    {"gtu", Word::gtu},
    {"hi", Word::hi},
    {"idx", Word::idx},
    {"init", Word::init},
    {"inval", Word::inval},
    {"le", Word::le},
    {"leu", Word::leu},
    {"lt", Word::lt},
    {"ltu", Word::ltu},
    {"max", Word::max},
    {"mbarrier", Word::mbarrier},
    {"min", Word::min},
    {"mma_async", Word::mma_async},
    {"nan", Word::nan},
    {"NaN", Word::nan_result},
    {"ne", Word::ne},
    {"neu", Word::neu},
    {"noinc", Word::noinc},
    {"num", Word::num},
    {"or", Word::or_},
    {"param", Word::param},
    {"reduce", Word::reduce},
    {"rmi", Word::rmi},
    {"rni", Word::rni},
    {"rpi", Word::rpi},
    {"rzi", Word::rzi},
    {"shared", Word::shared},
    {"shared::cta", Word::shared},
    {"shared::cluster", Word::shared_cluster},
    {"tensor", Word::tensor},
    {"test_wait", Word::test_wait},
    {"trans", Word::trans},
    {"try_wait", Word::try_wait},
    {"up", Word::up},
    {"wait_all", Word::wait_all},
    {"wait_group", Word::wait_group},
    {"warp", Word::warp},
    {"wide", Word::wide},
    {"xor", Word::xor_},
};

const std::set<std::string> of_whole_warps = {"bar",   "barrier", "elect",      "ldmatrix", "match", "mma",
                                              "redux", "shfl",    "setmaxnreg", "stmatrix", "vote",  "wgmma"};

const std::map<std::string, Special> specials = {
    {"global_smem", Special::smem},
    {"%tid.x", Special::tid},
    {"%ctaid.x", Special::ctaid},
    {"%nctaid.x", Special::nctaid},
    {"%ntid.x", Special::ntid},
    {"%laneid", Special::laneid},
    {"%lanemask_lt", Special::lanemask_lt},
    {"%tid.y", Special::zero},
    {"%tid.z", Special::zero},
    {"%ctaid.y", Special::zero},
    {"%ctaid.z", Special::zero},
    {"%cluster_ctarank", Special::zero},
};

// Braces of inline assembly have registers and labels of their own.
struct Scope {
  int number;
  std::map<std::string, std::string> registers;
};

class Parser {
 public:
  Program parse(const std::string& ptx);

 private:
  size_t read_signature(const std::string& text);
  void read_body(const std::string& text, size_t at);
  void statement(std::string text);
  void read_name(Instruction& instruction, const std::string& name);
  void read_operands(Instruction& instruction, const std::string& text);
  void declare(const std::string& text);
  void label(const std::string& name);
  void resolve();
  Operand operand(const std::string& text);
  Operand number(const std::string& text) const;
  int register_named(const std::string& name);
  std::string in_scope(const std::string& name) const;

  Program program_;
  std::vector<Scope> scopes_;
  int scope_count_ = 0;
  std::string last_label_;
  std::map<std::string, size_t> parameters_;
  std::map<std::string, int> registers_, labels_;
  std::set<int> predicates_;  // of inline assembly
  std::map<std::string, Strings> branch_tables_;
  std::vector<std::pair<size_t, std::string>> branches_, indexed_branches_;
};

Program Parser::parse(const std::string& ptx) {
  const std::string text = without_comments(ptx);
  read_body(text, read_signature(text));
  resolve();
  return std::move(program_);
}

// Kernels of Triton take numbers and addresses alone.
size_t Parser::read_signature(const std::string& text) {
  const size_t entry = text.find(".entry"), open = text.find('(', entry), close = text.find(')', open);
  const size_t body = text.find('{', close);
  if (body == std::string::npos) throw Fault("this PTX has no kernel");
  program_.kernel = trimmed(text.substr(entry + 6, open - entry - 6));
  for (const std::string& parameter : split(text.substr(open + 1, close - open - 1))) {
    const size_t name = parameter.find_last_of(" \t") + 1;
    const size_t bytes = parameter.find(".u64") != std::string::npos ? 8 : 4;
    if (bytes == 4 && parameter.find("32") == std::string::npos) throw Fault("an unknown parameter: " + parameter);
    program_.parameter_bytes = (program_.parameter_bytes + bytes - 1) / bytes * bytes;
    parameters_[parameter.substr(name)] = program_.parameter_bytes;
    program_.parameter_bytes += bytes;
  }
  const size_t threads = text.find(".reqntid", close);
  if (threads < body) program_.threads = std::atoi(text.c_str() + threads + 8);
  if (program_.threads <= 0 || program_.threads % 32) throw Fault("a kernel of no whole number of warps");
  return body + 1;
}

void Parser::read_body(const std::string& text, size_t at) {
  std::string current;
  for (; at < text.size(); at++) {
    const char c = text[at];
    const bool starts = trimmed(current).empty();
    if (starts && c == '{') {
      scopes_.push_back({scope_count_++, {}});
    } else if (starts && c == '}') {
      if (scopes_.empty()) return;
      scopes_.pop_back();
    } else if (c == ';') {
      statement(trimmed(current));
      current.clear();
    } else if (c == ':' && is_name(trimmed(current))) {
      label(trimmed(current));
      current.clear();
    } else {
      current += c;
    }
  }
}

std::string Parser::in_scope(const std::string& name) const {
  return name[0] == '$' || scopes_.empty() ? name : name + "@" + std::to_string(scopes_.back().number);
}

void Parser::label(const std::string& name) {
  labels_[in_scope(name)] = static_cast<int>(program_.instructions.size());
  last_label_ = name;
}

void Parser::declare(const std::string& text) {
  if (scopes_.empty()) return;  // %r<10> and the like
  const std::string names = trimmed(text.substr(4));
  for (const std::string& name : split(names.substr(names.find_first_of(" \t")))) {
    scopes_.back().registers[name] = in_scope(name);
    if (names.rfind(".pred", 0) == 0) predicates_.insert(register_named(name));
  }
}

int Parser::register_named(const std::string& name) {
  std::string full = name;
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto own = scopes_[i].registers.find(name);
    if (own == scopes_[i].registers.end()) continue;
    full = own->second;
    break;
  }
  const auto [found, is_new] = registers_.try_emplace(full, program_.registers);
  program_.registers += is_new;
  return found->second;
}

// Decimal, hexadecimal, or the bits of a float: 0f3F800000.
Operand Parser::number(const std::string& text) const {
  Operand found;
  found.kind = Operand::immediate;
  const bool is_float = text.size() > 2 && text[0] == '0' && std::tolower(text[1]) == 'f';
  if (is_float) {
    found.value = std::strtoull(text.c_str() + 2, nullptr, 16);
  } else {
    found.value = text[0] == '-' ? static_cast<uint64_t>(std::strtoll(text.c_str(), nullptr, 0))
                                 : std::strtoull(text.c_str(), nullptr, 0);
  }
  return found;
}

Operand Parser::operand(const std::string& text) {
  Operand found;
  if (text.empty()) throw Fault("an operand is missing");
  if (text[0] == '{' || text[0] == '[') {
    found.kind = text[0] == '{' ? Operand::list : Operand::memory;
    for (const std::string& part : split(text.substr(1, text.size() - 2))) found.parts.push_back(operand(part));
    return found;
  }
  if (text[0] == '!') {
    found = operand(text.substr(1));
    found.negated = true;
    return found;
  }
  const size_t plus = text.find('+');
  if (plus != std::string::npos) {
    found = operand(trimmed(text.substr(0, plus)));
    found.offset = std::strtoll(text.c_str() + plus + 1, nullptr, 0);
    return found;
  }
  if (text == "_") return found;
  if (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-') return number(text);
  if (const auto special = specials.find(text); special != specials.end()) {
    found.kind = Operand::special;
    found.name = special->second;
  } else if (const auto parameter = parameters_.find(text); parameter != parameters_.end()) {
    found.kind = Operand::parameter;
    found.value = parameter->second;
  } else {
    found.kind = Operand::reg;
    found.index = register_named(text);
    found.is_predicate = predicates_.count(found.index) > 0;
  }
  return found;
}

void Parser::read_name(Instruction& instruction, const std::string& name) {
  const Strings parts = split(name, '.');
  instruction.name = parts[0];
  for (size_t i = 1; i < parts.size(); i++) {
    const std::string& part = parts[i];
    if (const auto type = types.find(part); type != types.end()) instruction.types.push_back(type->second);
    if (const auto word = words.find(part); word != words.end()) {
      instruction.words |= uint64_t{1} << static_cast<int>(word->second);
    }
    if (part.size() == 2 && part[1] == 'd') instruction.rank = part[0] - '0';
    if (part.size() == 2 && part[0] == 'x') instruction.matrices = part[1] - '0';
    const size_t n = part.find('n'), k = part.find('k');
    if (part[0] == 'm' && std::isdigit(static_cast<unsigned char>(part[1])) && k != std::string::npos) {
      instruction.m = std::atoi(part.c_str() + 1);
      instruction.n = std::atoi(part.c_str() + n + 1);
      instruction.k = std::atoi(part.c_str() + k + 1);
    }
  }
}

void Parser::read_operands(Instruction& instruction, const std::string& text) {
  for (const std::string& part : split(text)) {
    const size_t bar = part.find('|');
    if (bar == std::string::npos) {
      instruction.operands.push_back(operand(part));
      continue;
    }
    instruction.operands.push_back(operand(part.substr(0, bar)));
    instruction.operands.push_back(operand(part.substr(bar + 1)));
    instruction.two_results = true;
  }
}

void Parser::statement(std::string text) {
  if (text.empty()) return;
  if (text.rfind(".reg", 0) == 0) return declare(text);
  if (text.rfind(".branchtargets", 0) == 0) {
    branch_tables_[last_label_] = split(text.substr(14));
    return;
  }
  if (text.rfind(".pragma", 0) == 0) return;
  if (text[0] == '.') throw Fault("an unknown directive: " + text);
  Instruction made;
  made.text = text;
  if (text[0] == '@') {
    const size_t end = text.find_first_of(" \t");
    made.guard_negated = text[1] == '!';
    made.guard = register_named(text.substr(made.guard_negated ? 2 : 1, end - (made.guard_negated ? 2 : 1)));
    text = trimmed(text.substr(end));
  }
  const size_t end = std::min(text.find_first_of(" \t{["), text.size());
  read_name(made, text.substr(0, end));
  const std::string rest = trimmed(text.substr(end));
  if (made.name == "bra") {
    made.jump = Instruction::branch;
    branches_.emplace_back(program_.instructions.size(), in_scope(rest));
  } else if (made.name == "brx") {
    made.jump = Instruction::indexed_branch;
    const Strings parts = split(rest);
    made.operands.push_back(operand(parts[0]));
    indexed_branches_.emplace_back(program_.instructions.size(), parts[1]);
  } else if (made.name == "ret" || made.name == "exit") {
    made.jump = Instruction::end;
  } else {
    made.execute = executor(made.name);
    made.of_whole_warp = of_whole_warps.count(made.name) > 0;
    if (!made.execute) throw Fault("an unknown instruction: " + text);
    read_operands(made, rest);
  }
  program_.instructions.push_back(std::move(made));
}

void Parser::resolve() {
  const auto place = [this](const std::string& name) {
    const auto found = labels_.find(name);
    if (found == labels_.end()) throw Fault("an unknown label: " + name);
    return found->second;
  };
  for (const auto& [at, name] : branches_) program_.instructions[at].target = place(name);
  for (const auto& [at, table] : indexed_branches_) {
    for (const std::string& name : branch_tables_[table]) program_.instructions[at].targets.push_back(place(name));
  }
}

}  // namespace

const Type& Instruction::type() const {
  if (types.empty()) throw Fault("an instruction without a type");
  return types.back();
}

Program parse(const std::string& ptx) { return Parser().parse(ptx); }

}  // namespace emulator
