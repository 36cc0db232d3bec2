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
                           bool transpose_b, bool accumulate, bool apart) {
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
  DeviceTensor device_c(device, device.act(), start);
  // The addend apart from C: what C held is not read, and columns beyond N are left alone.
  const DeviceTensor addend(device, device.act(), before);
  if (apart) device_c.Set(std::vector<double>(before.size(), NAN));
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
                      .c_type = Operand::kAct,
                      .addend = apart ? addend.data() : nullptr});
  if (apart) {
    auto got = device_c.Get();
    for (int64_t i = 0; i < c.M; ++i) {
      for (int64_t j = c.N; j < shape.ldc; ++j) {
        double& beyond = got[i * shape.ldc + j];
        if (std::isnan(beyond)) beyond = before[i * shape.ldc + j];
      }
    }
    device_c.Set(got);
  }
  auto expected = before;
  reference::Gemm(shape, a, b, &expected);
  const double bound = (2.0 + std::sqrt(static_cast<double>(c.K))) * 0x1p-24 + 2 * device.epsilon();
  return {CompareL2("c", device_c.Get(), expected, bound)};
}

}  // namespace

void AppendGemmCases(std::vector<OpCase>* cases) {
  const GemmCase shapes[] = {
      {1, 1, 1, 0, 1.0},
      {3, 5, 7, 3, 2.0},
      {1, 64, 33, 0, 1.0},
      {64, 1, 33, 1, 1.0},
      {17, 16, 576, 5, 0.5},
      {64, 96, 4, 0, 2.0},
      {33, 8, 1, 2, 1.0},
      {5, 6, 0, 0, 1.0},
      {129, 130, 131, 7, 1.0},
      {64, 576, 192, 0, 1.0},
      {40, 40, 1100, 64, 1.0},
      // A rank among the sizes.
      {100, 24, 256, 0, 1.0},
      {2100, 16, 192, 8, 0.5},
      {77, 192, 24, 0, 1.0},
      {530, 128, 64, 8, 2.0},
  };
  for (const GemmCase& c : shapes) {
    for (int flags = 0; flags < 12; ++flags) {
      const bool ta = flags & 1, tb = flags & 2, accumulate = flags >= 4, apart = flags >= 8;
      // One product and one addend: it may be all cancellation.
      if (accumulate && c.M * c.N * c.K == 1) continue;
      cases->push_back({"gemm_" + std::string(ta ? "t" : "n") + (tb ? "t" : "n") +
                            (apart        ? "_addend"
                             : accumulate ? "_accumulate"
                                          : "") +
                            "_M" + std::to_string(c.M) + "_N" + std::to_string(c.N) + "_K" +
                            std::to_string(c.K),
                        0, [=](auto& device, auto seed) {
                          return RunGemm(device, seed, c, ta, tb, accumulate, apart);
                        }});
    }
  }
}

}  // namespace soup::kernels
