#include "forms/overlap.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace gg {
namespace {

// The pitch of rows that all lie on one grid: those of a matrix, or of a stack whose matrices are whole rows apart; 0
// for others.
int64_t row_pitch(const Tensor& t) {
  if (t.rank == 2) return t.stride[1] == 1 ? t.stride[0] : 0;
  const bool on_grid = t.rank == 3 && t.stride[2] == 1 && t.stride[1] > 0 && t.stride[0] % t.stride[1] == 0;
  return on_grid ? t.stride[1] : 0;
}

}  // namespace

bool is_addressable(const Tensor& t) {
  // Nearly always so: three sizes below 2^31 at such strides, in elements of 8 bytes at most, reach less than 2^62.
  constexpr uint64_t usual_stride = uint64_t{1} << 26, usual_address = uint64_t{1} << 62;
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
  struct Step {
    int64_t size, stride;
  } steps[3];
  for (int d = 0; d < 3; d++) steps[d] = {t.shape[d], t.shape[d] > 1 ? std::abs(t.stride[d]) : 0};
  std::sort(steps, steps + 3, [](const Step& x, const Step& y) { return x.stride < y.stride; });
  int64_t reach = 0;  // of the dimensions so far: from their first element to their last
  for (const Step& step : steps) {
    if (step.size <= 1) continue;
    if (step.stride <= reach) return true;
    reach += (step.size - 1) * step.stride;
  }
  return false;
}

bool side_by_side(const Tensor& x, const Tensor& y) {
  const int64_t pitch = row_pitch(x), bytes = bytes_of(x);
  if (pitch <= 0 || pitch != row_pitch(y) || bytes != bytes_of(y)) return false;
  const int64_t of_x = x.shape[x.rank - 1], of_y = y.shape[y.rank - 1];
  if (pitch < of_x + of_y) return false;
  // A single row may state any pitch. Its extent is exact, so that nothing is lost by refusing an absurd one.
  int64_t pitch_bytes = 0;
  if (__builtin_mul_overflow(pitch, bytes, &pitch_bytes)) return false;
  int64_t ahead = (static_cast<int64_t>(y.data) - static_cast<int64_t>(x.data)) % pitch_bytes;
  if (ahead < 0) ahead += pitch_bytes;
  const int64_t column = ahead / bytes;
  return column >= of_x && column + of_y <= pitch;
}

bool may_share(const Tensor& x, const Tensor& y) {
  if (x.data == 0 || y.data == 0 || is_empty(x) || is_empty(y)) return false;
  const Extent a = extent(x), b = extent(y);
  return a.high > b.low && b.high > a.low && !side_by_side(x, y);
}

}  // namespace gg
