#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/hopper_attention_backward.cuh"
#include "kernels/cuda/hopper_attention_forward.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/tensor_map.h"

namespace soup::kernels::cuda {
namespace {

using hopper_attention::BackwardParams;
using hopper_attention::DeltaKernel;
using hopper_attention::ForwardKernel;
using hopper_attention::ForwardParams;
using hopper_attention::ForwardShared;
using hopper_attention::kBlock;
using hopper_attention::kBox;
using hopper_attention::KeyKernel;
using hopper_attention::KeyShared;
using hopper_attention::kHeadDim;
using hopper_attention::QueryKernel;
using hopper_attention::QueryShared;

static_assert(kHeadDim == kHopperAttentionHeadDim && kBox == kTensorMapColumns, "one tiling");

int64_t Padded(int64_t length) { return (length + kBlock - 1) / kBlock * kBlock; }

bool AllAligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* p) { return Aligned16(p); });
}

template <typename Args>
bool Takes(const Args& a, const HopperAttentionBlock& b) {
  constexpr int64_t kMost = INT32_MAX;
  const bool heads = a.D == kHeadDim && a.Hkv > 0 && a.Hq > 0 && a.Hq % a.Hkv == 0;
  const bool rows = b.first >= 0 && b.length > 0 && b.sequences > 0 &&
                    b.first + b.length * b.sequences <= a.T && a.T <= kMost;
  // Rows of dS, and CTAs of each kernel.
  return heads && rows && b.sequences * a.Hq * Padded(b.length) <= kMost &&
         a.row_stride % kVector == 0 && (a.window == 0 || a.window >= b.length) &&
         a.soft_cap == 0.f && AllAligned({a.q, a.k, a.v, a.out});
}

// Heads of 128 columns of the block's sequences.
cudaError_t MapHeads(const HopperAttentionBlock& b, const void* rows, int64_t stride, int64_t heads,
                     CUtensorMap* map) {
  TensorMapArgs m;
  m.matrix = static_cast<const bf16*>(rows) + b.first * stride;
  m.rows = b.length;
  m.columns = heads * kHeadDim;
  m.stride = stride;
  m.box_rows = kBox;
  m.count = b.sequences;
  m.apart = b.length * stride;
  return MakeTensorMaps(m, map);
}

cudaError_t MakeParams(const AttentionBackwardArgs& a, const HopperAttentionBlock& b,
                       void* workspace, BackwardParams* p) {
  const int64_t padded = Padded(b.length), group = a.Hq / a.Hkv;
  TensorMapArgs ds;
  ds.matrix = workspace;
  ds.rows = b.sequences * b.groups * group * padded;
  ds.columns = ds.stride = padded;
  ds.box_rows = kBox;
  ds.apart = ds.rows * ds.stride;
  for (const cudaError_t made :
       {MapHeads(b, a.q, a.row_stride, a.Hq, &p->q), MapHeads(b, a.k, a.row_stride, a.Hkv, &p->k),
        MapHeads(b, a.v, a.row_stride, a.Hkv, &p->v),
        MapHeads(b, a.dout, a.Hq * a.D, a.Hq, &p->dout),
        MapHeads(b, a.dq, a.grad_row_stride, a.Hq, &p->dq),
        MapHeads(b, a.dk, a.grad_row_stride, a.Hkv, &p->dk),
        MapHeads(b, a.dv, a.grad_row_stride, a.Hkv, &p->dv), MakeTensorMaps(ds, &p->ds)}) {
    if (made != cudaSuccess) return made;
  }
  p->lse = a.lse;
  p->delta = a.delta;
  p->T = a.T;
  p->first = static_cast<int>(b.first);
  p->length = static_cast<int>(b.length);
  p->padded = static_cast<int>(padded);
  p->sequences = static_cast<int>(b.sequences);
  p->groups = static_cast<int>(b.groups);
  p->group = static_cast<int>(group);
  p->scale = a.scale;
  p->c2 = a.scale * kLog2E;
  return cudaSuccess;
}

// Once a kernel: more shared memory than every card gives unasked.
cudaError_t AllowForward() {
  return cudaFuncSetAttribute(ForwardKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              ForwardShared::kBytes);
}
cudaError_t AllowBackward() {
  const cudaError_t keys = cudaFuncSetAttribute(
      KeyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, KeyShared::kBytes);
  if (keys != cudaSuccess) return keys;
  return cudaFuncSetAttribute(QueryKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              QueryShared::kBytes);
}

}  // namespace

