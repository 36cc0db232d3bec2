#include "tests/kernels/cases.h"

#include <cmath>
#include <limits>
#include <ostream>

namespace soup::kernels {

std::vector<OpCase> AllCases() {
  std::vector<OpCase> cases;
  AppendNormAndRopeCases(&cases);
  AppendAttentionCases(&cases);
  AppendElementwiseCases(&cases);
  AppendGemmCases(&cases);
  AppendLoraCases(&cases);
  AppendGateCases(&cases);
  AppendQkvCases(&cases);
  AppendLossCases(&cases);
  AppendOptimizerCases(&cases);
  AppendNf4Cases(&cases);
  AppendMoeCases(&cases);
  for (size_t i = 0; i < cases.size(); ++i) cases[i].seed = 1000 + i;
  return cases;
}

void PrintTo(const OpCase& op, std::ostream* out) { *out << op.name << ", seed " << op.seed; }

Check CompareL2(const std::string& what, const std::vector<double>& got,
                const std::vector<double>& expected, double bound) {
  double difference = 0, norm = 0;
  if (got.size() != expected.size()) return {what, std::numeric_limits<double>::infinity(), bound};
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = got[i] - expected[i];
    difference += d * d;
    norm += expected[i] * expected[i];
  }
  double error = std::sqrt(difference);
  if (norm > 0) error /= std::sqrt(norm);
  if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
  return {what, error, bound};
}

Check CompareExactly(const std::string& what, const std::vector<double>& got,
                     const std::vector<double>& expected) {
  double differing = got.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < got.size() && i < expected.size(); ++i) {
    if (!(got[i] == expected[i])) differing += 1;
  }
  return {what, differing, 0};
}

// xorshift64*.
uint64_t Random::Bits() {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 2685821657736338717ull;
}
double Random::Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
double Random::Normal() {
  const double u = 1.0 - Uniform();  // (0, 1]
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * Uniform());
}
int64_t Random::Below(int64_t n) { return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n)); }
std::vector<double> Random::Normals(int64_t n, double scale) {
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = scale * Normal();
  return values;
}

}  // namespace soup::kernels
