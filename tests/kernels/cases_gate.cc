// GateUp and DownBackward: the gated MLP's products with the gate. AdaptedProduct: a linear's with
// its adapters.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct GateCase {
  int64_t T, H, I;
  GateActivation gate;

  bool gelu() const { return gate == GateActivation::kGeluTanh; }
  std::string name() const {
    return "_T" + std::to_string(T) + "_H" + std::to_string(H) + "_I" + std::to_string(I) +
           (gelu() ? "_gelu" : "");
  }
};

double ProductBound(const TestDevice& device, int64_t K) {
  return (2.0 + std::sqrt(static_cast<double>(K))) * 0x1p-24 + 2 * device.epsilon();
}

// `rows` of them, and one more that nobody may write.
std::vector<double> WithGuard(std::vector<double> rows, int64_t width) {
  rows.insert(rows.end(), width, 7.0);
  return rows;
}
std::vector<double> Guard(const std::vector<double>& rows, int64_t width) {
  return {rows.end() - width, rows.end()};
}
std::vector<double> WithoutGuard(const DeviceTensor& tensor, int64_t width,
                                 std::vector<Check>* checks) {
  std::vector<double> rows = tensor.Get();
  checks->push_back(
      CompareExactly("the row behind", Guard(rows, width), std::vector<double>(width, 7.0)));
  rows.resize(rows.size() - width);
  return rows;
}

std::vector<Check> RunGateUp(TestDevice& device, uint64_t seed, const GateCase& c) {
  Random random(seed);
  const int64_t width = 2 * c.I;
  const auto x = RoundTo(device.act(), random.Normals(c.T * c.H));
  const auto w = RoundTo(device.wt(), random.Normals(width * c.H, 2.0 / std::sqrt(c.H)));
  const DeviceTensor device_x(device, device.act(), x), device_w(device, device.wt(), w);
  std::vector<Check> checks;
  const auto run = [&](bool wanted, bool gated, std::vector<double>* gate_up,
                       std::vector<double>* y) {
    const DeviceTensor to(device, device.act(),
                          WithGuard(std::vector<double>(c.T * width, NAN), width));
    const DeviceTensor act(device, device.act(),
                           WithGuard(std::vector<double>(c.T * c.I, NAN), c.I));
    device.Run(GateUpArgs{.x = device_x.data(),
                          .w = device_w.data(),
                          .gate_up = to.data(),
                          .y = gated ? act.data() : nullptr,
                          .T = c.T,
                          .H = c.H,
                          .I = c.I,
                          .gate = c.gate,
                          .wanted = wanted});
    *gate_up = WithoutGuard(to, width, &checks);
    *y = WithoutGuard(act, c.I, &checks);
  };
  std::vector<double> gate_up, y, gate_up_alone, y_alone, unused;
  run(true, true, &gate_up, &y);
  run(true, false, &gate_up_alone, &unused);
  run(false, true, &unused, &y_alone);

  std::vector<double> expected(c.T * width, 0.0);
  reference::Gemm({false, true, c.T, width, c.H, c.H, c.H, width, 1.0, 0.0}, x, w, &expected);
  checks.push_back(CompareL2("gate_up", gate_up, expected, ProductBound(device, c.H)));
  // What the gate saw is rounded as it is told.
  checks.push_back(
      CompareL2("y", y, reference::Swiglu(gate_up, c.T, c.I, c.gelu()), 4 * device.epsilon()));
  checks.push_back(CompareExactly("gate_up without y", gate_up_alone, gate_up));
  checks.push_back(CompareExactly("y without gate_up", y_alone, y));
  return checks;
}

std::vector<Check> RunDownBackward(TestDevice& device, uint64_t seed, const GateCase& c) {
  Random random(seed);
  const int64_t width = 2 * c.I;
  const auto dy = RoundTo(device.act(), random.Normals(c.T * c.H));
  const auto w = RoundTo(device.wt(), random.Normals(c.H * c.I, 1.0 / std::sqrt(c.H)));
  const auto gate_up = RoundTo(device.act(), random.Normals(c.T * width, 2.0));
  const DeviceTensor device_dy(device, device.act(), dy), device_w(device, device.wt(), w);
  std::vector<Check> checks;
  const auto run = [&](const DeviceTensor* through) {
    const DeviceTensor d_act(device, device.act(),
                             WithGuard(std::vector<double>(c.T * c.I, NAN), c.I));
    device.Run(DownBackwardArgs{.dy = device_dy.data(),
                                .w = device_w.data(),
                                .d_act = d_act.data(),
                                .gate_up = through != nullptr ? through->data() : nullptr,
                                .T = c.T,
                                .H = c.H,
                                .I = c.I,
                                .gate = c.gate});
    return WithoutGuard(d_act, c.I, &checks);
  };
  const DeviceTensor through(device, device.act(), WithGuard(gate_up, width));
  run(&through);
  const auto d_act = run(nullptr);
  const auto got = WithoutGuard(through, width, &checks);
  // The same in two steps.
  const DeviceTensor apart(device, device.act(), gate_up), between(device, device.act(), d_act);
  device.Run(SwigluBackwardArgs{.gate_up = apart.data(),
                                .dy = between.data(),
                                .d_gate_up = apart.data(),
                                .T = c.T,
                                .I = c.I,
                                .gate = c.gate});

  std::vector<double> expected(c.T * c.I, 0.0);
  reference::Gemm({false, false, c.T, c.I, c.H, c.H, c.I, c.I, 1.0, 0.0}, dy, w, &expected);
  checks.push_back(CompareL2("d_act", d_act, expected, ProductBound(device, c.H)));
  checks.push_back(CompareL2("d_gate_up", got,
                             reference::SwigluGrad(gate_up, d_act, c.T, c.I, c.gelu()),
                             4 * device.epsilon()));
  checks.push_back(CompareExactly("d_gate_up in two steps", apart.Get(), got));
  return checks;
}

