#include <cmath>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

std::vector<Check> RunRmsNormForward(TestDevice& device, uint64_t seed, int64_t T, int64_t H) {
  Random random(seed);
  const float eps = 1e-5f;
  const auto x = RoundTo(device.act(), random.Normals(T * H, 3.0));
  const auto w = RoundTo(Element::kBf16, random.Normals(H));
  const DeviceTensor dx(device, device.act(), x);
  const DeviceTensor dw(device, Element::kBf16, w);
  const DeviceTensor y(device, device.act(), std::vector<double>(T * H, NAN));
  const DeviceTensor rstd(device, Element::kF32, std::vector<double>(T, NAN));
  device.Run(RmsNormForwardArgs{.x = dx.data(),
                                .weight = dw.as<uint16_t>(),
                                .y = y.data(),
                                .rstd = rstd.as<float>(),
                                .T = T,
                                .H = H,
                                .eps = eps});
  const auto expected = reference::RmsNorm(x, w, T, H, eps);
  return {CompareL2("y", y.Get(), expected.y, 2 * device.epsilon()),
          CompareL2("rstd", rstd.Get(), expected.rstd, 4 * 0x1p-24)};
}

std::vector<Check> RunRmsNormBackward(TestDevice& device, uint64_t seed, int64_t T, int64_t H,
                                      bool accumulate) {
  Random random(seed);
  const float eps = 1e-5f;
  const auto x = RoundTo(device.act(), random.Normals(T * H, 3.0));
  const auto dy = RoundTo(device.act(), random.Normals(T * H));
  const auto w = RoundTo(Element::kBf16, random.Normals(H));
  const auto before = RoundTo(device.act(), random.Normals(T * H, 0.3));
  const auto rstd = RoundTo(Element::kF32, reference::RmsNorm(x, w, T, H, eps).rstd);
  const DeviceTensor device_x(device, device.act(), x);
  const DeviceTensor device_dy(device, device.act(), dy);
  const DeviceTensor device_w(device, Element::kBf16, w);
  const DeviceTensor device_rstd(device, Element::kF32, rstd);
  const DeviceTensor dx(device, device.act(),
                        accumulate ? before : std::vector<double>(T * H, NAN));
  device.Run(RmsNormBackwardArgs{.dy = device_dy.data(),
                                 .x = device_x.data(),
                                 .weight = device_w.as<uint16_t>(),
                                 .rstd = device_rstd.as<float>(),
                                 .dx = dx.data(),
                                 .T = T,
                                 .H = H,
                                 .accumulate = accumulate});
  auto expected = reference::RmsNormGrad(dy, x, w, T, H, eps);
  if (accumulate) {
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  }
  return {CompareL2("dx", dx.Get(), expected, 4 * device.epsilon())};
}

std::vector<Check> RunRope(TestDevice& device, uint64_t seed, int64_t T, int64_t heads, int64_t D,
                           int64_t extra_columns, bool inverse, int32_t first_position) {
  Random random(seed);
  const int64_t stride = heads * D + extra_columns;
  const auto x = RoundTo(device.act(), random.Normals(T * stride));
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < T; ++t) {
    positions.push_back(first_position + static_cast<int32_t>(t % 37));
  }
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < D / 2; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(1e5, -2.0 * static_cast<double>(i) / D)));
  }
  const DeviceTensor device_x(device, device.act(), x);
  const DeviceArray<int32_t> device_positions(device, positions);
  const DeviceArray<float> device_freq(device, inv_freq);
  device.Run(RopeArgs{.x = device_x.data(),
                      .positions = device_positions.data(),
                      .inv_freq = device_freq.data(),
                      .T = T,
                      .heads = heads,
                      .D = D,
                      .row_stride = stride,
                      .inverse = inverse});
  auto expected = x;
  reference::Rope(&expected, positions, inv_freq, heads, D, stride, inverse);
  const auto got = device_x.Get();
  // Columns beyond the heads belong to others.
  std::vector<double> outside_got, outside_expected;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = heads * D; i < stride; ++i) {
      outside_got.push_back(got[t * stride + i]);
      outside_expected.push_back(x[t * stride + i]);
    }
  }
  return {CompareL2("x", got, expected, 2 * device.epsilon()),
          CompareExactly("columns outside", outside_got, outside_expected)};
}

std::string Shape(int64_t T, int64_t H) {
  return "_T" + std::to_string(T) + "_H" + std::to_string(H);
}

}  // namespace

void AppendNormAndRopeCases(std::vector<OpCase>* cases) {
  const int64_t shapes[][2] = {{1, 1}, {3, 7}, {5, 64}, {17, 100}, {64, 576}, {9, 2048}, {4, 4099}};
  for (const auto& [T, H] : shapes) {
    cases->push_back({"rms_norm_forward" + Shape(T, H), 0, [T = T, H = H](auto& device, auto seed) {
                        return RunRmsNormForward(device, seed, T, H);
                      }});
    if (H == 1) continue;  // the gradient of x / |x| is 0 but for eps: all cancellation
    for (bool accumulate : {false, true}) {
      cases->push_back({"rms_norm_backward" + Shape(T, H) + (accumulate ? "_accumulate" : ""), 0,
                        [T = T, H = H, accumulate](auto& device, auto seed) {
                          return RunRmsNormBackward(device, seed, T, H, accumulate);
                        }});
    }
  }
  struct RopeCase {
    int64_t T, heads, D, extra;
    bool inverse;
    int32_t first;
  };
  for (const RopeCase c :
       {RopeCase{1, 1, 2, 0, false, 1}, RopeCase{7, 3, 16, 5, false, 0},
        RopeCase{65, 9, 64, 0, false, 0}, RopeCase{65, 12, 64, 192, true, 0},
        RopeCase{40, 2, 80, 3, true, 100}, RopeCase{12, 4, 128, 0, false, 131000},
        RopeCase{3, 1, 256, 1, false, 1000000}}) {
    cases->push_back({"rope_T" + std::to_string(c.T) + "_heads" + std::to_string(c.heads) + "_D" +
                          std::to_string(c.D) + (c.inverse ? "_inverse" : "") + "_from" +
                          std::to_string(c.first),
                      0, [c](auto& device, auto seed) {
                        return RunRope(device, seed, c.T, c.heads, c.D, c.extra, c.inverse,
                                       c.first);
                      }});
  }
}

}  // namespace soup::kernels
