// A list that does not fit a kernel's parameters goes to device memory by launches of `pack`
// (aot/kernels/memory/pack.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/driver.hpp"
#include "forms/list_problem.hpp"
#include "forms/list_record.hpp"

namespace gg {

// What a kernel of the artifact reads of the problem. The driver encodes descriptors only for a thread that has a
// context, which one of autograd's has not before its first launch: the device's own is made current.
ProblemRecord record_on(const Device& device, const Problem& problem, const gg_artifact& artifact);

// What one launch of `pack` brings: groups of a list that follow each other.
struct Upload {
  size_t first, groups;
  uint64_t differs;  // bit w: word w of a group, its end first, then its record, is not the same in all of them
};

// The fewest launches that bring a list whose groups stay in order, where one takes `capacity` words.
std::vector<Upload> plan_uploads(const ProblemRecord& list, size_t capacity);

// Writes what `pack` expands: the words that all groups of the launch share, then each group's own. Returns how many.
size_t write_upload(const ProblemRecord& list, const Upload& upload, uint64_t* words);

// Writes the list to `destination` on the device, in the order of the stream. Nothing waits for the GPU.
void upload(const ProblemRecord& list, CUdeviceptr destination, const Device& device, CUstream stream);

// How many launches of `pack` come before the artifact's own: 0 where the list fits its parameters. Encodes the
// descriptors.
size_t upload_count(const ListProblem& problem, const gg_artifact& artifact, const Device& device);

}  // namespace gg
