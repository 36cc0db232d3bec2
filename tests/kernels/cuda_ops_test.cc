// Every op case on CUDA: against float64 within bf16's bounds, and the same bits on a second run.
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
class CudaGemm : public testing::Test {
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

// Where a residual lies is a matter of placement: in C itself or apart, the product has one result.
TEST_F(CudaGemm, BitsDoNotDependOnWhereTheAddendLies) {
  struct Shape {
    int64_t M, N, K;
  };
  for (const Shape& s : {Shape{64, 64, 64}, Shape{64, 64, 160}, Shape{128, 576, 1536},
                         Shape{512, 4096, 14336}, Shape{4096, 4096, 4096}}) {
    CudaDevice device;
    Random random(7);
    const auto small = [&](int64_t n) {
      std::vector<uint16_t> values(static_cast<size_t>(n));
      for (uint16_t& v : values) {
        v = static_cast<uint16_t>((random.Bits() & 0x807f) | ((0x7a + random.Bits() % 5) << 7));
      }
      return values;
    };
    const DeviceArray<uint16_t> a(device, small(s.M * s.K)), b(device, small(s.N * s.K));
    const std::vector<uint16_t> before = small(s.M * s.N);
    const DeviceArray<uint16_t> in_place(device, before), addend(device, before),
        apart(device, small(s.M * s.N));
    GemmArgs g{};
    g.transpose_b = true;
    g.M = s.M;
    g.N = s.N;
    g.K = s.K;
    g.alpha = g.beta = 1;
    g.A = a.data();
    g.lda = s.K;
    g.B = b.data();
    g.ldb = s.K;
    g.C = in_place.data();
    g.ldc = s.N;
    device.Run(g);
    g.C = apart.data();
    g.addend = addend.data();
    device.Run(g);
    ASSERT_EQ(device.failure(), "");
    std::vector<uint16_t> first(before.size()), second(before.size());
    device.Download(first.data(), in_place.data(), first.size() * 2);
    device.Download(second.data(), apart.data(), second.size() * 2);
    EXPECT_TRUE(first == second) << s.M << " x " << s.N << " x " << s.K;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaOps, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace soup::kernels
