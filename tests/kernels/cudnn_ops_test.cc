// Attention by cuDNN, and by our own kernels that take its place on sm_90a: the shared cases
// against float64, the same bits on many reruns, and nothing read or written beside a sequence.
// Skipped without a GPU or the library; SOUP_REQUIRE_GPU=1 makes the first a failure.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/cuda/rope.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cudnn_device.h"
#include "tests/kernels/wrapped_device.h"

namespace soup::kernels {
namespace {

bool HaveGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::vector<OpCase> AttentionCases() {
  std::vector<OpCase> cases;
  AppendAttentionCases(&cases);
  return cases;
}

class CudnnOps : public testing::TestWithParam<std::tuple<OpCase, bool>> {
 protected:
  const OpCase& op() const { return std::get<0>(GetParam()); }
  bool own() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (!HaveGpu()) {
      const char* required = std::getenv("SOUP_REQUIRE_GPU");
      if (required != nullptr && std::strcmp(required, "1") == 0)
        FAIL() << "SOUP_REQUIRE_GPU=1, but there is no CUDA device";
      GTEST_SKIP() << "no CUDA device";
    }
    if (const CudnnDevice device; !device.present()) GTEST_SKIP() << device.error();
  }
};

TEST_P(CudnnOps, MatchesFloat64) {
  CudnnDevice device(own());
  const std::vector<Check> checks = op().run(device, op().seed);
  ASSERT_EQ(device.failure(), "");
  if (!device.unsupported().empty()) GTEST_SKIP() << device.unsupported();
  for (const Check& check : checks) {
    EXPECT_LE(check.error, check.bound)
        << op().name << ": " << check.what << ", seed " << op().seed;
  }
}

TEST_P(CudnnOps, SameBitsTenTimes) {
  WrappedDevice first(std::make_unique<CudnnDevice>(own()));
  op().run(first, op().seed);
  for (int i = 0; i < 9; ++i) {
    WrappedDevice again(std::make_unique<CudnnDevice>(own()));
    op().run(again, op().seed);
    EXPECT_TRUE(first.downloads() == again.downloads()) << op().name << ", rerun " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudnnOps,
                         testing::Combine(testing::ValuesIn(AttentionCases()), testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  (std::get<1>(info.param) ? "_own" : "");
                         });

// A sequence of 300 tokens in the class of 384, in the middle of buffers that are NaN everywhere
// else: a read outside would show in the results, a write outside in the rest.
class CudnnBounds : public CudnnOps {};

INSTANTIATE_TEST_SUITE_P(Backward, CudnnBounds,
                         testing::Combine(testing::Values(OpCase()), testing::Bool()),
                         [](const auto& info) {
                           return std::get<1>(info.param) ? "Own" : "Library";
                         });

TEST_P(CudnnBounds, NothingBesideTheSequenceIsReadOrWritten) {
  constexpr int64_t kHq = 4, kHkv = 2, kFirst = 100, kLength = 300, kRows = 400;
  const int64_t kD = own() ? cuda::kHopperAttentionHeadDim : 64;
  const int64_t kStride = (kHq + 2 * kHkv) * kD, kOut = kHq * kD;
  if (own() && !cuda::HasHopperAttention()) GTEST_SKIP() << "another device";
  CudnnDevice device;
  const uint16_t nan = 0x7fc0;
  const auto rows = [&](int64_t stride, bool fill) {
    std::vector<uint16_t> v(kRows * stride, nan);
    uint32_t state = 12345;
    for (int64_t i = kFirst * stride; fill && i < (kFirst + kLength) * stride; ++i) {
      state = state * 1664525u + 1013904223u;
      v[i] = F32ToBf16(static_cast<float>(state >> 8) / (1 << 23) - 1.f);
    }
    return v;
  };
  const DeviceArray<uint16_t> qkv(device, rows(kStride, true)), out(device, rows(kOut, false)),
      dout(device, rows(kOut, true)), grad(device, rows(kStride, false));
  const DeviceArray<float> lse(device, std::vector<float>(kRows * kHq, NAN));
  const DeviceArray<float> delta(device, std::vector<float>(kRows * kHq, NAN));
  const cuda::CudnnAttentionShape shape = {384, false, kHq, kHkv, kD, kStride, 1};
  std::string error;
  int64_t workspace = 0;
  cuda::CudnnAttention* const library = device.library();
  ASSERT_TRUE(library->Prepare(shape, &workspace, &error)) << error;
  void* block = static_cast<char*>(device.Allocate(workspace + 256, 16)) + 240;
  AttentionForwardArgs f{};
  f.q = qkv.data();
  f.k = qkv.data() + kHq * kD;
  f.v = qkv.data() + (kHq + kHkv) * kD;
  f.row_stride = kStride;
  f.out = out.data();
  f.lse = lse.data();
  f.T = kRows;
  f.Hq = kHq;
  f.Hkv = kHkv;
  f.D = kD;
  f.scale = 0.125f;
  AttentionBackwardArgs b{};
  b.q = f.q;
  b.k = f.k;
  b.v = f.v;
  b.row_stride = b.grad_row_stride = kStride;
  b.out = out.data();
  b.dout = dout.data();
  b.lse = lse.data();
  b.dq = grad.data();
  b.dk = grad.data() + kHq * kD;
  b.dv = grad.data() + (kHq + kHkv) * kD;
  b.delta = delta.data();
  b.T = kRows;
  b.Hq = kHq;
  b.Hkv = kHkv;
  b.D = kD;
  b.scale = f.scale;
  if (own()) {
    device.OwnForward(f, {kFirst, kLength});
    device.OwnBackward(b, {kFirst, kLength, 1, 1});
    ASSERT_EQ(device.failure(), "");
  } else {
    ASSERT_EQ(library->Forward(f, shape, {kFirst, kLength}), cudaSuccess) << library->last_error();
    ASSERT_EQ(library->Backward(b, shape, {kFirst, kLength}, block, workspace), cudaSuccess)
        << library->last_error();
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto check = [&](const uint16_t* data, int64_t stride, const char* what) {
    std::vector<uint16_t> v(kRows * stride);
    device.Download(v.data(), data, v.size() * 2);
    int64_t written = 0, poisoned = 0;
    for (int64_t i = 0; i < kRows * stride; ++i) {
      const bool inside = i >= kFirst * stride && i < (kFirst + kLength) * stride;
      if (inside && std::isnan(Bf16ToF32(v[i]))) ++poisoned;
      if (!inside && v[i] != nan) ++written;
    }
    EXPECT_EQ(written, 0) << what << ": elements written beside the sequence";
    EXPECT_EQ(poisoned, 0) << what << ": elements made of what lies beside the sequence";
  };
  check(out.data(), kOut, "out");
  check(grad.data(), kStride, "grad");
  std::vector<float> got(kRows * kHq);
  device.Download(got.data(), lse.data(), got.size() * sizeof(float));
  for (int64_t i = 0; i < kRows * kHq; ++i) {
    const int64_t t = i % kRows;
    EXPECT_EQ(std::isnan(got[i]), t < kFirst || t >= kFirst + kLength) << i;
  }
  if (!own()) return;
  // The same, turned back: as a rope behind it would.
  std::vector<int32_t> positions(kRows);
  for (int64_t t = 0; t < kRows; ++t) positions[t] = static_cast<int32_t>(977 * t);
  std::vector<float> inv_freq(kD / 2);
  for (int64_t k = 0; k < kD / 2; ++k) {
    inv_freq[k] = static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(k) / kD));
  }
  const DeviceArray<int32_t> device_positions(device, positions);
  const DeviceArray<float> device_freq(device, inv_freq);
  RopeArgs turn = {grad.data() + kFirst * kStride,
                   device_positions.data() + kFirst,
                   device_freq.data(),
                   kLength,
                   kHq + kHkv,
                   kD,
                   kStride,
                   true,
                   kD,
                   1.25f};
  ASSERT_EQ(cuda::Rope(turn, nullptr, cuda::ActType::kBf16), cudaSuccess);
  std::vector<uint16_t> apart(kRows * kStride), together(kRows * kStride);
  device.Download(apart.data(), grad.data(), apart.size() * 2);
  turn.positions = device_positions.data();
  device.OwnBackward(b, {kFirst, kLength, 1, 1}, &turn);
  ASSERT_EQ(device.failure(), "");
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  check(grad.data(), kStride, "turned grad");
  device.Download(together.data(), grad.data(), together.size() * 2);
  double difference = 0, square = 0;
  for (int64_t i = kFirst * kStride; i < (kFirst + kLength) * kStride; ++i) {
    const double x = Bf16ToF32(apart[i]), y = Bf16ToF32(together[i]);
    difference += (x - y) * (x - y);
    square += x * x;
  }
  EXPECT_LE(std::sqrt(difference / square), 3e-3) << "bf16 rounds by 1.6e-3";
}

}  // namespace
}  // namespace soup::kernels
