// Our own attention on CUDA: causal, packed sequences, GQA, sliding window, soft cap; forward and a
// two-pass backward, sm_80 and newer (mma.sync bf16 with fp32 accumulation, ldmatrix, cp.async). No
// atomics, no S^2 memory: bitwise repeatable. Method: Dao et al., arXiv 2205.14135 and 2307.08691;
// P is scaled by the maximum of a row's first block; only where a row's sum leaves [0, 2^64) are
// its CTA's rows made once more with a running maximum.
//
// q, k, v are column ranges of one buffer with `row_stride`; dq, dk, dv of one with
// `grad_row_stride`; strides are multiples of 8 elements and pointers 16-byte aligned. Head dims
// 16, 32, 64, 96, 128, 256. Here lse and delta are [Hq, T] (kernels/ops.h leaves their order to the
// backend: only backward reads them). Rows that no sequence covers (bucket tail): out, dq, dk, dv
// are set to zero; lse and delta are not read there.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_H_
#define SOUP_KERNELS_CUDA_ATTENTION_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Extra parameters of a family. Query i sees key j when 0 <= i - j and (window == 0 or i - j <
// window); scores s become cap * tanh(s / cap) when soft_cap > 0.
struct AttentionVariant {
  int32_t window = 0;
  float soft_cap = 0.f;
};

// What the kernels need to know of the device, read once. Errors: cudaErrorInvalidDevice below
// sm_80.
struct AttentionDevice {
  int sms = 0;
  int tile_class = 0;  // 0: 227 KB of shared memory a block (sm_90), 1: 163 KB (sm_80), 2: 99 KB
                       // (sm_86, sm_89, sm_120). A larger number than the device's own runs there
                       // too, where its tiles are compiled
};
cudaError_t QueryAttentionDevice(int device, AttentionDevice* out);

// One block of work of a kernel: rows [row, row + block) of the sequence that starts at token
// `first` and has `length` tokens.
struct AttentionTile {
  int32_t first, length, row, unused;
};

// The tiles of one packed micro-batch, heaviest first over all sequences. A pure function of its
// inputs, made on the host and copied to the device by the caller, who keeps the copies alive while
// kernels run.
struct AttentionSchedule {
  std::vector<AttentionTile> forward, backward_q, backward_kv;
  int kv_split = 1;  // blocks that share the query heads of one kv head; > 1 needs `partials`
};
// `skipped`: null, or one flag a sequence; those set have no tiles: another kernel takes them.
// Errors: cudaErrorInvalidValue for a head dim that is not supported.
cudaError_t MakeAttentionSchedule(const AttentionDevice& device, const int32_t* cu_seqlens,
                                  int64_t sequences, int64_t Hq, int64_t Hkv, int64_t D,
                                  const AttentionVariant& variant, AttentionSchedule* out,
                                  const uint8_t* skipped = nullptr);
// Bytes of `partials` for a split: fp32 [split, 2, T, Hkv * D]; 0 when split is 1.
int64_t AttentionPartialsBytes(int kv_split, int64_t T, int64_t Hkv, int64_t D);

// Device copies of a schedule's lists and their lengths.
struct AttentionTiles {
  const AttentionTile* forward = nullptr;
  const AttentionTile* backward_q = nullptr;
  const AttentionTile* backward_kv = nullptr;
  int32_t forward_count = 0, backward_q_count = 0, backward_kv_count = 0;
  int32_t kv_split = 1;
  float* partials = nullptr;
};

cudaError_t AttentionForward(const AttentionForwardArgs& args, const AttentionVariant& variant,
                             const AttentionTiles& tiles, const AttentionDevice& device,
                             cudaStream_t stream);
cudaError_t AttentionBackward(const AttentionBackwardArgs& args, const AttentionVariant& variant,
                              const AttentionTiles& tiles, const AttentionDevice& device,
                              cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ATTENTION_H_
