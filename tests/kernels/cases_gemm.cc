#include <cmath>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct GemmCase {
  int64_t M, N, K;
  int64_t pad;  // each leading dimension beyond its least
  double alpha;
};

std::vector<Check> RunGemm(TestDevice& device, uint64_t seed, const GemmCase& c, bool transpose_a,
                           bool transpose_b, bool accumulate) {
  Random random(seed);
  const reference::GemmShape shape{transpose_a,
                                   transpose_b,
                                   c.M,
                                   c.N,
                                   c.K,
                                   (transpose_a ? c.M : c.K) + c.pad,
                                   (transpose_b ? c.K : c.N) + c.pad,
                                   c.N + c.pad,
                                   c.alpha,
                                   accumulate ? 1.0 : 0.0};
  const auto a = RoundTo(device.act(), random.Normals((transpose_a ? c.K : c.M) * shape.lda));
  const auto b = RoundTo(device.wt(), random.Normals((transpose_b ? c.N : c.K) * shape.ldb));
  const auto before = RoundTo(device.act(), random.Normals(c.M * shape.ldc));
  const DeviceTensor device_a(device, device.act(), a);
  const DeviceTensor device_b(device, device.wt(), b);
  // With beta 0, C's old bytes may be NaN; columns beyond N must survive.
  auto start = before;
  for (int64_t i = 0; i < c.M && !accumulate; ++i) {
    for (int64_t j = 0; j < c.N; ++j) start[i * shape.ldc + j] = NAN;
  }
  const DeviceTensor device_c(device, device.act(), start);
  device.Run(GemmArgs{.transpose_a = transpose_a,
                      .transpose_b = transpose_b,
                      .M = c.M,
                      .N = c.N,
                      .K = c.K,
                      .alpha = static_cast<float>(c.alpha),
                      .beta = accumulate ? 1.0f : 0.0f,
                      .A = device_a.data(),
                      .lda = shape.lda,
                      .B = device_b.data(),
                      .ldb = shape.ldb,
                      .C = device_c.data(),
                      .ldc = shape.ldc,
                      .a_type = Operand::kAct,
                      .b_type = Operand::kWt,
                      .c_type = Operand::kAct});
  auto expected = before;
  reference::Gemm(shape, a, b, &expected);
  const double bound = (2.0 + std::sqrt(static_cast<double>(c.K))) * 0x1p-24 + 2 * device.epsilon();
  return {CompareL2("c", device_c.Get(), expected, bound)};
}

}  // namespace

void AppendGemmCases(std::vector<OpCase>* cases) {
  const GemmCase shapes[] = {
      {1, 1, 1, 0, 1.0},       {3, 5, 7, 3, 2.0},      {1, 64, 33, 0, 1.0},     {64, 1, 33, 1, 1.0},
      {17, 16, 576, 5, 0.5},   {64, 96, 4, 0, 2.0},    {33, 8, 1, 2, 1.0},      {5, 6, 0, 0, 1.0},
      {129, 130, 131, 7, 1.0}, {64, 576, 192, 0, 1.0}, {40, 40, 1100, 64, 1.0},
  };
  for (const GemmCase& c : shapes) {
    for (int flags = 0; flags < 8; ++flags) {
      const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4;
      cases->push_back({"gemm_" + std::string(ta ? "t" : "n") + (tb ? "t" : "n") +
                            (accumulate ? "_accumulate" : "") + "_M" + std::to_string(c.M) + "_N" +
                            std::to_string(c.N) + "_K" + std::to_string(c.K),
                        0, [=](auto& device, auto seed) {
                          return RunGemm(device, seed, c, ta, tb, accumulate);
                        }});
    }
  }
}

}  // namespace soup::kernels
