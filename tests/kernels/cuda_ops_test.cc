// Every op case on CUDA, with activations of bf16 and of fp32: against float64 within the type's
// bounds (a few times 2^-9 or 2^-18, CudaDevice::epsilon), and the same bits on a second run.
// Without a GPU the cases are reported as skipped; SOUP_REQUIRE_GPU=1 makes that a failure.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda_device.h"
#include "tests/kernels/wrapped_device.h"

namespace soup::kernels {
namespace {

bool HaveGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

void SkipWithoutGpu() {
  if (HaveGpu()) return;
  const char* required = std::getenv("SOUP_REQUIRE_GPU");
  if (required != nullptr && std::strcmp(required, "1") == 0)
    FAIL() << "SOUP_REQUIRE_GPU=1, but there is no CUDA device";
  GTEST_SKIP() << "no CUDA device";
}

class CudaOps : public testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override { SkipWithoutGpu(); }
};

TEST_P(CudaOps, MatchesFloat64) {
  CudaDevice device;
  const std::vector<Check> checks = GetParam().run(device, GetParam().seed);
  ASSERT_EQ(device.failure(), "");
  if (!device.unsupported().empty()) GTEST_SKIP() << device.unsupported();
  for (const Check& check : checks) {
    EXPECT_LE(check.error, check.bound)
        << GetParam().name << ": " << check.what << ", seed " << GetParam().seed;
  }
}

TEST_P(CudaOps, SameBitsTwice) {
  WrappedDevice first(std::make_unique<CudaDevice>()), second(std::make_unique<CudaDevice>());
  GetParam().run(first, GetParam().seed);
  GetParam().run(second, GetParam().seed);
  EXPECT_TRUE(first.downloads() == second.downloads()) << GetParam().name;
}

class CudaF32Ops : public CudaOps {};

TEST_P(CudaF32Ops, MatchesFloat64) {
  CudaDevice device(cuda::ActType::kF32);
  const std::vector<Check> checks = GetParam().run(device, GetParam().seed);
  ASSERT_EQ(device.failure(), "");
  if (!device.unsupported().empty()) GTEST_SKIP() << device.unsupported();
  for (const Check& check : checks) {
    EXPECT_LE(check.error, check.bound)
        << GetParam().name << ": " << check.what << ", seed " << GetParam().seed;
  }
}

TEST_P(CudaF32Ops, SameBitsTwice) {
  WrappedDevice first(std::make_unique<CudaDevice>(cuda::ActType::kF32));
  WrappedDevice second(std::make_unique<CudaDevice>(cuda::ActType::kF32));
  GetParam().run(first, GetParam().seed);
  GetParam().run(second, GetParam().seed);
  EXPECT_TRUE(first.downloads() == second.downloads()) << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaF32Ops, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Cases, CudaOps, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace soup::kernels
