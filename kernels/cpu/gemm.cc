#include "kernels/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

namespace soup::kernels::cpu {
namespace {

blasint Dim(int64_t value) {
  SOUP_KERNEL_CHECK(value >= 0 && value <= std::numeric_limits<blasint>::max());
  return static_cast<blasint>(value);
}

}  // namespace

void Gemm(const GemmArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.beta == 0.0f || args.beta == 1.0f);
  SOUP_KERNEL_CHECK(args.addend == nullptr || args.beta == 1.0f);
  if (args.M == 0 || args.N == 0) return;
  if (args.addend != nullptr && args.addend != args.C) {
    const float* from = static_cast<const float*>(args.addend);
    float* to = static_cast<float*>(args.C);
    for (int64_t i = 0; i < args.M; ++i) {
      std::copy_n(from + i * args.ldc, args.N, to + i * args.ldc);
    }
  }
  // The count is the process's: another context may have set its own since.
  if (openblas_get_num_threads() != ctx.blas_threads()) {
    openblas_set_num_threads(ctx.blas_threads());
  }
  cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, Dim(args.M), Dim(args.N), Dim(args.K),
              args.alpha, static_cast<const float*>(args.A), Dim(args.lda),
              static_cast<const float*>(args.B), Dim(args.ldb), args.beta,
              static_cast<float*>(args.C), Dim(args.ldc));
}

}  // namespace soup::kernels::cpu
