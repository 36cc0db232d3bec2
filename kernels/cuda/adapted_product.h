// A linear's product with its adapters, and a residual, and the gradient of its input with theirs,
// on sm_90a. Adapters are further slices of K: u beside x, b beside W, so y is made once where
// others write it and read it again. Contract in kernels/ops.h: product and adapters are rounded
// once, then the sum with the addend. Bitwise repeatable.
#ifndef SOUP_KERNELS_CUDA_ADAPTED_PRODUCT_H_
#define SOUP_KERNELS_CUDA_ADAPTED_PRODUCT_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Where HasGateProducts(). Of bf16 activations, from one thread of a process with one device. N, K
// and R multiples of 8; pointers 16-byte aligned; y is neither x nor u, and may be the addend.
// Errors: cudaErrorInvalidValue for what is not so, cudaErrorNotSupported (another device or
// build).
cudaError_t AdaptedProduct(const AdaptedProductArgs& args, cudaStream_t stream);

// q, k, v with their adapters, turned. What kernels::TurnedProductTaken takes; pointers 16-byte
// aligned. Errors as above.
cudaError_t TurnedProduct(const TurnedProductArgs& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_ADAPTED_PRODUCT_H_
