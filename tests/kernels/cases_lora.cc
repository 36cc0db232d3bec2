// LoRA's ops, and its plain products: a rank among their sizes.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/lora_products.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct LoraCase {
  int64_t T, r;
  std::vector<int64_t> column, width;
  int64_t ldy;

  LoraLinears linears() const {
    LoraLinears l{};
    l.count = static_cast<int32_t>(width.size());
    for (size_t m = 0; m < width.size(); ++m) {
      l.column[m] = column[m];
      l.width[m] = width[m];
    }
    return l;
  }
  int64_t c() const { return LoraColumns(r); }
  int64_t columns() const { return static_cast<int64_t>(width.size()) * c(); }
  int64_t rows() const {
    int64_t n = 0;
    for (const int64_t w : width) n += w;
    return n;
  }
  // Calls fn(linear, its column j, the row of b) for every adapted column.
  template <typename Fn>
  void ForEachColumn(const Fn& fn) const {
    int64_t row = 0;
    for (size_t m = 0; m < width.size(); ++m) {
      for (int64_t j = 0; j < width[m]; ++j) fn(static_cast<int64_t>(m), column[m] + j, row++);
    }
  }
};

constexpr float kScale = 0.75f;

double Bound(const TestDevice& device, int64_t sum) {
  return (4.0 + std::sqrt(static_cast<double>(sum))) * 0x1p-24 + 2 * device.epsilon();
}

// Of a sum of products of activations, into fp32.
double GradBound(const TestDevice& device, int64_t sum) {
  return (4.0 + std::sqrt(static_cast<double>(sum))) * 0x1p-24 + 2 * device.act_product_epsilon();
}

// What LoraUp is asked for besides its product.
struct UpMode {
  bool accumulate, addend;
};

// How many elements lie further from what they should be than one rounding to bf16 takes them: half
// a step of theirs, and what fp32 may add to that. `sizes`: the sum of an element's terms'
// magnitudes.
Check RoundedOnce(const std::vector<double>& got, const std::vector<double>& expected,
                  const std::vector<double>& sizes, int64_t sum) {
  double count = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    int exponent = 0;
    std::frexp(expected[i], &exponent);
    const double slack = (4.0 + static_cast<double>(sum)) * 0x1p-22 * sizes[i];
    const double most = std::ldexp(1.0, exponent - 9) + slack;
    if (!(std::abs(got[i] - expected[i]) <= most)) ++count;
  }
  return {"y.once", count, 0};
}

// An addend changes no bound: it is added in fp32, and what is stored is rounded as ever. Where
// products run it costs a rounding more, of y + addend: that is no larger than the result by
// itself, the roundings are independent, and in the L2 norm a rounding to bf16 is 0.8 epsilon.
std::vector<Check> RunUp(TestDevice& device, uint64_t seed, const LoraCase& c, UpMode mode) {
  Random random(seed);
  const auto u = RoundTo(device.act(), random.Normals(c.T * c.columns()));
  const auto b = RoundTo(device.act(), random.Normals(c.rows() * c.r));
  auto before = RoundTo(device.act(), random.Normals(c.T * c.ldy));
  // What is only written may hold anything.
  for (int64_t t = 0; t < c.T && !mode.accumulate; ++t)
    c.ForEachColumn([&](int64_t, int64_t column, int64_t) { before[t * c.ldy + column] = NAN; });
  // So may what lies behind the addend's columns.
  std::vector<double> addend(mode.addend ? c.T * c.ldy : 0, NAN);
  for (int64_t t = 0; t < c.T && mode.addend; ++t) {
    c.ForEachColumn([&](int64_t, int64_t column, int64_t) {
      addend[t * c.ldy + column] = RoundTo(device.act(), random.Normal());
    });
  }
  const DeviceTensor du(device, device.act(), u), db(device, device.act(), b),
      dy(device, device.act(), before), da(device, device.act(), addend);
  device.Run(LoraUpArgs{c.linears(), du.data(), db.data(), dy.data(), c.T, c.r, c.ldy, kScale,
                        mode.accumulate, mode.addend ? da.data() : nullptr});
  auto got = dy.Get();
  auto expected = before;
  std::vector<double> ours, should, sizes;  // of the linears' columns
  std::vector<bool> adapted(c.T * c.ldy, false);
  for (int64_t t = 0; t < c.T; ++t) {
    c.ForEachColumn([&](int64_t m, int64_t column, int64_t row) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < c.r; ++i) {
        const double term = u[t * c.columns() + m * c.c() + i] * b[row * c.r + i];
        sum += term;
        size += std::abs(term);
      }
      const int64_t at = t * c.ldy + column;
      const double old = mode.accumulate ? before[at] : 0, more = mode.addend ? addend[at] : 0;
      expected[at] = old + more + kScale * sum;
      adapted[at] = true;
      ours.push_back(got[at]);
      should.push_back(expected[at]);
      sizes.push_back(std::abs(old) + std::abs(more) + kScale * size);
    });
  }
  // With an addend the columns behind the linear are nobody's.
  for (size_t i = 0; i < got.size() && mode.addend; ++i) {
    if (!adapted[i]) got[i] = expected[i];
  }
  std::vector<Check> checks = {
      CompareL2(mode.accumulate ? "y" : "y.written", got, expected, Bound(device, c.r))};
  if (device.act() == Element::kBf16 && LoraUpKernelsTake(c.linears(), c.r, c.ldy))
    checks.push_back(RoundedOnce(ours, should, sizes, c.r));
  return checks;
}
std::vector<Check> RunUp(TestDevice& device, uint64_t seed, const LoraCase& c, bool addend) {
  std::vector<Check> checks = RunUp(device, seed, c, UpMode{true, addend});
  for (Check& check : RunUp(device, seed, c, UpMode{false, addend}))
    checks.push_back(std::move(check));
  return checks;
}

