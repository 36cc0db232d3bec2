#include "bench/line_fit.h"

#include <algorithm>
#include <cmath>

namespace soup::bench {

absl::StatusOr<LineFit> FitLine(const std::vector<std::pair<double, double>>& points) {
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) {
    mean_x += x;
    mean_y += y;
  }
  const double n = static_cast<double>(std::max<size_t>(points.size(), 1));
  mean_x /= n;
  mean_y /= n;
  double xx = 0, xy = 0;
  for (const auto& [x, y] : points) {
    xx += (x - mean_x) * (x - mean_x);
    xy += (x - mean_x) * (y - mean_y);
  }
  if (!(xx > 0)) {
    return absl::InvalidArgumentError("a line needs points at two different sizes or more");
  }
  LineFit fit;
  fit.slope = xy / xx;
  fit.fixed = mean_y - fit.slope * mean_x;
  for (const auto& [x, y] : points) {
    fit.worst_residual = std::max(fit.worst_residual, std::abs(y - fit.fixed - fit.slope * x));
  }
  return fit;
}

}  // namespace soup::bench
