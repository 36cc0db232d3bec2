// The inside of GemmLibrary, shared by gemm.cc (products) and gemm_tune.cc (choice). Internal to
// kernels/cuda.
#ifndef SOUP_KERNELS_CUDA_GEMM_REP_H_
#define SOUP_KERNELS_CUDA_GEMM_REP_H_

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/gemm.h"

namespace soup::kernels::cuda {

inline constexpr int kMostGemmCandidates = 32;

inline cudaError_t FromCublas(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return cudaSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNotSupported;
    default:
      return cudaErrorUnknown;
  }
}

// Everything of a product that its algorithm depends on. Not whether the addend is C itself: that
// follows from the placement, which must not decide bits.
struct GemmKey {
  int64_t M, N, K, lda, ldb, ldc;
  bool transpose_a, transpose_b, f32, add;

  explicit GemmKey(const GemmArgs& a)
      : M(a.M),
        N(a.N),
        K(a.K),
        lda(a.lda),
        ldb(a.ldb),
        ldc(a.ldc),
        transpose_a(a.transpose_a),
        transpose_b(a.transpose_b),
        f32(a.c_type == Operand::kF32),
        add(a.beta != 0.f) {}
  bool operator==(const GemmKey& o) const {
    return M == o.M && N == o.N && K == o.K && lda == o.lda && ldb == o.ldb && ldc == o.ldc &&
           transpose_a == o.transpose_a && transpose_b == o.transpose_b && f32 == o.f32 &&
           add == o.add;
  }
};
struct GemmKeyHash {
  size_t operator()(const GemmKey& k) const {
    uint64_t h = 0;
    const uint64_t flags =
        static_cast<uint64_t>(k.transpose_a) | k.transpose_b << 1 | k.f32 << 2 | k.add << 3;
    for (const uint64_t v : {static_cast<uint64_t>(k.M), static_cast<uint64_t>(k.N),
                             static_cast<uint64_t>(k.K), static_cast<uint64_t>(k.lda),
                             static_cast<uint64_t>(k.ldb), static_cast<uint64_t>(k.ldc), flags}) {
      h = (h ^ v) * 0x9e3779b97f4a7c15ull;
      h ^= h >> 29;
    }
    return h;
  }
};

// Owns the four descriptors of one product. cuBLASLt is column-major: C^T = op(B)^T op(A)^T, so A
// and B change places.
class GemmProblem {
 public:
  explicit GemmProblem(const GemmArgs& args);
  ~GemmProblem();
  GemmProblem(const GemmProblem&) = delete;
  GemmProblem& operator=(const GemmProblem&) = delete;

  cublasStatus_t status() const { return status_; }
  cublasLtMatmulDesc_t operation() const { return operation_; }
  cublasLtMatrixLayout_t first() const { return first_; }
  cublasLtMatrixLayout_t second() const { return second_; }
  cublasLtMatrixLayout_t out() const { return out_; }

 private:
  void Keep(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = status;
  }
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, out_ = nullptr;
};

struct ChosenGemm {
  std::unique_ptr<GemmProblem> problem;
  cublasLtMatmulAlgo_t algorithm;
};

inline bool GemmSupported(const GemmArgs& a) {
  return a.a_type != Operand::kF32 && a.b_type != Operand::kF32 &&
         (a.beta == 0.f || a.beta == 1.f) && (a.addend == nullptr || a.beta == 1.f);
}

struct GemmLibrary::Rep {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  Fallback fallback = Fallback::kError;
  std::unordered_map<GemmKey, ChosenGemm, GemmKeyHash> table;

  ~Rep() {
    if (handle != nullptr) cublasLtDestroy(handle);
  }
  cublasStatus_t Run(const GemmProblem& problem, const cublasLtMatmulAlgo_t& algorithm,
                     const GemmArgs& args, cudaStream_t stream) const;
  // The library's choices, best first by its own estimate; at least one unless the status says so.
  cublasStatus_t Candidates(const GemmProblem& problem, int want,
                            std::vector<cublasLtMatmulHeuristicResult_t>* out) const;
};

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_GEMM_REP_H_
