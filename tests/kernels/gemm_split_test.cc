// The cut of a product of fp32 activations into bf16 products (kernels/cuda/gemm_split.h), carried
// out on the host: chunks stay inside the scratch, and their sum is the product to 16 bits. The
// device's part, the split itself, is cuda_ops_test's.
#include "kernels/cuda/gemm_split.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "tests/kernels/cases.h"

namespace soup::kernels {
namespace {

// A scratch that tells when it is left.
struct Scratch {
  explicit Scratch(int64_t bytes) : bytes(bytes), data(static_cast<size_t>(bytes + 256), 0xff) {}
  char* begin() {
    const auto at = reinterpret_cast<uintptr_t>(data.data());
    return reinterpret_cast<char*>((at + 255) / 256 * 256);
  }
  bool holds(const void* p, int64_t n) {
    const char* c = static_cast<const char*>(p);
    return c >= begin() && c + n <= begin() + bytes && reinterpret_cast<uintptr_t>(c) % 16 == 0;
  }
  int64_t bytes;
  std::vector<uint8_t> data;
};

void SplitOnHost(const cuda::SplitMatrix& m, Scratch& scratch) {
  if (m.from == nullptr) return;
  const int64_t width = cuda::gemm_split::Columns(m.columns);
  ASSERT_TRUE(scratch.holds(m.high, m.rows * width * 2));
  ASSERT_TRUE(scratch.holds(m.low, m.rows * width * 2));
  auto* high = static_cast<uint16_t*>(m.high);
  auto* low = static_cast<uint16_t*>(m.low);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const float x = c < m.columns ? m.from[r * m.ld + c] : 0.f;
      high[r * width + c] = F32ToBf16(x);
      low[r * width + c] = F32ToBf16(x - Bf16ToF32(high[r * width + c]));
    }
  }
}

// What the library computes.
void ProductOnHost(const GemmArgs& g) {
  const auto* a = static_cast<const uint16_t*>(g.A);
  const auto* b = static_cast<const uint16_t*>(g.B);
  const auto* addend = static_cast<const float*>(g.addend == nullptr ? g.C : g.addend);
  for (int64_t i = 0; i < g.M; ++i) {
    for (int64_t j = 0; j < g.N; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < g.K; ++k) {
        sum += static_cast<double>(Bf16ToF32(a[g.transpose_a ? k * g.lda + i : i * g.lda + k])) *
               Bf16ToF32(b[g.transpose_b ? j * g.ldb + k : k * g.ldb + j]);
      }
      const double before = g.beta != 0.f ? addend[i * g.ldc + j] : 0.0;
      static_cast<float*>(g.C)[i * g.ldc + j] = static_cast<float>(g.alpha * sum + before);
    }
  }
}

std::vector<float> Floats(Random& random, int64_t n) {
  std::vector<float> out;
  for (const double x : random.Normals(n)) out.push_back(static_cast<float>(x));
  return out;
}

