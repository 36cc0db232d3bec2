// The float64 gradients that the ops are compared with, themselves compared with central
// differences of the float64 forward.
#include "tests/kernels/reference.h"

#include <cmath>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/kernels/cases.h"

namespace soup::kernels::reference {
namespace {

constexpr double kStep = 1e-5;

// d/dx of sum(weights * f(x)), element by element.
Values CentralDifferences(const Values& x, const Values& weights,
                          const std::function<Values(const Values&)>& f) {
  Values gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    double difference = 0;
    for (double sign : {1.0, -1.0}) {
      Values moved = x;
      moved[i] += sign * kStep;
      const Values y = f(moved);
      for (size_t j = 0; j < y.size(); ++j) difference += sign * weights[j] * y[j];
    }
    gradient[i] = difference / (2 * kStep);
  }
  return gradient;
}

void ExpectClose(const std::string& what, const Values& got, const Values& expected) {
  const Check check = CompareL2(what, got, expected, 1e-7);
  EXPECT_LE(check.error, check.bound) << what;
}

TEST(ReferenceTest, RmsNormGradient) {
  Random random(1);
  const int64_t T = 3, H = 10;
  const Values x = random.Normals(T * H), w = random.Normals(H), dy = random.Normals(T * H);
  const auto f = [&](const Values& v) { return RmsNorm(v, w, T, H, 1e-3).y; };
  ExpectClose("dx", RmsNormGrad(dy, x, w, T, H, 1e-3), CentralDifferences(x, dy, f));
}

TEST(ReferenceTest, SwigluGradient) {
  Random random(2);
  const int64_t T = 2, I = 7;
  const Values x = random.Normals(T * 2 * I), dy = random.Normals(T * I);
  const auto f = [&](const Values& v) { return Swiglu(v, T, I); };
  ExpectClose("d_gate_up", SwigluGrad(x, dy, T, I), CentralDifferences(x, dy, f));
}

TEST(ReferenceTest, RopeInverseIsItsGradient) {
  Random random(3);
  const std::vector<int32_t> positions = {0, 5, 77};
  const std::vector<float> inv_freq = {1.0f, 0.3f, 0.01f};
  const Values x = random.Normals(3 * 2 * 6), dy = random.Normals(3 * 2 * 6);
  const auto f = [&](Values v) {
    Rope(&v, positions, inv_freq, 2, 6, 12, false);
    return v;
  };
  Values back = dy;
  Rope(&back, positions, inv_freq, 2, 6, 12, true);
  ExpectClose("dx", back, CentralDifferences(x, dy, f));
}

void ExpectAttentionGradients(const AttentionShape& shape) {
  Random random(4);
  const Values q = random.Normals(10 * 4 * 3), k = random.Normals(10 * 2 * 3),
               v = random.Normals(10 * 2 * 3), dout = random.Normals(10 * 4 * 3);
  const AttentionGrads grads = AttentionGrad(shape, q, k, v, dout);
  ExpectClose("dq", grads.dq, CentralDifferences(q, dout, [&](const Values& x) {
                return Attention(shape, x, k, v).out;
              }));
  ExpectClose("dk", grads.dk, CentralDifferences(k, dout, [&](const Values& x) {
                return Attention(shape, q, x, v).out;
              }));
  ExpectClose("dv", grads.dv, CentralDifferences(v, dout, [&](const Values& x) {
                return Attention(shape, q, k, x).out;
              }));
}

TEST(ReferenceTest, AttentionGradients) {
  ExpectAttentionGradients({{0, 4, 5, 9}, 10, 4, 2, 3, 0.7});
  ExpectAttentionGradients({{0, 4, 5, 9}, 10, 4, 2, 3, 0.7, 2, 0.0});
  ExpectAttentionGradients({{0, 4, 5, 9}, 10, 4, 2, 3, 0.7, 0, 1.5});
}

TEST(ReferenceTest, GeluGateGradient) {
  Random random(7);
  const int64_t T = 3, I = 4;
  const Values x = random.Normals(T * 2 * I, 2.0), dy = random.Normals(T * I);
  ExpectClose("d_gate_up", SwigluGrad(x, dy, T, I, true),
              CentralDifferences(x, dy, [&](const Values& v) { return Swiglu(v, T, I, true); }));
}

// The pack's outputs are those of its sequences alone.
TEST(ReferenceTest, PackedAttentionIsBlockDiagonal) {
  Random random(5);
  const AttentionShape packed{{0, 4, 7}, 7, 2, 1, 3, 0.5};
  const Values q = random.Normals(7 * 6), k = random.Normals(7 * 3), v = random.Normals(7 * 3);
  const Values whole = Attention(packed, q, k, v).out;
  const AttentionShape second{{0, 3}, 3, 2, 1, 3, 0.5};
  const Values alone =
      Attention(second, Values(q.begin() + 4 * 6, q.end()), Values(k.begin() + 4 * 3, k.end()),
                Values(v.begin() + 4 * 3, v.end()))
          .out;
  EXPECT_EQ(Values(whole.begin() + 4 * 6, whole.end()), alone);
}

TEST(ReferenceTest, CrossEntropyGradient) {
  Random random(6);
  const int64_t n = 3, H = 4, V = 9;
  const Values h = random.Normals(n * H), w = random.Normals(V * H);
  const std::vector<int32_t> targets = {0, 8, 3};
  const auto f = [&](const Values& x) { return CrossEntropy(x, w, targets, n, H, V, 1.0).loss; };
  const Values gradient = CrossEntropy(h, w, targets, n, H, V, 0.5).dh;
  ExpectClose("dh", gradient, CentralDifferences(h, Values(n, 0.5), f));
}

}  // namespace
}  // namespace soup::kernels::reference
