#include "kernels/cuda/common.cuh"
#include "kernels/cuda/nf4_dequant.h"
#include "kernels/nf4.h"

namespace soup::kernels::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kUnroll = 4;  // words a thread has in flight

__device__ float nested_code[256];  // read by index: constant memory would take a lane at a time
__constant__ float nf4_code[16];

// A thread turns 4-byte words (8 codes) into 16-byte stores, so that a warp reads 128 and writes
// 512 contiguous bytes. The code table stands once a bank (entry e of lane l at e * 32 + l): no
// conflicts whatever the codes are.
template <bool kDouble>
__global__ void __launch_bounds__(kBlock)
    DequantKernel(const uint32_t* __restrict__ packed, const float* __restrict__ absmax,
                  const uint8_t* __restrict__ absmax_q, const float* __restrict__ nested_absmax,
                  const float* __restrict__ nested_offset, uint4* __restrict__ out, int64_t words) {
  __shared__ float codes[16 * 32];
  __shared__ float nested[256];
  for (int i = threadIdx.x; i < 16 * 32; i += kBlock) codes[i] = nf4_code[i >> 5];
  float offset = 0.f;
  if (kDouble) {
    nested[threadIdx.x] = nested_code[threadIdx.x];
    offset = __ldg(nested_offset);
  }
  __syncthreads();
  const float* mine = codes + (threadIdx.x & 31);
  for (int64_t base = blockIdx.x * static_cast<int64_t>(kBlock * kUnroll) + threadIdx.x;
       base < words; base += gridDim.x * static_cast<int64_t>(kBlock * kUnroll)) {
    uint32_t word[kUnroll];
    float scale[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = base + u * kBlock;
      if (i >= words) continue;
      word[u] = __ldcs(packed + i);
      if (kDouble) {
        scale[u] = __fadd_rn(
            __fmul_rn(nested[__ldg(absmax_q + (i >> 3))], __ldg(nested_absmax + (i >> 11))),
            offset);
      } else {
        scale[u] = __ldg(absmax + (i >> 3));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = base + u * kBlock;
      if (i >= words) continue;
      float f[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t byte = word[u] >> (8 * j);
        f[2 * j] = mine[(byte & 0xf0u) << 1] * scale[u];
        f[2 * j + 1] = mine[(byte & 0x0fu) << 5] * scale[u];
      }
      __stcs(out + i, Pack8(f));  // larger than the caches: it must not push out what is read
    }
  }
}

// The last n % 8 weights.
template <bool kDouble>
__global__ void TailKernel(Nf4DequantArgs a, int64_t first) {
  const int64_t i = first + threadIdx.x;
  if (i >= a.n) return;
  const uint8_t byte = a.packed[i / 2];
  const int64_t block = i / kNf4BlockSize;
  const float scale = kDouble ? __fadd_rn(__fmul_rn(nested_code[a.absmax_q[block]],
                                                    a.nested_absmax[block / kNf4NestedBlockSize]),
                                          a.nested_offset[0])
                              : a.absmax[block];
  static_cast<bf16*>(a.dst)[i] =
      __float2bfloat16_rn(nf4_code[i % 2 == 0 ? byte >> 4 : byte & 15] * scale);
}

}  // namespace

cudaError_t LoadNf4Tables() {
  const cudaError_t status =
      cudaMemcpyToSymbol(nested_code, Nf4NestedCode().data(), sizeof(float) * 256);
  if (status != cudaSuccess) return status;
  return cudaMemcpyToSymbol(nf4_code, kNf4Code.data(), sizeof(float) * 16);
}

cudaError_t Nf4Dequant(const Nf4DequantArgs& a, cudaStream_t stream) {
  const bool is_double = a.absmax == nullptr;
  if (!Aligned16(a.dst) || (reinterpret_cast<uintptr_t>(a.packed) & 3) != 0)
    return cudaErrorInvalidValue;
  const int64_t words = a.n / 8;
  if (words > 0) {
    auto kernel = is_double ? DequantKernel<true> : DequantKernel<false>;
    kernel<<<GridFor(words, kBlock * kUnroll), kBlock, 0, stream>>>(
        reinterpret_cast<const uint32_t*>(a.packed), a.absmax, a.absmax_q, a.nested_absmax,
        a.nested_offset, static_cast<uint4*>(a.dst), words);
  }
  if (a.n % 8 != 0) {
    auto kernel = is_double ? TailKernel<true> : TailKernel<false>;
    kernel<<<1, 8, 0, stream>>>(a, words * 8);
  }
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
