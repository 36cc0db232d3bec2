#include <cmath>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

// Variants of the families: 1 + weight, the output added to what is there, no rstd.
struct NormVariant {
  const char* name = "";
  float weight_offset = 0;
  bool accumulate = false;
  bool rstd = true;
};

std::vector<double> Plus(std::vector<double> values, double offset) {
  for (double& v : values) v += offset;
  return values;
}

std::vector<Check> RunRmsNormForward(TestDevice& device, uint64_t seed, int64_t T, int64_t H,
                                     const NormVariant& variant) {
  Random random(seed);
  const float eps = 1e-5f;
  const auto x = RoundTo(device.act(), random.Normals(T * H, 3.0));
  const auto w = RoundTo(Element::kBf16, random.Normals(H));
  const DeviceTensor dx(device, device.act(), x);
  const DeviceTensor dw(device, Element::kBf16, w);
  const auto before = RoundTo(device.act(), random.Normals(T * H));
  const DeviceTensor y(device, device.act(),
                       variant.accumulate ? before : std::vector<double>(T * H, NAN));
  const DeviceTensor rstd(device, Element::kF32, std::vector<double>(T, NAN));
  device.Run(RmsNormForwardArgs{.x = dx.data(),
                                .weight = dw.as<uint16_t>(),
                                .y = y.data(),
                                .rstd = variant.rstd ? rstd.as<float>() : nullptr,
                                .T = T,
                                .H = H,
                                .eps = eps,
                                .weight_offset = variant.weight_offset,
                                .accumulate = variant.accumulate});
  auto expected = reference::RmsNorm(x, Plus(w, variant.weight_offset), T, H, eps);
  for (int64_t i = 0; variant.accumulate && i < T * H; ++i) expected.y[i] += before[i];
  std::vector<Check> checks = {CompareL2("y", y.Get(), expected.y, 2 * device.epsilon())};
  if (!variant.rstd) return checks;
  checks.push_back(CompareL2("rstd", rstd.Get(), expected.rstd, 4 * 0x1p-24));
  return checks;
}

std::vector<Check> RunRmsNormBackward(TestDevice& device, uint64_t seed, int64_t T, int64_t H,
                                      bool accumulate, const NormVariant& variant) {
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
  const DeviceTensor rstd_out(device, Element::kF32, std::vector<double>(T, NAN));
  const DeviceTensor dx(device, device.act(),
                        accumulate ? before : std::vector<double>(T * H, NAN));
  device.Run(RmsNormBackwardArgs{.dy = device_dy.data(),
                                 .x = device_x.data(),
                                 .weight = device_w.as<uint16_t>(),
                                 .rstd = variant.rstd ? device_rstd.as<float>() : nullptr,
                                 .dx = dx.data(),
                                 .T = T,
                                 .H = H,
                                 .accumulate = accumulate,
                                 .weight_offset = variant.weight_offset,
                                 .eps = eps,
                                 .rstd_out = rstd_out.as<float>()});
  auto expected = reference::RmsNormGrad(dy, x, Plus(w, variant.weight_offset), T, H, eps);
  if (accumulate) {
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  }
  return {CompareL2("dx", dx.Get(), expected, 4 * device.epsilon()),
          CompareL2("rstd", rstd_out.Get(), rstd, 4 * 0x1p-24)};
}

struct HeadNormCase {
  int64_t T, heads, D, extra;  // extra: columns of others after the heads and their copy
  float weight_offset;
  int64_t rotary = 0;  // 0: no rope behind it
};