struct UpRopeCase {
  LoraCase lora;
  int64_t heads, D;
};

std::vector<Check> RunUpRope(TestDevice& device, uint64_t seed, const UpRopeCase& k) {
  const LoraCase& c = k.lora;
  Random random(seed);
  const auto u = RoundTo(device.act(), random.Normals(c.T * c.columns()));
  const auto b = RoundTo(device.act(), random.Normals(c.rows() * c.r));
  const auto before = RoundTo(device.act(), random.Normals(c.T * c.ldy));
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < c.T; ++t) positions.push_back(static_cast<int32_t>(3 + t * 7));
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < k.D / 2; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * static_cast<double>(i) / k.D)));
  }
  const DeviceTensor du(device, device.act(), u), db(device, device.act(), b),
      dy(device, device.act(), before);
  const DeviceArray<int32_t> device_positions(device, positions);
  const DeviceArray<float> device_freq(device, inv_freq);
  LoraUpRopeArgs args{};
  args.up = {c.linears(), du.data(), db.data(), dy.data(), c.T, c.r, c.ldy, kScale, true};
  args.rope = {
      dy.data(), device_positions.data(), device_freq.data(), c.T, k.heads, k.D, c.ldy, false, k.D,
      1.25f};
  device.Run(args);
  auto expected = before;
  for (int64_t t = 0; t < c.T; ++t) {
    c.ForEachColumn([&](int64_t m, int64_t column, int64_t row) {
      for (int64_t i = 0; i < c.r; ++i) {
        expected[t * c.ldy + column] +=
            kScale * u[t * c.columns() + m * c.c() + i] * b[row * c.r + i];
      }
    });
  }
  reference::Rope(&expected, positions, inv_freq, k.heads, k.D, c.ldy, false, k.D, 1.25);
  return {CompareL2("y", dy.Get(), expected, Bound(device, c.r) + device.epsilon())};
}

std::vector<Check> RunBack(TestDevice& device, uint64_t seed, const LoraCase& c) {
  Random random(seed);
  const auto dy = RoundTo(device.act(), random.Normals(c.T * c.ldy));
  const auto b = RoundTo(device.act(), random.Normals(c.rows() * c.r));
  const DeviceTensor device_dy(device, device.act(), dy), db(device, device.act(), b),
      du(device, device.act(), std::vector<double>(c.T * c.columns(), NAN));
  device.Run(
      LoraBackArgs{c.linears(), device_dy.data(), db.data(), du.data(), c.T, c.r, c.ldy, kScale});
  std::vector<double> expected(c.T * c.columns(), 0.0);
  for (int64_t t = 0; t < c.T; ++t) {
    c.ForEachColumn([&](int64_t m, int64_t column, int64_t row) {
      for (int64_t i = 0; i < c.r; ++i) {
        expected[t * c.columns() + m * c.c() + i] +=
            kScale * dy[t * c.ldy + column] * b[row * c.r + i];
      }
    });
  }
  // Columns that fill a linear's up to whole vectors are nobody's.
  auto got = du.Get();
  for (int64_t i = 0; i < c.T * c.columns(); ++i) {
    if (i % c.c() >= c.r) got[i] = 0;
  }
  return {CompareL2("du", got, expected, Bound(device, c.rows()))};
}

