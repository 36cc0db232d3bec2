// C[M, N] (+)= A[M, K] B[K, N] on small blocks that live in cache: the products inside attention.
//
// A's element (i, k) is a[i * a_row + k * a_col], so a transposed A costs nothing; B and C are
// row-major. Every C element is one running sum over k in order (from 0, or from C when
// accumulating), whatever the tiling: rows, columns and the instruction set do not enter the bits.
#ifndef SOUP_KERNELS_CPU_ISA_BLOCK_MATMUL_H_
#define SOUP_KERNELS_CPU_ISA_BLOCK_MATMUL_H_

#include "kernels/cpu/isa/vec.h"

namespace soup::kernels::cpu::SOUP_ISA {

struct BlockMatmul {
  int64_t M, N, K;
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool accumulate;
};

// Rows x Columns vectors of C in registers.
template <int Rows, int Columns>
SOUP_INLINE void MatmulTile(const BlockMatmul& p, int64_t i, int64_t j) {
  F16 sum[Rows][Columns];
  float* c = p.c + i * p.ldc + j;
  for (int r = 0; r < Rows; ++r) {
    for (int q = 0; q < Columns; ++q) {
      sum[r][q] = p.accumulate ? Load(c + r * p.ldc + q * kLanes) : Set(0.0f);
    }
  }
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  for (int64_t k = 0; k < p.K; ++k) {
    F16 bk[Columns];
    for (int q = 0; q < Columns; ++q) bk[q] = Load(b + k * p.ldb + q * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const F16 ak = Set(a[r * p.a_row + k * p.a_col]);
      for (int q = 0; q < Columns; ++q) sum[r][q] = sum[r][q] + ak * bk[q];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int q = 0; q < Columns; ++q) Store(c + r * p.ldc + q * kLanes, sum[r][q]);
  }
}

template <int Columns>
SOUP_INLINE void MatmulColumns(const BlockMatmul& p, int64_t j) {
  // As many sums as registers hold: 32 of 16 lanes, or 16 of 8 or 4.
  constexpr int kRows = kParts == 1 ? 8 : (kParts == 2 ? 4 : 2);
  int64_t i = 0;
  for (; i + kRows <= p.M; i += kRows) MatmulTile<kRows, Columns>(p, i, j);
  for (; i < p.M; ++i) MatmulTile<1, Columns>(p, i, j);
}

[[maybe_unused]] static void Matmul(const BlockMatmul& p) {
  constexpr int kColumns = kParts == 1 ? 2 : 1;
  int64_t j = 0;
  for (; j + kColumns * kLanes <= p.N; j += kColumns * kLanes) MatmulColumns<kColumns>(p, j);
  for (; j + kLanes <= p.N; j += kLanes) MatmulColumns<1>(p, j);
  for (; j < p.N; ++j) {
    for (int64_t i = 0; i < p.M; ++i) {
      float sum = p.accumulate ? p.c[i * p.ldc + j] : 0.0f;
      for (int64_t k = 0; k < p.K; ++k) {
        sum += p.a[i * p.a_row + k * p.a_col] * p.b[k * p.ldb + j];
      }
      p.c[i * p.ldc + j] = sum;
    }
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA

#endif  // SOUP_KERNELS_CPU_ISA_BLOCK_MATMUL_H_
