// Matrix products on CUDA through cuBLASLt: bf16 operands, fp32 accumulation, C bf16 or fp32.
// Contract in kernels/ops.h.
//
// Bits depend on the algorithm, so it is part of the numeric plan: one is chosen for each shape by
// timing on random data before a run (Tune), exported as text into the machine profile, and
// imported by later processes. Gemm never chooses: a shape that is not in the table is an error,
// unless `Fallback::kHeuristic` was asked for (tests, tools), which takes the library's first.
// Split-K algorithms that reduce through atomics are never taken; the others are bitwise
// repeatable.
//
// Not thread-safe: one library a stream. The workspace is the caller's (from the arena) and is used
// in stream order.
#ifndef SOUP_KERNELS_CUDA_GEMM_H_
#define SOUP_KERNELS_CUDA_GEMM_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

class GemmLibrary {
 public:
  enum class Fallback { kError, kHeuristic };

  static cudaError_t Create(void* workspace, size_t workspace_bytes, Fallback fallback,
                            std::unique_ptr<GemmLibrary>* out);
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  // Errors: cudaErrorNotReady (shape not tuned), cudaErrorNotSupported (fp32 operands A or B, beta
  // neither 0 nor 1).
  cudaError_t Gemm(const GemmArgs& args, cudaStream_t stream);

  // Times up to `candidates` algorithms on the pointers in `args` (random data; C is overwritten)
  // and keeps the fastest. Does nothing for a shape already in the table. Synchronises.
  cudaError_t Tune(const GemmArgs& args, int candidates, int repeats, cudaStream_t stream);

  // One line a shape: key, then the algorithm as hex. Import ignores lines of another library
  // version and counts the ones it took.
  std::string Export() const;
  int Import(const std::string& text);
  // "13.0.2": part of every key.
  std::string LibraryVersion() const;

 private:
  struct Rep;
  explicit GemmLibrary(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GEMM_H_