// x and its copy lie side by side in one buffer, as the engine lays them.
std::vector<Check> RunHeadNorm(TestDevice& device, uint64_t seed, const HeadNormCase& c) {
  Random random(seed);
  const float eps = 1e-5f;
  const int64_t width = c.heads * c.D, stride = 2 * width + c.extra;
  const auto x = RoundTo(device.act(), random.Normals(c.T * stride, 2.0));
  const auto w = RoundTo(Element::kBf16, random.Normals(c.D));
  const auto dy = RoundTo(device.act(), random.Normals(c.T * (width + c.extra)));
  const DeviceTensor buffer(device, device.act(), x);
  const DeviceTensor weight(device, Element::kBf16, w);
  const DeviceTensor grad(device, device.act(), dy);
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < c.T; ++t) positions.push_back(static_cast<int32_t>(t * 3));
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < c.rotary / 2; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(i) / c.D)));
  }
  const DeviceArray<int32_t> device_positions(device, positions);
  const DeviceArray<float> device_freq(device, inv_freq);
  HeadRope rope;
  if (c.rotary > 0) rope = {device_positions.data(), device_freq.data(), c.rotary, 1.25f};
  void* saved = static_cast<char*>(buffer.data()) + width * (device.act() == Element::kF32 ? 4 : 2);
  device.Run(HeadNormForwardArgs{.x = buffer.data(),
                                 .saved = saved,
                                 .weight = weight.as<uint16_t>(),
                                 .T = c.T,
                                 .heads = c.heads,
                                 .D = c.D,
                                 .row_stride = stride,
                                 .eps = eps,
                                 .weight_offset = c.weight_offset,
                                 .rope = rope});
  device.Run(HeadNormBackwardArgs{.dx = grad.data(),
                                  .x = saved,
                                  .weight = weight.as<uint16_t>(),
                                  .T = c.T,
                                  .heads = c.heads,
                                  .D = c.D,
                                  .row_stride = stride,
                                  .grad_row_stride = width + c.extra,
                                  .eps = eps,
                                  .weight_offset = c.weight_offset,
                                  .rope = rope});
  const auto got = buffer.Get(), got_grad = grad.Get();
  auto expected = x;
  auto expected_grad = dy;
  std::vector<double> copies, expected_copies;
  const auto plus = Plus(w, c.weight_offset);
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto at = x.begin() + t * stride + h * c.D;
      const std::vector<double> head(at, at + c.D);
      const auto grad_at = dy.begin() + t * (width + c.extra) + h * c.D;
      std::vector<double> d_head(grad_at, grad_at + c.D);
      auto y = reference::RmsNorm(head, plus, 1, c.D, eps).y;
      if (c.rotary > 0) {
        reference::Rope(&y, {positions[t]}, inv_freq, 1, c.D, c.D, false, c.rotary, 1.25);
        reference::Rope(&d_head, {positions[t]}, inv_freq, 1, c.D, c.D, true, c.rotary, 1.25);
      }
      const auto dx = reference::RmsNormGrad(d_head, head, plus, 1, c.D, eps);
      std::copy(y.begin(), y.end(), expected.begin() + t * stride + h * c.D);
      std::copy(head.begin(), head.end(), expected.begin() + t * stride + width + h * c.D);
      std::copy(dx.begin(), dx.end(), expected_grad.begin() + t * (width + c.extra) + h * c.D);
    }
    for (int64_t i = width; i < stride; ++i) {
      copies.push_back(got[t * stride + i]);
      expected_copies.push_back(expected[t * stride + i]);
    }
  }
  return {CompareL2("x", got, expected, 2 * device.epsilon()),
          CompareExactly("saved and outside", copies, expected_copies),
          CompareL2("dx", got_grad, expected_grad, 6 * device.epsilon())};
}

std::vector<Check> RunRope(TestDevice& device, uint64_t seed, int64_t T, int64_t heads, int64_t D,
                           int64_t extra_columns, bool inverse, int32_t first_position,
                           int64_t rotary = 0, float scale = 1) {
  Random random(seed);
  const int64_t stride = heads * D + extra_columns;
  const auto x = RoundTo(device.act(), random.Normals(T * stride));
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < T; ++t) {
    positions.push_back(first_position + static_cast<int32_t>(t % 37));
  }
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < (rotary > 0 ? rotary : D) / 2; ++i) {
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
                      .inverse = inverse,
                      .rotary = rotary,
                      .scale = scale});
  auto expected = x;
  reference::Rope(&expected, positions, inv_freq, heads, D, stride, inverse, rotary, scale);
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
    for (const NormVariant& v :
         {NormVariant{}, NormVariant{"_one_plus", 1, false, true},
          NormVariant{"_added", 0, true, true}, NormVariant{"_one_plus_added", 1, true, false}}) {
      cases->push_back({std::string("rms_norm_forward") + v.name + Shape(T, H), 0,
                        [T = T, H = H, v](auto& device, auto seed) {
                          return RunRmsNormForward(device, seed, T, H, v);
                        }});
    }
    if (H == 1) continue;  // the gradient of x / |x| is 0 but for eps: all cancellation
    for (const NormVariant& v : {NormVariant{}, NormVariant{"_one_plus", 1, false, false}}) {
      for (bool accumulate : {false, true}) {
        cases->push_back({std::string("rms_norm_backward") + v.name + Shape(T, H) +
                              (accumulate ? "_accumulate" : ""),
                          0, [T = T, H = H, accumulate, v](auto& device, auto seed) {
                            return RunRmsNormBackward(device, seed, T, H, accumulate, v);
                          }});
      }
    }
  }
  for (const HeadNormCase c :
       {HeadNormCase{1, 1, 2, 0, 0}, HeadNormCase{5, 3, 20, 3, 0}, HeadNormCase{17, 4, 32, 8, 1},
        HeadNormCase{9, 2, 128, 64, 0}, HeadNormCase{4, 5, 256, 0, 1},
        HeadNormCase{17, 4, 32, 8, 1, 32}, HeadNormCase{9, 3, 128, 0, 0, 96},
        HeadNormCase{6, 2, 256, 8, 1, 256}, HeadNormCase{3, 1, 16, 0, 0, 16}}) {
    cases->push_back({"head_norm_T" + std::to_string(c.T) + "_heads" + std::to_string(c.heads) +
                          "_D" + std::to_string(c.D) +
                          (c.rotary > 0 ? "_rope" + std::to_string(c.rotary) : ""),
                      0, [c](auto& device, auto seed) { return RunHeadNorm(device, seed, c); }});
  }
  cases->push_back({"rope_partial", 0, [](auto& device, auto seed) {
                      return RunRope(device, seed, 33, 3, 128, 8, false, 5, 96, 1.0f);
                    }});
  cases->push_back({"rope_partial_scaled_inverse", 0, [](auto& device, auto seed) {
                      return RunRope(device, seed, 33, 3, 64, 0, true, 5, 32, 1.25f);
                    }});
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
