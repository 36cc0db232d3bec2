#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_backward_kv.cuh"
#include "kernels/cuda/attention_backward_q.cuh"
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/attention_instances.h"

namespace soup::kernels::cuda {
namespace {

using attention::BackwardKvConfig;
using attention::BackwardQConfig;
using attention::ForwardConfig;
using attention::Params;

template <class C>
AttentionInstance Forward() {
  return {{reinterpret_cast<const void*>(attention::ForwardKernel<C, false>),
           reinterpret_cast<const void*>(attention::ForwardKernel<C, true>)},
          C::BLOCK_ROWS,
          C::THREADS,
          C::SHARED_BYTES};
}
template <class C>
AttentionInstance BackwardQ() {
  return {{reinterpret_cast<const void*>(attention::BackwardQKernel<C, false>),
           reinterpret_cast<const void*>(attention::BackwardQKernel<C, true>)},
          C::BLOCK_ROWS,
          C::THREADS,
          C::SHARED_BYTES};
}
template <class C>
AttentionInstance BackwardKv() {
  return {{reinterpret_cast<const void*>(attention::BackwardKvKernel<C, false>),
           reinterpret_cast<const void*>(attention::BackwardKvKernel<C, true>)},
          C::BLOCK_ROWS,
          C::THREADS,
          C::SHARED_BYTES};
}

// Tile sizes by measurement on an H200 (docs/BENCHMARKS.md); classes 1 and 2 are what fits their
// shared memory.
const AttentionInstances* Table(size_t* count) {
  static const AttentionInstances table[] = {
      {0, 16, Forward<ForwardConfig<16, 128, 64, 32, 2, 1>>(),
       BackwardQ<BackwardQConfig<16, 128, 32, 32, 2, 1>>(),
       BackwardKv<BackwardKvConfig<16, 64, 64, 32, 0, 1>>()},
      {0, 32, Forward<ForwardConfig<32, 128, 64, 32, 2, 1>>(),
       BackwardQ<BackwardQConfig<32, 128, 32, 32, 2, 1>>(),
       BackwardKv<BackwardKvConfig<32, 64, 64, 32, 0, 1>>()},
      {0, 64, Forward<ForwardConfig<64, 128, 64, 32, 2, 2>>(),
       BackwardQ<BackwardQConfig<64, 128, 64, 32, 2, 2>>(),
       BackwardKv<BackwardKvConfig<64, 64, 64, 32, 0, 2>>()},
      {0, 96, Forward<ForwardConfig<96, 128, 64, 32, 2, 2>>(),
       BackwardQ<BackwardQConfig<96, 128, 32, 32, 2, 2>>(),
       BackwardKv<BackwardKvConfig<96, 128, 64, 32, 1, 1>>()},
      {0, 128, Forward<ForwardConfig<128, 128, 64, 32, 2, 2>>(),
       BackwardQ<BackwardQConfig<128, 128, 32, 32, 2, 2>>(),
       BackwardKv<BackwardKvConfig<128, 128, 64, 32, 1, 1>>()},
      {0, 256, Forward<ForwardConfig<256, 64, 32, 16, 2, 2>>(),
       BackwardQ<BackwardQConfig<256, 64, 32, 16, 1, 2>>(),
       BackwardKv<BackwardKvConfig<256, 64, 32, 16, 1, 1>>()},
#ifdef SOUP_ATTENTION_ALL_CLASSES
      {1, 16, Forward<ForwardConfig<16, 128, 64, 32, 2, 1>>(),
       BackwardQ<BackwardQConfig<16, 128, 32, 32, 2, 1>>(),
       BackwardKv<BackwardKvConfig<16, 64, 32, 32, 0, 1>>()},
      {1, 32, Forward<ForwardConfig<32, 128, 64, 32, 2, 1>>(),
       BackwardQ<BackwardQConfig<32, 128, 32, 32, 2, 1>>(),
       BackwardKv<BackwardKvConfig<32, 64, 32, 32, 0, 1>>()},
      {1, 64, Forward<ForwardConfig<64, 128, 64, 32, 2, 2>>(),
       BackwardQ<BackwardQConfig<64, 128, 64, 32, 2, 2>>(),
       BackwardKv<BackwardKvConfig<64, 64, 32, 32, 0, 2>>()},
      {1, 96, Forward<ForwardConfig<96, 128, 64, 32, 1, 2>>(),
       BackwardQ<BackwardQConfig<96, 128, 32, 32, 1, 2>>(),
       BackwardKv<BackwardKvConfig<96, 128, 32, 32, 1, 1>>()},
      {1, 128, Forward<ForwardConfig<128, 128, 64, 32, 1, 2>>(),
       BackwardQ<BackwardQConfig<128, 128, 32, 32, 1, 2>>(),
       BackwardKv<BackwardKvConfig<128, 128, 32, 32, 1, 1>>()},
      {1, 256, Forward<ForwardConfig<256, 64, 32, 16, 2, 1>>(),
       BackwardQ<BackwardQConfig<256, 64, 32, 16, 1, 1>>(),
       BackwardKv<BackwardKvConfig<256, 32, 32, 16, 1, 1>>()},
      {2, 16, Forward<ForwardConfig<16, 128, 64, 32, 2, 1>>(),
       BackwardQ<BackwardQConfig<16, 128, 32, 32, 2, 1>>(),
       BackwardKv<BackwardKvConfig<16, 64, 32, 32, 0, 1>>()},
      {2, 32, Forward<ForwardConfig<32, 128, 64, 32, 2, 1>>(),
       BackwardQ<BackwardQConfig<32, 128, 32, 32, 2, 1>>(),
       BackwardKv<BackwardKvConfig<32, 64, 32, 32, 0, 1>>()},
      {2, 64, Forward<ForwardConfig<64, 128, 64, 32, 2, 2>>(),
       BackwardQ<BackwardQConfig<64, 128, 32, 32, 2, 2>>(),
       BackwardKv<BackwardKvConfig<64, 64, 32, 32, 0, 2>>()},
      {2, 96, Forward<ForwardConfig<96, 64, 64, 16, 1, 2>>(),
       BackwardQ<BackwardQConfig<96, 64, 32, 16, 1, 2>>(),
       BackwardKv<BackwardKvConfig<96, 64, 32, 32, 1, 1>>()},
      {2, 128, Forward<ForwardConfig<128, 64, 64, 16, 1, 2>>(),
       BackwardQ<BackwardQConfig<128, 64, 32, 16, 1, 2>>(),
       BackwardKv<BackwardKvConfig<128, 64, 32, 32, 1, 1>>()},
      {2, 256, Forward<ForwardConfig<256, 64, 32, 16, 1, 1>>(),
       BackwardQ<BackwardQConfig<256, 32, 32, 16, 1, 1>>(),
       BackwardKv<BackwardKvConfig<256, 16, 16, 16, 0, 1>>()},
#endif
  };
  *count = sizeof table / sizeof table[0];
  return table;
}

Params Common(int64_t T, int64_t Hq, int64_t Hkv, float scale, const AttentionVariant& variant,
              const AttentionDevice& device) {
  Params p{};
  p.T = static_cast<int>(T);
  p.Hq = static_cast<int>(Hq);
  p.Hkv = static_cast<int>(Hkv);
  p.group = static_cast<int>(Hq / Hkv);
  p.window = variant.window;
  p.split = 1;
  p.sms = device.sms;
  p.scale = scale;
  const bool cap = variant.soft_cap > 0.f;
  p.c2 = cap ? kLog2E : scale * kLog2E;
  p.cap_in = cap ? scale * 2.f * kLog2E / variant.soft_cap : 0.f;
  p.cap_out = variant.soft_cap;
  return p;
}

cudaError_t Launch(const AttentionInstance& instance, bool cap, int64_t grid,
                   const AttentionTile* tiles, Params p, cudaStream_t stream) {
  if (grid == 0) return cudaSuccess;
  p.tiles = reinterpret_cast<const int4*>(tiles);
  void* args[] = {&p};
  return cudaLaunchKernel(instance.kernel[cap], dim3(static_cast<unsigned>(grid)),
                          dim3(static_cast<unsigned>(instance.threads)), args,
                          static_cast<size_t>(instance.shared_bytes), stream);
}

// Zeroes rows [covered, T) of `width` elements.
cudaError_t ZeroTail(void* rows, int64_t covered, int64_t T, int64_t width, int64_t stride,
                     cudaStream_t stream) {
  if (covered >= T) return cudaSuccess;
  return cudaMemset2DAsync(
      static_cast<bf16*>(rows) + covered * stride, static_cast<size_t>(stride) * sizeof(bf16), 0,
      static_cast<size_t>(width) * sizeof(bf16), static_cast<size_t>(T - covered), stream);
}

bool BadStrides(int64_t a, int64_t b, const void* x, const void* y) {
  return a % kVector != 0 || b % kVector != 0 || !Aligned16(x) || !Aligned16(y);
}

}  // namespace

const AttentionInstances* FindAttentionInstances(int tile_class, int64_t D) {
  size_t count = 0;
  const AttentionInstances* table = Table(&count);
  for (size_t i = 0; i < count; ++i) {
    if (table[i].tile_class == tile_class && table[i].D == D) return &table[i];
  }
  return nullptr;
}

cudaError_t QueryAttentionDevice(int device, AttentionDevice* out) {
  cudaDeviceProp properties;
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) return status;
  if (properties.major < 8) return cudaErrorInvalidDevice;
  const size_t shared = properties.sharedMemPerBlockOptin;
  out->sms = properties.multiProcessorCount;
  out->tile_class = shared >= 227 * 1024 ? 0 : shared >= 163 * 1024 ? 1 : 2;
  size_t count = 0;
  const AttentionInstances* table = Table(&count);
  for (size_t i = 0; i < count; ++i) {
    if (table[i].tile_class < out->tile_class) continue;  // does not fit here
    for (const AttentionInstance* k :
         {&table[i].forward, &table[i].backward_q, &table[i].backward_kv}) {
      for (const void* kernel : k->kernel) {
        const cudaError_t set = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared_bytes);
        if (set != cudaSuccess) return set;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t AttentionForward(const AttentionForwardArgs& a, const AttentionVariant& variant,
                             const AttentionTiles& tiles, const AttentionDevice& device,
                             cudaStream_t stream) {
  const AttentionInstances* kernels = FindAttentionInstances(device.tile_class, a.D);
  if (kernels == nullptr || BadStrides(a.row_stride, a.Hq * a.D, a.q, a.out))
    return cudaErrorInvalidValue;
  Params p = Common(a.T, a.Hq, a.Hkv, a.scale, variant, device);
  p.q = static_cast<const bf16*>(a.q);
  p.k = static_cast<const bf16*>(a.k);
  p.v = static_cast<const bf16*>(a.v);
  p.qkv_stride = static_cast<int>(a.row_stride);
  p.out = static_cast<bf16*>(a.out);
  p.out_stride = static_cast<int>(a.Hq * a.D);
  p.lse = a.lse;
  const cudaError_t tail = ZeroTail(a.out, a.cu_seqlens[a.S], a.T, a.Hq * a.D, a.Hq * a.D, stream);
  if (tail != cudaSuccess) return tail;
  return Launch(kernels->forward, variant.soft_cap > 0.f, tiles.forward_count * a.Hq, tiles.forward,
                p, stream);
}

cudaError_t AttentionBackward(const AttentionBackwardArgs& a, const AttentionVariant& variant,
                              const AttentionTiles& tiles, const AttentionDevice& device,
                              cudaStream_t stream) {
  const AttentionInstances* kernels = FindAttentionInstances(device.tile_class, a.D);
  if (kernels == nullptr || BadStrides(a.row_stride, a.grad_row_stride, a.q, a.dq))
    return cudaErrorInvalidValue;
  if (tiles.kv_split > 1 && tiles.partials == nullptr) return cudaErrorInvalidValue;
  Params p = Common(a.T, a.Hq, a.Hkv, a.scale, variant, device);
  p.q = static_cast<const bf16*>(a.q);
  p.k = static_cast<const bf16*>(a.k);
  p.v = static_cast<const bf16*>(a.v);
  p.qkv_stride = static_cast<int>(a.row_stride);
  p.out_in = static_cast<const bf16*>(a.out);
  p.dout = static_cast<const bf16*>(a.dout);
  p.out_stride = static_cast<int>(a.Hq * a.D);
  p.lse = const_cast<float*>(a.lse);
  p.delta = a.delta;
  p.dq = static_cast<bf16*>(a.dq);
  p.dk = static_cast<bf16*>(a.dk);
  p.dv = static_cast<bf16*>(a.dv);
  p.grad_stride = static_cast<int>(a.grad_row_stride);
  p.split = tiles.kv_split;
  p.partials = tiles.partials;
  const int64_t covered = a.cu_seqlens[a.S];
  const bool cap = variant.soft_cap > 0.f;
  cudaError_t status = ZeroTail(a.dq, covered, a.T, a.Hq * a.D, a.grad_row_stride, stream);
  if (status == cudaSuccess)
    status = ZeroTail(a.dk, covered, a.T, a.Hkv * a.D, a.grad_row_stride, stream);
  if (status == cudaSuccess)
    status = ZeroTail(a.dv, covered, a.T, a.Hkv * a.D, a.grad_row_stride, stream);
  if (status == cudaSuccess) {
    status = Launch(kernels->backward_q, cap, tiles.backward_q_count * a.Hq, tiles.backward_q, p,
                    stream);
  }
  if (status == cudaSuccess) {
    status = Launch(kernels->backward_kv, cap, tiles.backward_kv_count * a.Hkv * p.split,
                    tiles.backward_kv, p, stream);
  }
  if (status != cudaSuccess || p.split == 1 || covered == 0) return status;
  const int64_t quads = covered * a.Hkv * a.D / 4;
  attention::SumPartsKernel<<<static_cast<unsigned>((quads + 255) / 256), 256, 0, stream>>>(
      p, covered, static_cast<int>(a.Hkv * a.D));
  return cudaGetLastError();
}

}  // namespace soup::kernels::cuda
