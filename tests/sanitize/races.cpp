// The library and a Python interpreter in one program, for ThreadSanitizer, against the fake driver:
//   races hammer         the parts with state, from many threads at once, from their first use on
//   races walk SCRIPT    a Python script, with this program's extension as gg_runtime._C
//   races planted        a race that must be reported
#include <pybind11/embed.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "driver/module.hpp"
#include "forms/grouped_problem.hpp"
#include "select/catalog.hpp"
#include "select/select.hpp"

namespace py = pybind11;

extern "C" PyObject* PyInit__C();

namespace {

constexpr int threads = 8, turns = 400, devices = 2;
std::atomic<int> failed_loads{0}, loads{0}, choices{0};
int unguarded = 0;

void require(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::_Exit(1);
}

gg::GroupedProblem a_product(std::minstd_rand& numbers) {
  const auto pick = [&](std::initializer_list<int64_t> values) { return values.begin()[numbers() % values.size()]; };
  gg::GroupedProblem made{};
  made.extents = GG_M_ENDS;
  made.dtype = made.out_dtype = numbers() % 2 ? GG_FP16 : GG_BF16;
  made.m = pick({1, 64, 512, 4096}), made.n = pick({64, 1536, 2048}), made.k = pick({64, 768, 7168});
  made.groups = pick({1, 8, 128});
  made.a = 1 << 20, made.b = 2 << 20, made.c = 3 << 20, made.ragged = 4 << 20;
  made.a_row = made.k, made.a_col = 1, made.b_row = made.n, made.b_col = 1;
  made.b_group = made.n * made.k, made.c_row = made.n, made.c_col = 1;
  made.complete();
  return made;
}

void load_one(const gg_artifact& artifact, const gg::Device& device) {
  const py::gil_scoped_acquire locked;
  try {
    require(gg::load(artifact, device).function != nullptr, "a kernel that was loaded has no function");
    loads++;
  } catch (const gg::CudaError&) {  // as FAKE_CUDA_FAIL asks for, now and then: the next call tries again
    failed_loads++;
  }
}

void hammer(int seed, std::atomic<int>& waiting) {
  std::minstd_rand numbers(static_cast<unsigned>(seed));
  waiting--;
  while (waiting.load() > 0) {
  }
  for (int turn = 0; turn < turns; turn++) {
    const gg::Device& device = gg::device(static_cast<int>(numbers() % devices));
    require(gg::driver().version > 0 && !gg::catalog(device).others[GG_UPLOAD].empty(),
            "the device's kernels are not there");
    const gg::GroupedProblem product = a_product(numbers);
    require(gg::cached_choice(product, device).artifact == gg::select(product, device).artifact,
            "a remembered choice is another than the one made anew");
    choices++;
    const gg_artifact& artifact = gg_artifacts[numbers() % static_cast<unsigned>(gg_artifact_count)];
    if (gg::eligible(artifact, device)) load_one(artifact, device);
  }
}

void hammer_all() {
  std::atomic<int> waiting{threads};
  const py::gil_scoped_release unlocked;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++) all.emplace_back(hammer, i + 1, std::ref(waiting));
  for (std::thread& thread : all) thread.join();
  require(failed_loads > 0, "no load failed, though some were to");
  std::printf("%d choices, %d loads, %d of them failed and tried again, in %d threads\n", choices.load(), loads.load(),
              failed_loads.load(), threads);
}

void plant() {
  std::thread one([] { unguarded++; }), other([] { unguarded++; });
  one.join(), other.join();
  std::printf("%d\n", unguarded);
}

void walk(const char* script) {
  py::module_::import("sys").attr("modules")["gg_runtime._C"] = py::module_::import("_C");
  py::eval_file(script);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "planted") return plant(), 0;
  PyImport_AppendInittab("_C", PyInit__C);
  const py::scoped_interpreter python;
  if (mode == "hammer") return hammer_all(), 0;
  if (mode == "walk" && count > 2) return walk(arguments[2]), 0;
  std::fprintf(stderr, "races hammer | walk SCRIPT | planted\n");
  return 2;
}
