// GateUp and DownBackward: the gated MLP's products with the gate.
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
}

}  // namespace soup::kernels
