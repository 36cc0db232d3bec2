// The type of activations ("act" of kernels/ops.h) that a launcher of kernels/cuda works in. bf16
// is what most models run in; fp32 is for models with experts, where a token's choice of expert
// must not turn on a rounding. Sums are fp32 in both, in the same order.
#ifndef SOUP_KERNELS_CUDA_ACT_TYPE_H_
#define SOUP_KERNELS_CUDA_ACT_TYPE_H_

#include <cstdint>

namespace soup::kernels::cuda {

enum class ActType : uint8_t { kBf16, kF32 };

constexpr int64_t ActBytes(ActType type) { return type == ActType::kF32 ? 4 : 2; }

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ACT_TYPE_H_
