#include <cmath>

#include "kernels/philox.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

std::vector<Check> RunSwigluForward(TestDevice& device, uint64_t seed, int64_t T, int64_t I,
                                    double spread, GateActivation gate) {
  Random random(seed);
  const auto gate_up = RoundTo(device.act(), random.Normals(T * 2 * I, spread));
  const DeviceTensor x(device, device.act(), gate_up);
  const DeviceTensor y(device, device.act(), std::vector<double>(T * I, NAN));
  device.Run(SwigluForwardArgs{.gate_up = x.data(), .y = y.data(), .T = T, .I = I, .gate = gate});
  const bool gelu = gate == GateActivation::kGeluTanh;
  return {CompareL2("y", y.Get(), reference::Swiglu(gate_up, T, I, gelu), 4 * device.epsilon())};
}

std::vector<Check> RunSwigluBackward(TestDevice& device, uint64_t seed, int64_t T, int64_t I,
                                     bool in_place, GateActivation gate) {
  Random random(seed);
  const auto gate_up = RoundTo(device.act(), random.Normals(T * 2 * I, 2.0));
  const auto dy = RoundTo(device.act(), random.Normals(T * I));
  const DeviceTensor x(device, device.act(), gate_up);
  const DeviceTensor device_dy(device, device.act(), dy);
  const DeviceTensor other(device, device.act(), std::vector<double>(T * 2 * I, NAN));
  const DeviceTensor& dx = in_place ? x : other;
  device.Run(SwigluBackwardArgs{.gate_up = x.data(),
                                .dy = device_dy.data(),
                                .d_gate_up = dx.data(),
                                .T = T,
                                .I = I,
                                .gate = gate});
  const bool gelu = gate == GateActivation::kGeluTanh;
  return {CompareL2("d_gate_up", dx.Get(), reference::SwigluGrad(gate_up, dy, T, I, gelu),
                    (gelu ? 10 : 6) * device.epsilon())};
}

std::vector<Check> RunAddBias(TestDevice& device, uint64_t seed, int64_t T, int64_t N,
                              int64_t stride) {
  Random random(seed);
  auto y = RoundTo(device.act(), random.Normals((T + 2) * stride));
  const auto bias = RoundTo(Element::kBf16, random.Normals(N));
  const DeviceTensor device_y(device, device.act(), y);
  const DeviceTensor device_bias(device, Element::kBf16, bias);
  device.Run(AddBiasArgs{.y = device_y.data(),
                         .bias = device_bias.as<uint16_t>(),
                         .T = T,
                         .N = N,
                         .row_stride = stride});
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < N; ++i) y[t * stride + i] += bias[i];
  }
  return {CompareL2("y", device_y.Get(), y, 2 * device.epsilon())};
}

std::vector<Check> RunAxpy(TestDevice& device, uint64_t seed, int64_t n, bool accumulate) {
  Random random(seed);
  const auto x = RoundTo(device.act(), random.Normals(n));
  const auto y = RoundTo(device.act(), random.Normals(n));
  const DeviceTensor device_x(device, device.act(), x);
  const DeviceTensor device_y(device, device.act(), accumulate ? y : std::vector<double>(n, NAN));
  device.Run(AxpyArgs{.x = device_x.data(),
                      .y = device_y.data(),
                      .n = n,
                      .scale = -1.75f,
                      .accumulate = accumulate});
  auto expected = x;
  for (int64_t i = 0; i < n; ++i) expected[i] = (accumulate ? y[i] : 0.0) - 1.75 * x[i];
  return {CompareL2("y", device_y.Get(), expected, 2 * device.epsilon())};
}

