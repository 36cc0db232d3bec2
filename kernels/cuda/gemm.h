// Matrix products on CUDA through cuBLASLt: bf16 operands, fp32 accumulation, C bf16 or fp32.
// Contract in kernels/ops.h.
//
// Bits depend on the algorithm, so it is part of the numeric plan: one is chosen for each shape by
// timing on random data before a run (Tune) and kept by the caller as text; later processes Adopt
// it. Gemm never chooses: a shape without an algorithm is an error, unless `Fallback::kHeuristic`
// was asked for (tests, tools), which takes the library's first. Split-K algorithms that reduce
// through atomics are never taken; the others are bitwise repeatable, and Tune makes sure.
//
// Not thread-safe: one library a stream. The workspace is the caller's and is used in stream order.
#ifndef SOUP_KERNELS_CUDA_GEMM_H_
#define SOUP_KERNELS_CUDA_GEMM_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// Everything of a product that its algorithm depends on, as text: equal text, equal algorithm.
std::string GemmKeyText(const GemmArgs& args);

class GemmLibrary {
 public:
  enum class Fallback { kError, kHeuristic };

  static cudaError_t Create(void* workspace, size_t workspace_bytes, Fallback fallback,
                            std::unique_ptr<GemmLibrary>* out);
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  // Errors: cudaErrorNotReady (no algorithm for this shape), cudaErrorNotSupported (fp32 operands A
  // or B, beta neither 0 nor 1).
  cudaError_t Gemm(const GemmArgs& args, cudaStream_t stream);

  // A product whose activations are fp32: by the library's products of gemm_split.h, with
  // `scratch` for their operands, used in stream order. Errors: as Gemm, and cudaErrorNotSupported
  // for a form that gemm_split.h does not take.
  cudaError_t GemmF32(const GemmArgs& args, void* scratch, int64_t scratch_bytes,
                      cudaStream_t stream);

  // Times up to `candidates` algorithms in turns on the pointers in `args` (A and B random data; C
  // is overwritten) and keeps the fastest; of those within one percent of it the one that the
  // library names first. One that gives other bits on a second run is passed over. Does nothing for
  // a shape that has an algorithm. Waits for the stream. Errors: cudaErrorNotSupported (no
  // algorithm runs).
  cudaError_t Tune(const GemmArgs& args, int candidates, cudaStream_t stream);

  // The algorithm of a shape as text; empty when it has none.
  std::string Algorithm(const GemmArgs& args) const;
  // Gives a shape the algorithm that an earlier process has chosen, in place of any other. Errors:
  // cudaErrorInvalidValue (not such a text), cudaErrorNotSupported (this library refuses it).
  cudaError_t Adopt(const GemmArgs& args, const std::string& algorithm);

  int64_t shapes() const;  // that have an algorithm
  // "13.0.2"
  static std::string LibraryVersion();

 private:
  struct Rep;
  explicit GemmLibrary(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GEMM_H_
