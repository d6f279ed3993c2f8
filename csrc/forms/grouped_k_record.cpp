// A product of ragged K as its kernels read it: one record in their own parameters.
#include "driver/error.hpp"
#include "forms/grouped_maps.hpp"

namespace gg {

ProblemRecord grouped_k_record(const GroupedProblem&, const gg_artifact& artifact) {
  throw UnsupportedError(std::string("grouped_mm: ") + artifact.name + " reads no record of ragged K");
}

}  // namespace gg
