// LoRA's products on CUDA: one size of each is a rank, so they are bound by reading x, y and dy.
// mma.sync bf16 with fp32 accumulation, sm_80 and newer; sums in fixed order, no atomics: bitwise
// repeatable. The ops are those of kernels/ops.h; the A side (x A^T and its backward) comes as
// plain products, which these kernels take when SkinnyTakes says so.
//
// What is taken: LoraKernelsTake of kernels/lora_products.h (ranks 8, 16 and 24, whole 64-column
// groups), rows of y 16-byte aligned. LoraUp alone takes more, by plain fp32 arithmetic:
// LoraUpKernelsTake.
#ifndef SOUP_KERNELS_CUDA_LORA_H_
#define SOUP_KERNELS_CUDA_LORA_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Errors: cudaErrorInvalidValue for what is not taken. LoraUp: its addend is aligned as y is, and
// LoraAddendFits.
cudaError_t LoraUp(const LoraUpArgs& args, cudaStream_t stream);
cudaError_t LoraBack(const LoraBackArgs& args, cudaStream_t stream);
cudaError_t LoraGrad(const LoraGradArgs& args, cudaStream_t stream);
// LoraUpRopeTaken of kernels/lora_products.h; y 16-byte aligned.
cudaError_t LoraUpRope(const LoraUpRopeArgs& args, cudaStream_t stream);
// LoraNormedGradTaken of kernels/lora_products.h; x, du 16-byte aligned.
cudaError_t LoraNormedGrad(const LoraNormedGradArgs& args, cudaStream_t stream);

// A plain product with a rank among its sizes, of one of three forms: x A^T [M, N = rank]; dx [M,
// N]
// (+)= du A with K = rank; du^T x added to fp32 [M = rank, N].
bool SkinnyTakes(const GemmArgs& args);
cudaError_t SkinnyGemm(const GemmArgs& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_LORA_H_