std::vector<Check> RunDropout(TestDevice& device, uint64_t seed, int64_t n, float p,
                              bool in_place) {
  Random random(seed);
  const auto x = RoundTo(device.act(), random.Normals(n));
  const DropoutArgs shape{
      .n = n, .p = p, .seed = seed, .stream_hi = 0x123456789abcdefull, .stream_lo = 77};
  const DeviceTensor device_x(device, device.act(), x);
  const DeviceTensor other(device, device.act(), std::vector<double>(n, NAN));
  const DeviceTensor& y = in_place ? device_x : other;
  DropoutArgs args = shape;
  args.x = device_x.data();
  args.y = y.data();
  device.Run(args);
  const PhiloxStream stream(shape.seed, shape.stream_hi, shape.stream_lo);
  auto expected = x;
  std::vector<double> kept, expected_kept;
  const auto got = y.Get();
  for (int64_t i = 0; i < n; ++i) {
    const bool keep = stream.Draw(i) >= static_cast<double>(p) * 0x1p32;
    expected[i] = keep ? x[i] / (1.0 - static_cast<double>(p)) : 0.0;
    expected_kept.push_back(keep);
    kept.push_back(got[i] != 0.0);
  }
  return {CompareL2("y", got, expected, 2 * device.epsilon()),
          CompareExactly("mask", kept, expected_kept)};
}

std::vector<Check> RunWiden(TestDevice& device, uint64_t seed, int64_t n) {
  Random random(seed);
  const auto x = RoundTo(Element::kBf16, random.Normals(n));
  const DeviceTensor src(device, Element::kBf16, x);
  const DeviceTensor dst(device, Element::kF32, std::vector<double>(n, NAN));
  device.Run(WidenArgs{.src = src.as<uint16_t>(), .dst = dst.as<float>(), .n = n});
  return {CompareExactly("dst", dst.Get(), x)};
}

std::vector<Check> RunGatherRows(TestDevice& device, uint64_t seed, int64_t T, int64_t H) {
  Random random(seed);
  const int64_t rows = 50;
  const auto table = RoundTo(Element::kBf16, random.Normals(rows * H));
  std::vector<int32_t> ids;
  std::vector<double> expected;
  for (int64_t t = 0; t < T; ++t) {
    ids.push_back(static_cast<int32_t>(random.Below(rows)));
    for (int64_t i = 0; i < H; ++i) expected.push_back(table[ids.back() * H + i]);
  }
  const DeviceTensor device_table(device, Element::kBf16, table);
  const DeviceArray<int32_t> device_ids(device, ids);
  const DeviceTensor y(device, device.act(), std::vector<double>(T * H, NAN));
  device.Run(GatherRowsArgs{.table = device_table.as<uint16_t>(),
                            .ids = device_ids.data(),
                            .y = y.data(),
                            .T = T,
                            .H = H});
  return {CompareExactly("y", y.Get(), expected)};
}

// n distinct rows of T, in no order.
std::vector<int32_t> DistinctRows(Random* random, int64_t n, int64_t T) {
  std::vector<int32_t> rows;
  for (int64_t t = 0; t < T; ++t) rows.push_back(static_cast<int32_t>(t));
  for (int64_t t = T - 1; t > 0; --t) std::swap(rows[t], rows[random->Below(t + 1)]);
  rows.resize(n);
  return rows;
}

std::vector<Check> RunGatherActRows(TestDevice& device, uint64_t seed, int64_t n, int64_t T,
                                    int64_t H) {
  Random random(seed);
  const auto x = RoundTo(device.act(), random.Normals(T * H));
  const auto rows = DistinctRows(&random, n, T);
  std::vector<double> expected;
  for (int32_t row : rows) expected.insert(expected.end(), &x[row * H], &x[row * H] + H);
  const DeviceTensor device_x(device, device.act(), x);
  const DeviceArray<int32_t> device_rows(device, rows);
  const DeviceTensor y(device, device.act(), std::vector<double>(n * H, NAN));
  device.Run(GatherActRowsArgs{
      .x = device_x.data(), .rows = device_rows.data(), .y = y.data(), .n = n, .H = H});
  return {CompareExactly("y", y.Get(), expected)};
}

