// Least squares of y = fixed + slope * x (the normal equations, x and y centred).
#ifndef SOUP_BENCH_LINE_FIT_H_
#define SOUP_BENCH_LINE_FIT_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace soup::bench {

struct LineFit {
  double fixed = 0;
  double slope = 0;
  double worst_residual = 0;  // largest |y - fit|
};

// Errors: InvalidArgument (fewer than two different x).
absl::StatusOr<LineFit> FitLine(const std::vector<std::pair<double, double>>& points);

}  // namespace soup::bench

#endif  // SOUP_BENCH_LINE_FIT_H_
