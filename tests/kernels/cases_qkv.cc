// QkvFinish: q, k, v from their product.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/lora_products.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct QkvCase {
  int64_t T, Hq, Hkv, D;
  int64_t r;           // 0: no adapters
  std::string adapts;  // of "qkv"; "f": one linear over all of them
  bool bias, norm;
  int64_t rotary;           // 0: no rope
  int64_t tail = 0;         // last rows without a bias
  float weight_offset = 0;  // of the norms

  int64_t turned() const { return (Hq + Hkv) * D; }
  int64_t width() const { return (Hq + 2 * Hkv) * D; }
  int64_t row() const { return width() + (norm ? turned() : 0); }
  LoraLinears linears() const {
    LoraLinears l{};
    const auto add = [&l](int64_t column, int64_t width) {
      l.column[l.count] = column;
      l.width[l.count++] = width;
    };
    if (r == 0) return l;
    if (adapts == "f") add(0, width());
    if (adapts.find('q') != std::string::npos) add(0, Hq * D);
    if (adapts.find('k') != std::string::npos) add(Hq * D, Hkv * D);
    if (adapts.find('v') != std::string::npos) add(turned(), Hkv * D);
    return l;
  }
  std::string name() const {
    return "qkv_finish_T" + std::to_string(T) + "_" + std::to_string(Hq) + "q" +
           std::to_string(Hkv) + "kv_D" + std::to_string(D) +
           (r > 0 ? "_r" + std::to_string(r) + adapts : "") + (bias ? "_bias" : "") +
           (norm ? "_norm" : "") + (rotary > 0 ? "_rope" + std::to_string(rotary) : "");
  }
};

constexpr float kLoraScale = 0.75f, kEps = 1e-5f, kRopeScale = 1.25f;

// One rounding to bf16 is within this; a second one on the way (2.1e-3 in L2) is not.
double Bound(const TestDevice& device, const QkvCase& c) {
  const double sums = (8 + 2 * std::sqrt(static_cast<double>(c.D + c.r))) * 0x1p-23;
  return (device.act() == Element::kBf16 ? 1 : 8) * device.epsilon() + sums;
}

