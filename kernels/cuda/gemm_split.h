// Matrix products whose activations are fp32 (ActType::kF32), by the library's bf16 products. An
// fp32 operand is the sum of two bf16 matrices, high = bf16(A) and low = bf16(A - high), 16 bits of
// mantissa, and with a bf16 weight B
//   C = alpha high B + beta C, then C += alpha low B,
// with fp32 accumulation and an fp32 C, in that order. Where B is of act's type too (an adapter's A
// and B, and x and u in their gradients) it is split as well, and a third product follows:
//   C = alpha A_high B_high + beta C, C += alpha A_low B_high, C += alpha A_high B_low.
//
// The bf16 matrices lie in a scratch of fixed size. What does not fit goes in chunks: rows of C (a
// B that is split lies there whole), or, where A is transposed, runs of the inner size, which add
// up in order. Chunks are a function of the product's shape and of the scratch's size only.
//
// Taken: A as it is, with any B; A transposed, with a B of act's type that is not. Nothing else is
// asked for by the engine.
#ifndef SOUP_KERNELS_CUDA_GEMM_SPLIT_H_
#define SOUP_KERNELS_CUDA_GEMM_SPLIT_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// An fp32 matrix and where its two bf16 ones go, rows gemm_split::Columns(columns) apart.
struct SplitMatrix {
  const float* from = nullptr;  // [rows, columns], ld apart; null: nothing to split
  int64_t rows = 0, columns = 0, ld = 0;
  void* high = nullptr;
  void* low = nullptr;
};

// What is split into the scratch, and the products of the library that follow, in order.
struct SplitChunk {
  SplitMatrix a, b;
  int count = 0;
  GemmArgs products[3];
};

namespace gemm_split {

inline constexpr int64_t kAlignment = 256;  // of a part of the scratch
inline constexpr int64_t kBf16Bytes = 2;

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
// Columns of a bf16 matrix in the scratch: rows start at multiples of 16 bytes.
constexpr int64_t Columns(int64_t n) { return RoundUp(n, 8); }

// Rows a chunk: all, or as many whole runs of 64 as fit, or what fits. 0: not even one row.
inline int64_t ChunkRows(int64_t rows, int64_t row_bytes, int64_t scratch_bytes) {
  const int64_t fit = std::max<int64_t>(scratch_bytes - 4 * kAlignment, 0) / row_bytes;
  if (rows <= fit) return rows;
  return fit >= 64 ? fit / 64 * 64 : fit;
}

}  // namespace gemm_split

// Calls run(SplitChunk) -> cudaError_t for each chunk in order, until one fails. Errors:
// cudaErrorNotSupported (a form that is not taken, operands larger than the scratch). K is not 0.
template <typename Run>
cudaError_t ForEachSplitChunk(const GemmArgs& g, void* scratch, int64_t scratch_bytes,
                              const Run& run) {
  namespace s = gemm_split;
  const bool b_is_act = g.b_type == Operand::kAct;
  if (g.a_type != Operand::kAct || g.b_type == Operand::kF32 || (g.beta != 0.f && g.beta != 1.f) ||
      (g.transpose_a && (!b_is_act || g.transpose_b))) {
    return cudaErrorNotSupported;
  }
  // Where a part of `rows` rows of an operand lies behind another.
  const auto take = [](char** at, int64_t rows, int64_t columns) {
    char* const here = *at;
    *at += s::RoundUp(rows * s::Columns(columns) * s::kBf16Bytes, s::kAlignment);
    return here;
  };
  SplitChunk c;
  c.count = b_is_act ? 3 : 2;
  c.a.columns = g.transpose_a ? g.M : g.K;
  c.a.ld = g.lda;
  char* at = static_cast<char*>(scratch);
  if (b_is_act) {
    c.b.columns = g.transpose_b ? g.K : g.N;
    c.b.ld = g.ldb;
  }
  if (b_is_act && !g.transpose_a) {  // whole, before the chunks
    c.b.from = static_cast<const float*>(g.B);
    c.b.rows = g.transpose_b ? g.N : g.K;
    c.b.high = take(&at, c.b.rows, c.b.columns);
    c.b.low = take(&at, c.b.rows, c.b.columns);
  }
  char* const begin = at;
  const int64_t left = scratch_bytes - (begin - static_cast<char*>(scratch));
  const int64_t rows = g.transpose_a ? g.K : g.M;
  const int64_t row_columns =
      s::Columns(c.a.columns) + (g.transpose_a ? s::Columns(c.b.columns) : 0);
  const int64_t most = s::ChunkRows(rows, 2 * s::kBf16Bytes * row_columns, left);
  if (most < 1) return cudaErrorNotSupported;
  for (int64_t first = 0; first < rows; first += most) {
    at = begin;
    c.a.rows = std::min(most, rows - first);
    c.a.from = static_cast<const float*>(g.A) + first * g.lda;
    c.a.high = take(&at, c.a.rows, c.a.columns);
    c.a.low = take(&at, c.a.rows, c.a.columns);
    GemmArgs product = g;
    product.lda = s::Columns(c.a.columns);
    product.c_type = Operand::kF32;
    if (g.transpose_a) {
      c.b.rows = c.a.rows;
      c.b.from = static_cast<const float*>(g.B) + first * g.ldb;
      c.b.high = take(&at, c.b.rows, c.b.columns);
      c.b.low = take(&at, c.b.rows, c.b.columns);
      product.K = c.a.rows;
      if (first > 0) {
        product.beta = 1.f;
        product.addend = nullptr;
      }
    } else {
      if (first > 0) c.b.from = nullptr;  // it lies there
      product.M = c.a.rows;
      product.C = static_cast<float*>(g.C) + first * g.ldc;
      if (g.addend != nullptr) {
        product.addend = static_cast<const float*>(g.addend) + first * g.ldc;
      }
    }
    if (b_is_act) {
      product.B = c.b.high;
      product.ldb = s::Columns(c.b.columns);
    }
    for (int i = 0; i < c.count; ++i) {
      c.products[i] = product;
      c.products[i].A = i == 1 ? c.a.low : c.a.high;
      if (i == 2) c.products[i].B = c.b.low;
      if (i > 0) {
        c.products[i].beta = 1.f;
        c.products[i].addend = nullptr;
      }
    }
    const cudaError_t error = run(c);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Splits a chunk's matrices. Any leading dimension and alignment of fp32; columns that fill a row
// up become zeros. Elementwise: bitwise repeatable.
cudaError_t SplitOperands(const SplitChunk& chunk, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GEMM_SPLIT_H_
