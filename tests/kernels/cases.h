// Every op, case by case: written once, run on every TestDevice.
//
// A case draws its inputs from its own seed (printed with a failure), runs one op and compares
// every output with the float64 reference. A bound is a multiple of the device's epsilon; an exact
// check has bound 0.
#ifndef SOUP_TESTS_KERNELS_CASES_H_
#define SOUP_TESTS_KERNELS_CASES_H_

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "tests/kernels/device.h"

namespace soup::kernels {

// One comparison. `error` is the L2 norm of the difference over the reference's (absolute when the
// reference is zero), or the count of differing elements for an exact check; not finite where the
// reference is finite counts as infinite.
struct Check {
  std::string what;
  double error;
  double bound;
  bool ok() const { return error <= bound; }
};

struct OpCase {
  std::string name;  // "rms_norm_forward_T3_H100": op first
  uint64_t seed;
  std::function<std::vector<Check>(TestDevice& device, uint64_t seed)> run;
};
void PrintTo(const OpCase& op, std::ostream* out);  // for GoogleTest

// All cases of all ops.
std::vector<OpCase> AllCases();

// For the files that define cases.
void AppendNormAndRopeCases(std::vector<OpCase>* cases);
void AppendAttentionCases(std::vector<OpCase>* cases);
void AppendElementwiseCases(std::vector<OpCase>* cases);
void AppendGemmCases(std::vector<OpCase>* cases);
void AppendGateCases(std::vector<OpCase>* cases);
void AppendLoraCases(std::vector<OpCase>* cases);
void AppendQkvCases(std::vector<OpCase>* cases);
void AppendLossCases(std::vector<OpCase>* cases);
void AppendOptimizerCases(std::vector<OpCase>* cases);
void AppendNf4Cases(std::vector<OpCase>* cases);
void AppendMoeCases(std::vector<OpCase>* cases);

Check CompareL2(const std::string& what, const std::vector<double>& got,
                const std::vector<double>& expected, double bound);
Check CompareExactly(const std::string& what, const std::vector<double>& got,
                     const std::vector<double>& expected);

// Normal and uniform draws from a seed: the same on every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435769u + 88172645463325252ull) {}
  uint64_t Bits();
  double Uniform();  // [0, 1)
  double Normal();
  int64_t Below(int64_t n);
  std::vector<double> Normals(int64_t n, double scale = 1.0);

 private:
  uint64_t state_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_CASES_H_