// Relative L2 error of a product that is cut by a scratch of so many bytes; < 0: not taken.
double Error(uint64_t seed, bool transpose_a, bool transpose_b, bool b_is_act, bool accumulate,
             bool apart, int64_t scratch_bytes, int* chunks) {
  Random random(seed);
  GemmArgs g{};
  g.transpose_a = transpose_a;
  g.transpose_b = transpose_b;
  g.M = 1 + random.Below(90);
  g.N = 1 + random.Below(40);
  g.K = 1 + random.Below(90);
  g.lda = (transpose_a ? g.M : g.K) + random.Below(5);
  g.ldb = (transpose_b ? g.K : g.N) + random.Below(5);
  g.ldc = g.N + random.Below(5);
  g.alpha = 0.5f;
  g.beta = accumulate ? 1.f : 0.f;
  g.a_type = Operand::kAct;
  g.b_type = b_is_act ? Operand::kAct : Operand::kWt;
  g.c_type = Operand::kAct;
  const std::vector<float> a = Floats(random, (transpose_a ? g.K : g.M) * g.lda);
  std::vector<float> b = Floats(random, (transpose_b ? g.N : g.K) * g.ldb);
  std::vector<uint16_t> half;
  for (float& x : b) {
    half.push_back(F32ToBf16(x));
    if (!b_is_act) x = Bf16ToF32(half.back());
  }
  const std::vector<float> before = Floats(random, g.M * g.ldc);
  std::vector<float> c = before;
  if (!accumulate || apart) {
    for (int64_t i = 0; i < g.M; ++i) {
      for (int64_t j = 0; j < g.N; ++j) c[i * g.ldc + j] = NAN;
    }
  }
  g.A = a.data();
  g.B = b_is_act ? static_cast<const void*>(b.data()) : half.data();
  g.C = c.data();
  g.addend = apart ? before.data() : nullptr;
  Scratch scratch(scratch_bytes);
  *chunks = 0;
  const cudaError_t cut = cuda::ForEachSplitChunk(
      g, scratch.begin(), scratch_bytes, [&](const cuda::SplitChunk& chunk) {
        ++*chunks;
        SplitOnHost(chunk.b, scratch);
        SplitOnHost(chunk.a, scratch);
        for (int i = 0; i < chunk.count; ++i) ProductOnHost(chunk.products[i]);
        return testing::Test::HasFatalFailure() ? cudaErrorUnknown : cudaSuccess;
      });
  if (cut != cudaSuccess) return -1;
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < g.M; ++i) {
    for (int64_t j = 0; j < g.ldc; ++j) {
      double expected = before[i * g.ldc + j];
      if (j < g.N) {
        double sum = 0;
        for (int64_t k = 0; k < g.K; ++k) {
          sum += static_cast<double>(a[transpose_a ? k * g.lda + i : i * g.lda + k]) *
                 b[transpose_b ? j * g.ldb + k : k * g.ldb + j];
        }
        expected = 0.5 * sum + (accumulate ? expected : 0.0);
      }
      difference += std::pow(c[i * g.ldc + j] - expected, 2);
      norm += expected * expected;
    }
  }
  return std::sqrt(difference / norm);
}

TEST(GemmSplit, ChunksAddUpToTheProduct) {
  int most = 0;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    for (const int64_t bytes : {int64_t{1} << 20, int64_t{24} << 10}) {
      // transposed A, transposed B, B an activation.
      const bool forms[][3] = {{false, false, false},
                               {false, true, false},
                               {false, false, true},
                               {false, true, true},
                               {true, false, true}};
      for (const auto& form : forms) {
        for (const bool accumulate : {false, true}) {
          for (const bool apart : {false, true}) {
            if (apart && !accumulate) continue;
            int chunks = 0;
            const double error =
                Error(seed, form[0], form[1], form[2], accumulate, apart, bytes, &chunks);
            ASSERT_GE(error, 0.0) << "seed " << seed;
            EXPECT_LT(error, 0x1p-16) << "seed " << seed << ", " << form[0] << form[1] << form[2];
            EXPECT_TRUE(chunks == 1 || bytes < 1 << 20);
            most = std::max(most, chunks);
          }
        }
      }
    }
  }
  EXPECT_GT(most, 1);
}

TEST(GemmSplit, RowsAChunk) {
  using cuda::gemm_split::ChunkRows;
  EXPECT_EQ(ChunkRows(4096, 4 * 4096, (int64_t{32} << 20) + 1024), 2048);
  EXPECT_EQ(ChunkRows(100, 1000, 1 << 20), 100);
  EXPECT_EQ(ChunkRows(1000, 10000, 1 << 20), 64);
  EXPECT_EQ(ChunkRows(1000, 100000, 1 << 20), 10);
  EXPECT_EQ(ChunkRows(1000, 2 << 20, 1 << 20), 0);
}

TEST(GemmSplit, OtherFormsAreRefused) {
  int chunks = 0;
  EXPECT_LT(Error(1, true, false, false, false, false, 1 << 20, &chunks), 0);  // transposed, weight
  EXPECT_LT(Error(1, true, true, true, false, false, 1 << 20, &chunks), 0);
  EXPECT_LT(Error(1, false, true, true, false, false, 2048, &chunks), 0);  // no room
  EXPECT_EQ(chunks, 0);
}

}  // namespace
}  // namespace soup::kernels
