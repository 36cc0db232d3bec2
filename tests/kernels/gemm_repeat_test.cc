// What the numeric plan stands on: for one shape and leading dimensions Gemm gives the same bits
// whenever it is called, on however many threads, wherever its operands lie, and whatever was
// multiplied in between.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/gemm.h"
#include "tests/kernels/cases.h"

namespace soup::kernels::cpu {
namespace {

struct Product {
  int64_t M, N, K, pad;
  bool transpose_a, transpose_b;
  float beta;

  int64_t lda() const { return (transpose_a ? M : K) + pad; }
  int64_t ldb() const { return (transpose_b ? K : N) + pad; }
  int64_t ldc() const { return N + pad; }
};

std::vector<Product> Products() {
  std::vector<Product> products;
  const int64_t shapes[][3] = {{1, 1, 1},       {1, 7, 5},      {7, 1, 5},       {2, 3, 1},
                               {5, 5, 5},       {1, 576, 576},  {576, 1, 64},    {13, 16, 576},
                               {31, 33, 35},    {64, 64, 16},   {65, 960, 576},  {128, 576, 576},
                               {128, 16, 576},  {128, 576, 16}, {96, 1536, 576}, {257, 129, 511},
                               {16, 576, 130},  {300, 64, 300}, {40, 1000, 576}, {512, 256, 1030},
                               {700, 1100, 96}, {1030, 24, 600}};
  for (const auto& [M, N, K] : shapes) {
    for (int flags = 0; flags < 4; ++flags) {
      for (int64_t pad : {0, 3, 64}) {
        products.push_back({M, N, K, pad, (flags & 1) != 0, (flags & 2) != 0,
                            (M + N + K + flags + pad) % 2 == 0 ? 1.0f : 0.0f});
      }
    }
  }
  return products;
}

class Operands {
 public:
  Operands(const Product& p, uint64_t seed)
      : a_((p.transpose_a ? p.K : p.M) * p.lda()),
        b_((p.transpose_b ? p.N : p.K) * p.ldb()),
        c_(p.M * p.ldc()) {
    Random random(seed);
    for (auto* values : {&a_, &b_, &c_}) {
      for (float& v : *values) v = static_cast<float>(random.Uniform() - 0.5);
    }
  }

  // C after the product, with each operand that many floats past a 64-byte boundary.
  std::vector<float> Multiply(const Product& p, CpuContext& ctx, int64_t a_shift, int64_t b_shift,
                              int64_t c_shift) const {
    Shifted a(a_, a_shift), b(b_, b_shift), c(c_, c_shift);
    Gemm({.transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .M = p.M,
          .N = p.N,
          .K = p.K,
          .alpha = 0.5f,
          .beta = p.beta,
          .A = a.data(),
          .lda = p.lda(),
          .B = b.data(),
          .ldb = p.ldb(),
          .C = c.data(),
          .ldc = p.ldc(),
          .a_type = Operand::kAct,
          .b_type = Operand::kWt,
          .c_type = Operand::kAct},
         ctx);
    return std::vector<float>(c.data(), c.data() + c_.size());
  }

 private:
  class Shifted {
   public:
    Shifted(const std::vector<float>& values, int64_t shift) : memory_(values.size() + 32) {
      const auto address = reinterpret_cast<uintptr_t>(memory_.data());
      offset_ = static_cast<size_t>((64 - address % 64) % 64 / 4 + shift);
      std::memcpy(data(), values.data(), values.size() * sizeof(float));
    }
    float* data() { return memory_.data() + offset_; }

   private:
    std::vector<float> memory_;
    size_t offset_;
  };

  std::vector<float> a_, b_, c_;
};

bool SameBits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

class GemmRepeatTest : public testing::TestWithParam<int> {};

TEST_P(GemmRepeatTest, BitsDependOnTheShapeOnly) {
  CpuContext ctx({.threads = GetParam()}), alone({.threads = 1});
  const int64_t shifts[][3] = {{0, 0, 0}, {1, 2, 3}, {4, 8, 12}, {15, 7, 1}, {3, 0, 5}};
  uint64_t seed = 1;
  for (const Product& p : Products()) {
    const Operands operands(p, ++seed);
    const std::vector<float> first = operands.Multiply(p, alone, 0, 0, 0);
    for (const auto& [a, b, c] : shifts) {
      EXPECT_TRUE(SameBits(operands.Multiply(p, ctx, a, b, c), first))
          << "M " << p.M << " N " << p.N << " K " << p.K << " pad " << p.pad << " ta "
          << p.transpose_a << " tb " << p.transpose_b << " shifts " << a << ' ' << b << ' ' << c
          << ", " << GetParam() << " threads, core " << BlasCoreName() << ", seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, GemmRepeatTest, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace soup::kernels::cpu