struct AdaptedCase {
  int64_t M, N, K, R;
  bool transpose_w, addend;

  std::string name() const {
    return "_M" + std::to_string(M) + "_N" + std::to_string(N) + "_K" + std::to_string(K) + "_R" +
           std::to_string(R) + (addend ? "_addend" : "");
  }
};

std::vector<Check> RunAdapted(TestDevice& device, uint64_t seed, const AdaptedCase& c) {
  Random random(seed);
  const double scale = c.transpose_w ? 0.7 : 1.0;
  const auto x = RoundTo(device.act(), random.Normals(c.M * c.K));
  const auto w = RoundTo(device.wt(), random.Normals(c.N * c.K, 1.0 / std::sqrt(c.K)));
  const auto u = RoundTo(device.act(), random.Normals(c.M * c.R));
  const auto b = RoundTo(device.act(), random.Normals(c.N * c.R, 1.0 / std::sqrt(c.R)));
  const auto addend = RoundTo(device.act(), random.Normals(c.M * c.N));
  const DeviceTensor device_x(device, device.act(), x), device_w(device, device.wt(), w),
      device_u(device, device.act(), u), device_b(device, device.act(), b),
      device_addend(device, device.act(), addend),
      y(device, device.act(), WithGuard(std::vector<double>(c.M * c.N, NAN), c.N));
  device.Run(AdaptedProductArgs{.transpose_w = c.transpose_w,
                                .x = device_x.data(),
                                .w = device_w.data(),
                                .y = y.data(),
                                .M = c.M,
                                .N = c.N,
                                .K = c.K,
                                .u = device_u.data(),
                                .b = device_b.data(),
                                .R = c.R,
                                .scale = static_cast<float>(scale),
                                .addend = c.addend ? device_addend.data() : nullptr});
  std::vector<Check> checks;
  const auto got = WithoutGuard(y, c.N, &checks);
  std::vector<double> expected(c.M * c.N, 0.0);
  const int64_t ldw = c.transpose_w ? c.K : c.N, ldb = c.transpose_w ? c.R : c.N;
  reference::Gemm({false, c.transpose_w, c.M, c.N, c.K, c.K, ldw, c.N, 1.0, 0.0}, x, w, &expected);
  reference::Gemm({false, c.transpose_w, c.M, c.N, c.R, c.R, ldb, c.N, scale, 1.0}, u, b,
                  &expected);
  for (int64_t i = 0; c.addend && i < c.M * c.N; ++i) expected[i] += addend[i];
  checks.push_back(CompareL2("y", got, expected, ProductBound(device, c.K + c.R)));
  return checks;
}

// Linears and their adapters, some of the linears adapted.
struct TurnedCase {
  int64_t T, K, r, heads, plain_heads, D;
  std::vector<int> adapted;  // of q, k, v: heads - 2, 2 and plain_heads heads

  int64_t columns() const { return (heads + plain_heads) * D; }
  std::string name() const {
    std::string which;
    for (const int m : adapted) which += "qkv"[m];
    return "_T" + std::to_string(T) + "_K" + std::to_string(K) + "_r" + std::to_string(r) +
           "_heads" + std::to_string(heads) + "_D" + std::to_string(D) + "_" + which;
  }
};