std::vector<Check> RunQkvFinish(TestDevice& device, uint64_t seed, const QkvCase& c) {
  Random random(seed);
  const bool f32 = device.act() == Element::kF32;
  const int64_t n = c.width(), row = c.row(), stride = f32 ? row : n;
  const LoraLinears linears = c.linears();
  const int64_t columns = LoraColumns(c.r), ldu = linears.count * columns;
  int64_t rows_of_b = 0;
  for (int32_t m = 0; m < linears.count; ++m) rows_of_b += linears.width[m];

  const auto x = RoundTo(Element::kF32, random.Normals(c.T * n, 2.0));
  const auto bias = RoundTo(Element::kBf16, random.Normals(n));
  const auto b = RoundTo(device.act(), random.Normals(rows_of_b * c.r));
  const auto q_norm = RoundTo(Element::kBf16, random.Normals(c.D));
  const auto k_norm = RoundTo(Element::kBf16, random.Normals(c.D));
  // What fills a linear's columns up to whole vectors may hold anything.
  auto u = RoundTo(device.act(), random.Normals(c.T * ldu));
  for (size_t i = 0; i < u.size(); ++i) {
    if (static_cast<int64_t>(i) % columns >= c.r) u[i] = NAN;
  }
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < c.T; ++t) positions.push_back(static_cast<int32_t>(2 + t * 5));
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < c.rotary / 2; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(i) / c.D)));
  }

  std::vector<double> rows(c.T * row, NAN);
  for (int64_t t = 0; f32 && t < c.T; ++t) {
    std::copy_n(x.begin() + t * n, n, rows.begin() + t * row);
  }
  const DeviceTensor y(device, device.act(), rows), product(device, Element::kF32, x),
      device_bias(device, Element::kBf16, bias), du(device, device.act(), u),
      db(device, device.act(), b), dq(device, Element::kBf16, q_norm),
      dk(device, Element::kBf16, k_norm);
  const DeviceArray<int32_t> device_positions(device, positions);
  const DeviceArray<float> device_freq(device, inv_freq);
  QkvFinishArgs args{};
  args.x = f32 ? y.as<float>() : product.as<float>();
  args.x_row_stride = stride;
  args.y = y.data();
  args.row_stride = row;
  if (c.bias) args.bias = device_bias.as<uint16_t>();
  args.biased_rows = c.T - c.tail;
  args.linears = linears;
  args.u = du.data();
  args.b = db.data();
  args.r = c.r;
  args.lora_scale = kLoraScale;
  args.eps = kEps;
  args.weight_offset = c.weight_offset;
  if (c.norm) {
    args.q_norm = dq.as<uint16_t>();
    args.k_norm = dk.as<uint16_t>();
    args.saved = static_cast<char*>(y.data()) + n * (f32 ? 4 : 2);
  }
  if (c.rotary > 0) {
    args.rope = {device_positions.data(), device_freq.data(), c.rotary, kRopeScale};
  }
  args.T = c.T;
  args.Hq = c.Hq;
  args.Hkv = c.Hkv;
  args.D = c.D;
  device.Run(args);

  auto whole = x;
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t j = 0; c.bias && t < c.T - c.tail && j < n; ++j) whole[t * n + j] += bias[j];
    for (int64_t m = 0, b_row = 0; m < linears.count; b_row += linears.width[m++]) {
      for (int64_t j = 0; j < linears.width[m]; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < c.r; ++i) {
          sum += u[t * ldu + m * columns + i] * b[(b_row + j) * c.r + i];
        }
        whole[t * n + linears.column[m] + j] += kLoraScale * sum;
      }
    }
  }
  auto expected = whole;
  std::vector<double> saved, got_saved, got_y;
  const auto got = y.Get();
  for (int64_t t = 0; t < c.T; ++t) {
    for (int64_t h = 0; c.norm && h < c.Hq + c.Hkv; ++h) {
      const auto at = whole.begin() + t * n + h * c.D;
      auto weight = h < c.Hq ? q_norm : k_norm;
      for (double& w : weight) w += c.weight_offset;
      const auto normed = reference::RmsNorm({at, at + c.D}, weight, 1, c.D, kEps).y;
      std::copy(normed.begin(), normed.end(), expected.begin() + t * n + h * c.D);
    }
    saved.insert(saved.end(), whole.begin() + t * n, whole.begin() + t * n + c.turned());
    got_y.insert(got_y.end(), got.begin() + t * row, got.begin() + t * row + n);
    got_saved.insert(got_saved.end(), got.begin() + t * row + n, got.begin() + (t + 1) * row);
  }
  if (c.rotary > 0) {
    reference::Rope(&expected, positions, inv_freq, c.Hq + c.Hkv, c.D, n, false, c.rotary,
                    kRopeScale);
  }
  std::vector<Check> checks = {CompareL2("y", got_y, expected, Bound(device, c))};
  if (c.norm) checks.push_back(CompareL2("saved", got_saved, saved, Bound(device, c)));
  return checks;
}

}  // namespace

void AppendQkvCases(std::vector<OpCase>* cases) {
  const QkvCase all[] = {
      {48, 4, 2, 16, 4, "qkv", false, false, 16},
      {37, 4, 2, 32, 4, "qv", true, false, 32, 5},
      {70, 4, 1, 32, 4, "qkv", false, true, 32, 0, 1.0f},
      {33, 4, 4, 16, 4, "f", false, false, 16},
      {65, 4, 2, 128, 8, "qkv", false, true, 128},
      {130, 8, 2, 64, 16, "qkv", true, false, 64, 30},
      {19, 3, 1, 256, 24, "kv", false, true, 256},
      {21, 4, 2, 96, 13, "q", true, true, 96},
      {1, 2, 1, 128, 64, "qkv", false, false, 64},  // half of a head turns
      {5, 2, 2, 64, 0, "", true, true, 64},
      {6, 2, 2, 64, 0, "", false, false, 0},  // only rounded
  };
  for (const QkvCase& c : all) {
    cases->push_back({c.name(), 0, [=](auto& d, auto seed) { return RunQkvFinish(d, seed, c); }});
  }
}

}  // namespace soup::kernels
