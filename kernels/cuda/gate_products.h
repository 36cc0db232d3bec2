// The gated MLP's products with the gate in their last stage, on sm_90a: gate and up with f(gate) *
// up, and the down projection's input gradient with the gate's backward. What they save is the way
// of [T, 2 I] and [T, I] to memory and back. Contract in kernels/ops.h. Bitwise repeatable; what
// they write has the same bits whether or not the rest is asked for.
#ifndef SOUP_KERNELS_CUDA_GATE_PRODUCTS_H_
#define SOUP_KERNELS_CUDA_GATE_PRODUCTS_H_

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// The fewest rows that these kernels are faster with than cuBLASLt and a kernel behind it (a sketch
// of them on an H200, 8B shapes: 6 % at 1,024 rows, 4 % slower at 512).
inline constexpr int64_t kFusedGateRows = 1024;

// Whether this build and the current device have them.
bool HasGateProducts();

// Sets a part of the L2 cache aside for the operand that one wave of tiles after another reads
// (docs/BENCHMARKS.md). Once a process; without it, or where it fails, everything is as it is, only
// slower. Decides no bits.
cudaError_t SetCacheAside();

// Of bf16 activations, from one thread of a process with one device. H and I multiples of 8;
// pointers 16-byte aligned. Errors: cudaErrorInvalidValue for what is not so, cudaErrorNotSupported
// (another device or build).
cudaError_t GateUp(const GateUpArgs& args, cudaStream_t stream);
cudaError_t DownBackward(const DownBackwardArgs& args, cudaStream_t stream);

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GATE_PRODUCTS_H_