bool HasHopperAttention() { return HasTensorMaps(); }

int64_t HopperAttentionWorkspace(int64_t Hq, int64_t Hkv, const HopperAttentionBlock& block) {
  const int64_t padded = Padded(block.length);
  return block.sequences * block.groups * (Hq / Hkv) * padded * padded * 2;
}

cudaError_t HopperAttentionForward(const AttentionForwardArgs& a, const HopperAttentionBlock& block,
                                   int sms, cudaStream_t stream) {
  if (!HasHopperAttention()) return cudaErrorNotSupported;
  if (!Takes(a, block)) return cudaErrorInvalidValue;
  static const cudaError_t allowed = AllowForward();
  if (allowed != cudaSuccess) return allowed;
  ForwardParams p{};
  for (const cudaError_t made : {MapHeads(block, a.q, a.row_stride, a.Hq, &p.q),
                                 MapHeads(block, a.k, a.row_stride, a.Hkv, &p.k),
                                 MapHeads(block, a.v, a.row_stride, a.Hkv, &p.v),
                                 MapHeads(block, a.out, a.Hq * a.D, a.Hq, &p.out)}) {
    if (made != cudaSuccess) return made;
  }
  p.lse = a.lse;
  p.T = a.T;
  p.first = static_cast<int>(block.first);
  p.length = static_cast<int>(block.length);
  p.blocks = static_cast<int>(Padded(block.length) / kBlock);
  p.sequences = static_cast<int>(block.sequences);
  p.heads = static_cast<int>(a.Hq);
  p.group = static_cast<int>(a.Hq / a.Hkv);
  p.c2 = a.scale * kLog2E;
  const int works = p.blocks * p.sequences * p.heads;
  return LaunchBehind(ForwardKernel, dim3(static_cast<unsigned>(std::min(works, sms))),
                      ForwardShared::kThreads, ForwardShared::kBytes, stream, p);
}

cudaError_t HopperAttentionBackward(const AttentionBackwardArgs& a,
                                    const HopperAttentionBlock& block, const RopeArgs* turn,
                                    void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
  if (!HasHopperAttention()) return cudaErrorNotSupported;
  if (!Takes(a, block) || a.grad_row_stride % kVector != 0 || block.groups <= 0 ||
      a.Hkv % block.groups != 0 || !AllAligned({a.dout, a.dq, a.dk, a.dv, workspace}) ||
      HopperAttentionWorkspace(a.Hq, a.Hkv, block) > workspace_bytes) {
    return cudaErrorInvalidValue;
  }
  if (turn != nullptr && (!turn->inverse || (turn->rotary != 0 && turn->rotary != kHeadDim))) {
    return cudaErrorInvalidValue;
  }
  static const cudaError_t allowed = AllowBackward();
  if (allowed != cudaSuccess) return allowed;
  BackwardParams p{};
  cudaError_t error = MakeParams(a, block, workspace, &p);
  if (error != cudaSuccess) return error;
  if (turn != nullptr) p.turning = {turn->positions + block.first, turn->inv_freq, turn->scale};
  const int rows = p.sequences * p.length;
  constexpr int kRows = hopper_attention::kDeltaRows * hopper_attention::kDeltaWarps;
  const dim3 grid(static_cast<unsigned>((rows + kRows - 1) / kRows), static_cast<unsigned>(a.Hq));
  error = LaunchBehind(DeltaKernel, grid, 32 * hopper_attention::kDeltaWarps, 0, stream,
                       static_cast<const uint4*>(a.dout), static_cast<const uint4*>(a.out), a.delta,
                       p.first, rows, a.T);
  const int blocks = p.padded / kBlock, heads = p.sequences * p.groups;
  for (p.kv0 = 0; p.kv0 < a.Hkv && error == cudaSuccess; p.kv0 += p.groups) {
    error = LaunchBehind(KeyKernel, dim3(static_cast<unsigned>((blocks + 1) / 2 * heads)),
                         KeyShared::kThreads, KeyShared::kBytes, stream, p);
    if (error != cudaSuccess) return error;
    error = LaunchBehind(QueryKernel, dim3(static_cast<unsigned>(blocks * heads * p.group)),
                         QueryShared::kThreads, QueryShared::kBytes, stream, p);
  }
  return error;
}

}  // namespace soup::kernels::cuda
