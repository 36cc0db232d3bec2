#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm_split.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;

// high and low [rows, 8 groups] from x [rows, columns]; a thread takes 8 columns at a time.
// `vectors`: rows of x start at multiples of 16 bytes.
__global__ void __launch_bounds__(kBlock)
    SplitKernel(const float* __restrict__ x, int64_t ldx, int64_t rows, int columns, int groups,
                bool vectors, uint4* __restrict__ high, uint4* __restrict__ low) {
  const int64_t n = rows * groups;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < n;
       i += gridDim.x * static_cast<int64_t>(kBlock)) {
    const int64_t r = i / groups;
    const int column = static_cast<int>(i - r * groups) * kVector;
    const float* from = x + r * ldx + column;
    float f[8];
    if (vectors && column + kVector <= columns) {
      Unpack8(*reinterpret_cast<const F32x8*>(from), f);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) f[k] = column + k < columns ? from[k] : 0.f;
    }
    const uint4 rounded = Pack8(f);
    high[i] = rounded;
    float g[8];
    Unpack8(rounded, g);
#pragma unroll
    for (int k = 0; k < 8; ++k) g[k] = f[k] - g[k];
    low[i] = Pack8(g);
  }
}

cudaError_t Split(const SplitMatrix& m, cudaStream_t stream) {
  if (m.from == nullptr || m.rows == 0) return cudaSuccess;
  if (!Aligned16(m.high) || !Aligned16(m.low)) return cudaErrorInvalidValue;
  const int groups = static_cast<int>(gemm_split::Columns(m.columns) / kVector);
  SplitKernel<<<GridFor(m.rows * groups, kBlock), kBlock, 0, stream>>>(
      m.from, m.ld, m.rows, static_cast<int>(m.columns), groups, m.ld % 4 == 0 && Aligned16(m.from),
      static_cast<uint4*>(m.high), static_cast<uint4*>(m.low));
  return cudaGetLastError();
}

}  // namespace

cudaError_t SplitOperands(const SplitChunk& chunk, cudaStream_t stream) {
  const cudaError_t split = Split(chunk.b, stream);
  return split == cudaSuccess ? Split(chunk.a, stream) : split;
}

}  // namespace soup::kernels::cuda