std::vector<Check> RunGrad(TestDevice& device, uint64_t seed, const LoraCase& c) {
  Random random(seed);
  const auto dy = RoundTo(device.act(), random.Normals(c.T * c.ldy));
  const auto u = RoundTo(device.act(), random.Normals(c.T * c.columns()));
  const auto before = RoundTo(Element::kF32, random.Normals(c.rows() * c.r));
  const DeviceTensor device_dy(device, device.act(), dy), du(device, device.act(), u),
      grad(device, Element::kF32, before);
  device.Run(LoraGradArgs{c.linears(), device_dy.data(), du.data(), grad.as<float>(), c.T, c.r,
                          c.ldy, kScale});
  auto expected = before;
  for (int64_t t = 0; t < c.T; ++t) {
    c.ForEachColumn([&](int64_t m, int64_t column, int64_t row) {
      for (int64_t i = 0; i < c.r; ++i) {
        expected[row * c.r + i] +=
            kScale * dy[t * c.ldy + column] * u[t * c.columns() + m * c.c() + i];
      }
    });
  }
  return {CompareL2("grad_b", grad.Get(), expected, GradBound(device, c.T))};
}

// dA [r, in] += du^T x in fp32, with du a column range.
std::vector<Check> RunGradA(TestDevice& device, uint64_t seed, int64_t T, int64_t r, int64_t in) {
  Random random(seed);
  const int64_t ldu = r + 8;
  const auto du = RoundTo(device.act(), random.Normals(T * ldu));
  const auto x = RoundTo(device.act(), random.Normals(T * in));
  const auto before = RoundTo(Element::kF32, random.Normals(r * in));
  const DeviceTensor a(device, device.act(), du), b(device, device.act(), x),
      c(device, Element::kF32, before);
  device.Run(GemmArgs{.transpose_a = true,
                      .transpose_b = false,
                      .M = r,
                      .N = in,
                      .K = T,
                      .alpha = kScale,
                      .beta = 1,
                      .A = a.data(),
                      .lda = ldu,
                      .B = b.data(),
                      .ldb = in,
                      .C = c.data(),
                      .ldc = in,
                      .a_type = Operand::kAct,
                      .b_type = Operand::kAct,
                      .c_type = Operand::kF32});
  auto expected = before;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j < in; ++j) {
        expected[i * in + j] += kScale * du[t * ldu + i] * x[t * in + j];
      }
    }
  }
  return {CompareL2("grad_a", c.Get(), expected, GradBound(device, T))};
}

// dA [r, in] += du^T norm(x), du a column range; what the norm is written into holds rstd first.
std::vector<Check> RunNormedGrad(TestDevice& device, uint64_t seed, int64_t T, int64_t r,
                                 int64_t in, float weight_offset) {
  Random random(seed);
  const float eps = 1e-5f;
  const int64_t ldu = r + 8;
  const auto du = RoundTo(device.act(), random.Normals(T * ldu));
  const auto x = RoundTo(device.act(), random.Normals(T * in, 3.0));
  const auto w = RoundTo(Element::kBf16, random.Normals(in));
  const auto before = RoundTo(Element::kF32, random.Normals(r * in));
  auto plus = w;
  for (double& v : plus) v += weight_offset;
  const auto norm = reference::RmsNorm(x, plus, T, in, eps);
  const DeviceTensor a(device, device.act(), du), b(device, device.act(), x),
      weight(device, Element::kBf16, w), c(device, Element::kF32, before),
      normed(device, Element::kF32, std::vector<double>(T * in, NAN)),
      rstd(device, Element::kF32, norm.rstd);
  device.Run(LoraNormedGradArgs{a.data(), b.data(), weight.as<uint16_t>(), rstd.as<float>(),
                                normed.data(), c.as<float>(), T, r, in, ldu, eps, weight_offset});
  auto expected = before;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j < in; ++j) {
        expected[i * in + j] += du[t * ldu + i] * norm.y[t * in + j];
      }
    }
  }
  return {CompareL2("grad_a", c.Get(), expected, GradBound(device, T) + device.epsilon())};
}

}  // namespace

