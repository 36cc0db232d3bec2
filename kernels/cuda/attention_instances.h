// The compiled attention kernels, by tile class and head dimension. Internal to kernels/cuda.
#ifndef SOUP_KERNELS_CUDA_ATTENTION_INSTANCES_H_
#define SOUP_KERNELS_CUDA_ATTENTION_INSTANCES_H_

#include <cstdint>

namespace soup::kernels::cuda {

struct AttentionInstance {
  const void* kernel[2];  // without and with soft cap
  int block_rows, threads, shared_bytes;
};
struct AttentionInstances {
  int tile_class;
  int64_t D;
  AttentionInstance forward, backward_q, backward_kv;
};

// Null when the head dimension is not supported.
const AttentionInstances* FindAttentionInstances(int tile_class, int64_t D);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ATTENTION_INSTANCES_H_
