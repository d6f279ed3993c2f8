#include "forms/overlap.hpp"

#include <cstdlib>
#include <limits>

namespace gg {

bool is_addressable(const Tensor& t) {
  // Nearly always so: sizes are below 2^31, and these strides cannot take the sum below past 2^63.
  constexpr uint64_t usual_stride = uint64_t{1} << 28, usual_address = uint64_t{1} << 62;
  const auto is_usual = [](int64_t stride) { return static_cast<uint64_t>(stride) < usual_stride; };
  if (t.data < usual_address && is_usual(t.stride[0]) && is_usual(t.stride[1]) && is_usual(t.stride[2])) return true;
  if (is_empty(t)) return true;
  __extension__ using Wide = __int128;
  Wide low = t.data, high = low + bytes_of(t);
  for (int d = 0; d < 3; d++) {
    (t.stride[d] < 0 ? low : high) += static_cast<Wide>(t.shape[d] - 1) * t.stride[d] * bytes_of(t);
  }
  return low >= 0 && high <= std::numeric_limits<int64_t>::max();
}

bool shares_with_itself(const Tensor& t) {
  // A dimension of one element has no step, whatever its stride says.
  const int64_t steps[2] = {t.shape[0] > 1 ? std::abs(t.stride[0]) : 0, t.shape[1] > 1 ? std::abs(t.stride[1]) : 0};
  const int inner = steps[0] < steps[1] ? 0 : 1, outer = 1 - inner;
  const bool inner_repeats = t.shape[inner] > 1 && steps[inner] == 0;
  const bool rows_meet = t.shape[outer] > 1 && steps[outer] <= (t.shape[inner] - 1) * steps[inner];
  return inner_repeats || rows_meet;
}

bool side_by_side(const Tensor& x, const Tensor& y) {
  const int64_t pitch = x.stride[0], bytes = bytes_of(x);
  if (x.rank != 2 || y.rank != 2 || bytes != bytes_of(y)) return false;
  if (pitch != y.stride[0] || x.stride[1] != 1 || y.stride[1] != 1 || pitch < x.shape[1] + y.shape[1]) return false;
  // A single row may state any pitch. Its extent is exact, so that nothing is lost by refusing an absurd one.
  int64_t pitch_bytes = 0;
  if (__builtin_mul_overflow(pitch, bytes, &pitch_bytes)) return false;
  int64_t ahead = (static_cast<int64_t>(y.data) - static_cast<int64_t>(x.data)) % pitch_bytes;
  if (ahead < 0) ahead += pitch_bytes;
  const int64_t column = ahead / bytes;
  return column >= x.shape[1] && column + y.shape[1] <= pitch;
}

bool may_share(const Tensor& x, const Tensor& y) {
  if (x.rank == 0 || y.rank == 0 || is_empty(x) || is_empty(y)) return false;
  const Extent a = extent(x), b = extent(y);
  return a.high > b.low && b.high > a.low && !(x.rank == 2 && side_by_side(x, y));
}

}  // namespace gg
