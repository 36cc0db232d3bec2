#include <cmath>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

std::vector<Check> RunSumSquares(TestDevice& device, uint64_t seed, int64_t n) {
  Random random(seed);
  const auto x = RoundTo(Element::kF32, random.Normals(n));
  const DeviceTensor device_x(device, Element::kF32, x);
  const DeviceArray<double> result(device, {NAN});
  device.Run(SumSquaresArgs{.x = device_x.as<float>(), .n = n, .result = result.data()});
  std::vector<double> got(1);
  device.Download(got.data(), result.data(), sizeof(double));
  double expected = 0;
  for (double v : x) expected += v * v;
  return {CompareL2("sum", got, {expected}, 1e-12)};
}

std::vector<Check> RunAdamW(TestDevice& device, uint64_t seed, int64_t n, int64_t first_t,
                            double weight_decay) {
  Random random(seed);
  reference::AdamWState state{RoundTo(Element::kF32, random.Normals(n)),
                              RoundTo(Element::kF32, random.Normals(n, first_t > 1 ? 0.1 : 0.0)),
                              RoundTo(Element::kF32, random.Normals(n, first_t > 1 ? 0.1 : 0.0))};
  for (double& v : state.v) v = v * v;
  state.v = RoundTo(Element::kF32, state.v);
  const auto start = state.w;
  const DeviceTensor w(device, Element::kF32, state.w);
  const DeviceTensor m(device, Element::kF32, state.m);
  const DeviceTensor v(device, Element::kF32, state.v);
  for (int64_t t = first_t; t < first_t + 3; ++t) {
    const auto g = RoundTo(Element::kF32, random.Normals(n));
    const DeviceTensor device_g(device, Element::kF32, g);
    const AdamWArgs args{.w = w.as<float>(),
                         .m = m.as<float>(),
                         .v = v.as<float>(),
                         .g = device_g.as<float>(),
                         .n = n,
                         .lr = 1e-2f,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .eps = 1e-8f,
                         .weight_decay = static_cast<float>(weight_decay),
                         .grad_scale = 0.75f,
                         .t = t};
    device.Run(args);
    reference::AdamW(
        &state, g,
        {args.lr, args.beta1, args.beta2, args.eps, args.weight_decay, args.grad_scale, t});
  }
  // The update, not the weight: the weight's own rounding hides errors of the update.
  auto moved = w.Get();
  auto expected = state.w;
  for (size_t i = 0; i < moved.size(); ++i) {
    moved[i] -= start[i];
    expected[i] -= start[i];
  }
  return {CompareL2("update", moved, expected, 1e-4), CompareL2("w", w.Get(), state.w, 4 * 0x1p-24),
          CompareL2("m", m.Get(), state.m, 8 * 0x1p-24), CompareL2("v", v.Get(), state.v, 1e-6)};
}

}  // namespace

void AppendOptimizerCases(std::vector<OpCase>* cases) {
  for (int64_t n : {1, 15, 1024, 1025, 50001, 1100003}) {
    cases->push_back({"sum_squares_n" + std::to_string(n), 0,
                      [n](auto& device, auto seed) { return RunSumSquares(device, seed, n); }});
  }
  for (int64_t n : {3, 17, 40001}) {
    for (int64_t t : {1, 1000}) {
      for (double decay : {0.0, 0.1}) {
        cases->push_back(
            {"adamw_n" + std::to_string(n) + "_t" + std::to_string(t) + (decay > 0 ? "_decay" : ""),
             0, [n, t, decay](auto& device, auto seed) {
               return RunAdamW(device, seed, n, t, decay);
             }});
      }
    }
  }
}

}  // namespace soup::kernels