std::vector<Check> RunScatterActRows(TestDevice& device, uint64_t seed, int64_t n, int64_t T,
                                     int64_t H) {
  Random random(seed);
  const auto dy = RoundTo(device.act(), random.Normals(n * H));
  const auto rows = DistinctRows(&random, n, T);
  std::vector<double> expected(T * H);
  for (int64_t i = 0; i < n * H; ++i) expected[rows[i / H] * H + i % H] = dy[i];
  const DeviceTensor device_dy(device, device.act(), dy);
  const DeviceArray<int32_t> device_rows(device, rows);
  const DeviceTensor dx(device, device.act(), std::vector<double>(T * H, NAN));
  device.Run(ScatterActRowsArgs{
      .dy = device_dy.data(), .rows = device_rows.data(), .dx = dx.data(), .n = n, .T = T, .H = H});
  return {CompareExactly("dx", dx.Get(), expected)};
}

void Add(std::vector<OpCase>* cases, const std::string& name,
         std::function<std::vector<Check>(TestDevice&, uint64_t)> run) {
  cases->push_back({name, 0, std::move(run)});
}

}  // namespace

void AppendElementwiseCases(std::vector<OpCase>* cases) {
  const int64_t swiglu[][2] = {{1, 1}, {3, 15}, {7, 16}, {5, 33}, {32, 160}, {40, 1536}};
  for (const auto& [T, I] : swiglu) {
    const std::string shape = "_T" + std::to_string(T) + "_I" + std::to_string(I);
    for (const GateActivation gate : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      const std::string name = gate == GateActivation::kSilu ? "swiglu" : "geglu";
      // The slope of gelu goes through zero: one element may be all cancellation.
      if (gate == GateActivation::kGeluTanh && I == 1) continue;
      for (double spread : {1.0, 30.0}) {
        Add(cases, name + "_forward" + shape + (spread > 1 ? "_saturated" : ""),
            [T = T, I = I, spread, gate](auto& device, auto seed) {
              return RunSwigluForward(device, seed, T, I, spread, gate);
            });
      }
      for (bool in_place : {false, true}) {
        Add(cases, name + "_backward" + shape + (in_place ? "_in_place" : ""),
            [T = T, I = I, in_place, gate](auto& device, auto seed) {
              return RunSwigluBackward(device, seed, T, I, in_place, gate);
            });
      }
    }
  }
  const int64_t biases[][3] = {{1, 1, 1}, {5, 33, 40}, {64, 128, 128}, {9, 2048, 4096}};
  for (const auto& [T, N, stride] : biases) {
    Add(cases, "add_bias_T" + std::to_string(T) + "_N" + std::to_string(N),
        [T = T, N = N, stride = stride](auto& device, auto seed) {
          return RunAddBias(device, seed, T, N, stride);
        });
  }
  for (int64_t n : {1, 17, 40000, 100003}) {
    const std::string size = "_n" + std::to_string(n);
    for (bool flag : {false, true}) {
      Add(cases, "axpy" + size + (flag ? "_accumulate" : ""),
          [n, flag](auto& device, auto seed) { return RunAxpy(device, seed, n, flag); });
      Add(cases, "dropout" + size + (flag ? "_in_place" : ""), [n, flag](auto& device, auto seed) {
        return RunDropout(device, seed, n, flag ? 0.5f : 0.1f, flag);
      });
    }
    Add(cases, "widen" + size, [n](auto& device, auto seed) { return RunWiden(device, seed, n); });
  }
  Add(cases, "dropout_p0_n1001",
      [](auto& device, auto seed) { return RunDropout(device, seed, 1001, 0.0f, false); });
  const int64_t rows[][3] = {{1, 1, 3}, {5, 9, 64}, {1, 70, 576}, {70, 70, 577}};
  for (const auto& [n, T, H] : rows) {
    const std::string shape =
        "_n" + std::to_string(n) + "_T" + std::to_string(T) + "_H" + std::to_string(H);
    Add(cases, "gather_rows" + shape,
        [T = T, H = H](auto& device, auto seed) { return RunGatherRows(device, seed, T, H); });
    Add(cases, "gather_act_rows" + shape, [n = n, T = T, H = H](auto& device, auto seed) {
      return RunGatherActRows(device, seed, n, T, H);
    });
    Add(cases, "scatter_act_rows" + shape, [n = n, T = T, H = H](auto& device, auto seed) {
      return RunScatterActRows(device, seed, n, T, H);
    });
  }
}

}  // namespace soup::kernels