void AppendLoraCases(std::vector<OpCase>* cases) {
  const LoraCase shapes[] = {
      {64, 8, {0, 128, 192}, {128, 64, 64}, 256},
      {130, 8, {0, 192}, {128, 64}, 264},  // one of three is not adapted
      {33, 16, {0}, {192}, 192},
      {2050, 24, {0, 64}, {64, 64}, 128},
      {96, 32, {64}, {64}, 136},
      {17, 48, {0, 64}, {64, 128}, 192},
      {40, 64, {0}, {320}, 320},
      {2100, 8, {0, 64}, {64, 320}, 384},
      {20, 40, {8}, {64}, 80},
      // By plain products, or up by the kernel for any small rank.
      {5, 3, {0, 7}, {7, 5}, 12},
      {130, 4, {0, 192}, {128, 64}, 264},
      {67, 12, {0, 130}, {130, 70}, 202},
      {300, 5, {0, 264}, {264, 320}, 584},
      {41, 16, {0}, {72}, 72},
  };
  for (const LoraCase& c : shapes) {
    const std::string name = "_T" + std::to_string(c.T) + "_r" + std::to_string(c.r) + "_" +
                             std::to_string(c.width.size()) + "x" + std::to_string(c.rows());
    cases->push_back(
        {"lora_up" + name, 0, [=](auto& d, auto seed) { return RunUp(d, seed, c, false); }});
    cases->push_back(
        {"lora_back" + name, 0, [=](auto& d, auto seed) { return RunBack(d, seed, c); }});
    cases->push_back(
        {"lora_grad" + name, 0, [=](auto& d, auto seed) { return RunGrad(d, seed, c); }});
  }
  const LoraCase added[] = {
      {33, 8, {0}, {192}, 200},  {131, 16, {0}, {128}, 128}, {2051, 16, {0}, {128}, 192},
      {77, 24, {0}, {64}, 72},   {45, 32, {0}, {192}, 200},  {1, 32, {0}, {64}, 64},
      {65, 4, {0}, {320}, 328},  {129, 4, {0}, {64}, 64},    {7, 3, {0}, {33}, 34},
      {67, 12, {0}, {130}, 130}, {41, 16, {0}, {600}, 602},  {9, 8, {0}, {65}, 67},
  };
  for (const LoraCase& c : added) {
    cases->push_back({"lora_up_addend_T" + std::to_string(c.T) + "_r" + std::to_string(c.r) + "_" +
                          std::to_string(c.rows()) + "_of_" + std::to_string(c.ldy),
                      0, [=](auto& d, auto seed) { return RunUp(d, seed, c, true); }});
  }
  // Two query heads (or more), one key head, v behind them; not all of them adapted.
  const UpRopeCase turned[] = {
      {{70, 8, {0, 256, 384}, {256, 128, 128}, 512}, 3, 128},
      {{33, 16, {0, 192}, {128, 64}, 264}, 3, 64},
      {{130, 24, {512}, {256}, 1024}, 3, 256},
      {{17, 8, {0, 1152}, {1024, 64}, 1216}, 18, 64},
      {{2100, 8, {0, 1088, 1152}, {1024, 64, 64}, 1216}, 17, 64},
      {{40, 8, {0, 16, 32}, {16, 16, 16}, 48}, 2, 16},  // one op after the other everywhere
  };
  for (const UpRopeCase& k : turned) {
    cases->push_back({"lora_up_rope_T" + std::to_string(k.lora.T) + "_r" +
                          std::to_string(k.lora.r) + "_heads" + std::to_string(k.heads) + "_D" +
                          std::to_string(k.D),
                      0, [=](auto& d, auto seed) { return RunUpRope(d, seed, k); }});
  }
  for (const int64_t r : {8, 16, 24, 48, 64}) {
    for (const int64_t T : {64, 777}) {
      const std::string name = "_T" + std::to_string(T) + "_r" + std::to_string(r);
      cases->push_back({"lora_grad_a" + name, 0,
                        [=](auto& d, auto seed) { return RunGradA(d, seed, T, r, 192); }});
      cases->push_back({"lora_normed_grad" + name, 0, [=](auto& d, auto seed) {
                          return RunNormedGrad(d, seed, T, r, 192, r == 16 ? 1.0f : 0.0f);
                        }});
    }
  }
}

}  // namespace soup::kernels
