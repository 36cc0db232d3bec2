// Every op case on the CPU: each instruction set against float64, and the same bits on all of them,
// for every thread count and on a second run.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/simd_table.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cpu_device.h"
#include "tests/kernels/wrapped_device.h"

namespace soup::kernels {
namespace {

class CpuOps : public testing::TestWithParam<OpCase> {};

TEST_P(CpuOps, MatchesFloat64) {
  CpuDevice device({.threads = 2});
  for (const Check& check : GetParam().run(device, GetParam().seed)) {
    EXPECT_LE(check.error, check.bound)
        << GetParam().name << ": " << check.what << ", seed " << GetParam().seed;
  }
}

// One BLAS thread throughout: a product's bits may depend on the BLAS thread count, and on nothing
// else here.
TEST_P(CpuOps, SameBitsOnEverySimdAndThreadCount) {
  const OpCase& op = GetParam();
  WrappedDevice first(
      std::make_unique<CpuDevice>(cpu::CpuContextOptions{.threads = 1, .simd = "base"}));
  op.run(first, op.seed);
  const char* const simds[] = {"base", "avx2", "avx512"};
  for (const char* simd : simds) {
    if (cpu::FindSimdTable(simd) == nullptr) continue;  // not this machine's
    for (int threads : {1, 2, 5}) {
      WrappedDevice again(
          std::make_unique<CpuDevice>(cpu::CpuContextOptions{.threads = threads, .simd = simd}));
      op.run(again, op.seed);
      EXPECT_EQ(again.downloads() == first.downloads(), true)
          << op.name << ": other bits with " << simd << ", " << threads << " threads, seed "
          << op.seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CpuOps, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace soup::kernels
