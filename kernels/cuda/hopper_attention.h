// Causal attention by warpgroup products of sm_90a: bf16 with fp32 softmax, GQA, head dimension
// 128, no window, no soft cap. It takes the place of cuDNN's where the device has it
// (cudnn_attention.h): the same blocks, the same meaning of lse, a workspace no larger.
//
// Forward: Dao, arXiv 2307.08691; scores of a block of keys while those of the block before are
// multiplied with their values (Shah et al., arXiv 2407.08608). Backward in three kernels: row sums
// of dout * out; for every 128 keys of a key-value head, over all queries that see them, dk and dv
// in registers and dS, rounded to bf16, to the workspace; dq = dS K. 5 products, none made twice.
// No atomics, every sum in one order: bitwise repeatable, whatever shares the call.
#ifndef SOUP_KERNELS_CUDA_HOPPER_ATTENTION_H_
#define SOUP_KERNELS_CUDA_HOPPER_ATTENTION_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

inline constexpr int64_t kHopperAttentionHeadDim = 128;

// Whether this build and the current device have it.
bool HasHopperAttention();

// Sequences of one length, one behind the other in a packed micro-batch.
struct HopperAttentionBlock {
  int64_t first = 0;  // row of the first one
  int64_t length = 0;
  int64_t sequences = 1;
  int64_t groups = 0;  // key-value heads at a time, those of one workspace; divides Hkv
};

// Bytes of workspace: dS of the query heads of `groups` key-value heads, lengths rounded up to 128.
int64_t HopperAttentionWorkspace(int64_t Hq, int64_t Hkv, const HopperAttentionBlock& block);

// Rows of the block alone are written, of out and of lse ([Hq, T]). `sms`: multiprocessors of the
// device; decides no bits. Errors as below.
cudaError_t HopperAttentionForward(const AttentionForwardArgs& args,
                                   const HopperAttentionBlock& block, int sms, cudaStream_t stream);

// Rows of the block alone are written, of dq, dk, dv and of delta (as [Hq, T], like lse). The args'
// cu_seqlens, S and library are not looked at. `turn`: null, or how Rope, inverse, would then turn
// the rows of dq and dk back (its x, T, heads and row_stride are not looked at): nothing is rounded
// between. Pointers and the workspace 16-byte aligned, strides multiples of 8 elements. Errors:
// cudaErrorInvalidValue (another head dimension, parts of heads to be turned, a window within a
// sequence, a soft cap, too little workspace), cudaErrorNotSupported (another device or build).
cudaError_t HopperAttentionBackward(const AttentionBackwardArgs& args,
                                    const HopperAttentionBlock& block, const RopeArgs* turn,
                                    void* workspace, int64_t workspace_bytes, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_HOPPER_ATTENTION_H_