std::vector<Check> RunTurned(TestDevice& device, uint64_t seed, const TurnedCase& c) {
  Random random(seed);
  const int64_t N = c.columns(), ldy = N + 8, count = static_cast<int64_t>(c.adapted.size());
  const int64_t first[] = {0, (c.heads - 2) * c.D, c.heads * c.D, N};
  TurnedProductArgs a{};
  LoraUpArgs& up = a.turned.up;
  up.linears.count = static_cast<int32_t>(count);
  int64_t rows = 0;
  for (int64_t m = 0; m < count; ++m) {
    up.linears.column[m] = first[c.adapted[m]];
    up.linears.width[m] = first[c.adapted[m] + 1] - first[c.adapted[m]];
    rows += up.linears.width[m];
  }
  constexpr double kScale = 0.7;
  const auto x = RoundTo(device.act(), random.Normals(c.T * c.K));
  const auto w = RoundTo(device.wt(), random.Normals(N * c.K, 1.0 / std::sqrt(c.K)));
  const auto u = RoundTo(device.act(), random.Normals(c.T * count * c.r));
  const auto b = RoundTo(device.act(), random.Normals(rows * c.r, 1.0 / std::sqrt(c.r)));
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < c.T; ++t) positions.push_back(static_cast<int32_t>(3 + t * 7));
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < c.D / 2; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(i) / c.D)));
  }
  std::vector<double> before(c.T * ldy, 7.0);  // columns behind, which nobody may write
  const DeviceTensor device_x(device, device.act(), x), device_w(device, device.wt(), w),
      device_u(device, device.act(), u), device_b(device, device.act(), b),
      y(device, device.act(), before);
  const DeviceArray<int32_t> device_positions(device, positions);
  const DeviceArray<float> device_freq(device, inv_freq);
  a.x = device_x.data();
  a.w = device_w.data();
  a.N = N;
  a.K = c.K;
  up.u = device_u.data();
  up.b = device_b.data();
  up.y = y.data();
  up.T = c.T;
  up.r = c.r;
  up.ldy = ldy;
  up.scale = static_cast<float>(kScale);
  a.turned.rope = {
      y.data(), device_positions.data(), device_freq.data(), c.T, c.heads, c.D, ldy, false, c.D,
      1.25f};
  device.Run(a);
  std::vector<double> product(c.T * N, 0.0), expected = before;
  reference::Gemm({false, true, c.T, N, c.K, c.K, c.K, N, 1.0, 0.0}, x, w, &product);
  for (int64_t t = 0; t < c.T; ++t) {
    std::copy_n(product.begin() + t * N, N, expected.begin() + t * ldy);
    for (int64_t m = 0, row = 0; m < count; row += up.linears.width[m++]) {
      for (int64_t j = 0; j < up.linears.width[m]; ++j) {
        for (int64_t i = 0; i < c.r; ++i) {
          expected[t * ldy + up.linears.column[m] + j] +=
              kScale * u[(t * count + m) * c.r + i] * b[(row + j) * c.r + i];
        }
      }
    }
  }
  reference::Rope(&expected, positions, inv_freq, c.heads, c.D, ldy, false, c.D, 1.25);
  return {CompareL2("y", y.Get(), expected, ProductBound(device, c.K + c.r))};
}

}  // namespace

// CUDA's tiles are 128 rows, two of them a cluster, and 256 columns; slices of K are 64.
void AppendGateCases(std::vector<OpCase>* cases) {
  constexpr GateActivation kSilu = GateActivation::kSilu, kGelu = GateActivation::kGeluTanh;
  const GateCase shapes[] = {
      {1, 8, 8, kSilu},       {3, 64, 128, kGelu},     {100, 72, 256, kSilu},
      {128, 128, 384, kSilu}, {129, 200, 168, kGelu},  {256, 64, 256, kSilu},
      {300, 320, 640, kSilu}, {520, 136, 1160, kGelu},
  };
  for (const GateCase& c : shapes) {
    cases->push_back({"gate_up" + c.name(), 0,
                      [=](auto& device, auto seed) { return RunGateUp(device, seed, c); }});
    cases->push_back({"down_backward" + c.name(), 0,
                      [=](auto& device, auto seed) { return RunDownBackward(device, seed, c); }});
  }
  const AdaptedCase adapted[] = {{1, 8, 8, 8, true, false},        {130, 264, 72, 8, true, true},
                                 {257, 512, 192, 16, true, true},  {300, 136, 320, 72, true, false},
                                 {64, 640, 128, 136, true, true},  {1, 8, 8, 8, false, false},
                                 {130, 264, 72, 24, false, false}, {257, 512, 192, 8, false, false},
                                 {520, 200, 136, 72, false, false}};
  for (const AdaptedCase& c : adapted) {
    cases->push_back({(c.transpose_w ? "adapted_product" : "adapted_gradient") + c.name(), 0,
                      [=](auto& device, auto seed) { return RunAdapted(device, seed, c); }});
  }
  const TurnedCase turned[] = {
      {70, 72, 8, 4, 2, 128, {0, 1, 2}}, {130, 128, 16, 6, 2, 128, {0, 2}},
      {300, 200, 8, 4, 4, 128, {1}},     {257, 64, 24, 6, 2, 128, {0, 1, 2}},
      {33, 64, 8, 4, 2, 64, {0, 1, 2}},  // one op after the other everywhere
  };
  for (const TurnedCase& c : turned) {
    cases->push_back({"turned_product" + c.name(), 0,
                      [=](auto& device, auto seed) { return RunTurned(device, seed, c); }});
  }
}

}  // namespace soup::kernels
