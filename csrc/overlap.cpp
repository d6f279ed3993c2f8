#include "overlap.hpp"

#include <cstdlib>

namespace gg {

bool shares_with_itself(const Tensor& t) {
  const int inner = std::abs(t.stride[0]) < std::abs(t.stride[1]) ? 0 : 1, outer = 1 - inner;
  const bool inner_repeats = t.shape[inner] > 1 && t.stride[inner] == 0;
  const int64_t inner_reach = (t.shape[inner] - 1) * std::abs(t.stride[inner]);
  const bool rows_meet = t.shape[outer] > 1 && std::abs(t.stride[outer]) <= inner_reach;
  return inner_repeats || rows_meet;
}

bool side_by_side(const Tensor& x, const Tensor& y) {
  const int64_t pitch = x.stride[0], bytes = bytes_of(x);
  if (x.rank != 2 || y.rank != 2 || bytes != bytes_of(y)) return false;
  if (pitch != y.stride[0] || x.stride[1] != 1 || y.stride[1] != 1 || pitch < x.shape[1] + y.shape[1]) return false;
  const int64_t pitch_bytes = pitch * bytes;
  int64_t ahead = (static_cast<int64_t>(y.data) - static_cast<int64_t>(x.data)) % pitch_bytes;
  if (ahead < 0) ahead += pitch_bytes;
  const int64_t column = ahead / bytes;
  return column >= x.shape[1] && column + y.shape[1] <= pitch;
}

}  // namespace gg
