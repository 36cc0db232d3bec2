#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/cuda/gemm_rep.h"
#include "kernels/cuda/gemm_split.h"

namespace soup::kernels::cuda {
namespace {

std::string Hex(const void* data, size_t bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t byte = static_cast<const uint8_t*>(data)[i];
    text.push_back(digits[byte >> 4]);
    text.push_back(digits[byte & 15]);
  }
  return text;
}

bool FromHex(const std::string& text, void* data, size_t bytes) {
  if (text.size() != 2 * bytes) return false;
  for (size_t i = 0; i < bytes; ++i) {
    unsigned byte = 0;
    if (std::sscanf(text.c_str() + 2 * i, "%2x", &byte) != 1) return false;
    static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(byte);
  }
  return true;
}

}  // namespace

std::string GemmKeyText(const GemmArgs& args) {
  const GemmKey k(args);
  char text[192];
  std::snprintf(text, sizeof text, "%c%c m%lld n%lld k%lld a%lld b%lld c%lld %s %s",
                k.transpose_a ? 't' : 'n', k.transpose_b ? 't' : 'n', static_cast<long long>(k.M),
                static_cast<long long>(k.N), static_cast<long long>(k.K),
                static_cast<long long>(k.lda), static_cast<long long>(k.ldb),
                static_cast<long long>(k.ldc), k.f32 ? "f32" : "bf16", k.add ? "add" : "set");
  return text;
}

GemmProblem::GemmProblem(const GemmArgs& a) {
  const cudaDataType_t c_type = a.c_type == Operand::kF32 ? CUDA_R_32F : CUDA_R_16BF;
  const cublasOperation_t first = a.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = a.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  Keep(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Keep(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                      sizeof first));
  Keep(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                      sizeof second));
  const int64_t b_rows = a.transpose_b ? a.K : a.N, b_cols = a.transpose_b ? a.N : a.K;
  const int64_t a_rows = a.transpose_a ? a.M : a.K, a_cols = a.transpose_a ? a.K : a.M;
  Keep(cublasLtMatrixLayoutCreate(&first_, CUDA_R_16BF, static_cast<uint64_t>(b_rows),
                                  static_cast<uint64_t>(b_cols), a.ldb));
  Keep(cublasLtMatrixLayoutCreate(&second_, CUDA_R_16BF, static_cast<uint64_t>(a_rows),
                                  static_cast<uint64_t>(a_cols), a.lda));
  Keep(cublasLtMatrixLayoutCreate(&out_, c_type, static_cast<uint64_t>(a.N),
                                  static_cast<uint64_t>(a.M), a.ldc));
}

GemmProblem::~GemmProblem() {
  if (out_ != nullptr) cublasLtMatrixLayoutDestroy(out_);
  if (second_ != nullptr) cublasLtMatrixLayoutDestroy(second_);
  if (first_ != nullptr) cublasLtMatrixLayoutDestroy(first_);
  if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
}

cublasStatus_t GemmLibrary::Rep::Run(const GemmProblem& problem,
                                     const cublasLtMatmulAlgo_t& algorithm, const GemmArgs& a,
                                     cudaStream_t stream) const {
  const void* addend = a.addend == nullptr ? a.C : a.addend;
  return cublasLtMatmul(handle, problem.operation(), &a.alpha, a.B, problem.first(), a.A,
                        problem.second(), &a.beta, addend, problem.out(), a.C, problem.out(),
                        &algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t GemmLibrary::Rep::Candidates(
    const GemmProblem& p, int want, std::vector<cublasLtMatmulHeuristicResult_t>* out) const {
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  // Not in place: that one reduces through atomics, in the order of arrival.
  const uint32_t reduction =
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace_bytes, sizeof workspace_bytes);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                       &reduction, sizeof reduction);
  // The library assumes 256 bytes; column ranges of a buffer and tensors of a flat adapter promise
  // 16 only.
  const uint32_t alignment = 16;
  for (const cublasLtMatmulPreferenceAttributes_t which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment);
  }
  out->resize(static_cast<size_t>(std::min(want, kMostGemmCandidates)));
  int found = 0;
  status = cublasLtMatmulAlgoGetHeuristic(handle, p.operation(), p.first(), p.second(), p.out(),
                                          p.out(), preference, static_cast<int>(out->size()),
                                          out->data(), &found);
  out->resize(static_cast<size_t>(std::max(found, 0)));
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_SUCCESS && out->empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
  return status;
}

GemmLibrary::GemmLibrary(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
GemmLibrary::~GemmLibrary() = default;

cudaError_t GemmLibrary::Create(void* workspace, size_t workspace_bytes, Fallback fallback,
                                std::unique_ptr<GemmLibrary>* out) {
  auto rep = std::make_unique<Rep>();
  const cublasStatus_t status = cublasLtCreate(&rep->handle);
  if (status != CUBLAS_STATUS_SUCCESS) return FromCublas(status);
  rep->workspace = workspace;
  rep->workspace_bytes = workspace_bytes;
  rep->fallback = fallback;
  out->reset(new GemmLibrary(std::move(rep)));
  return cudaSuccess;
}

cudaError_t GemmLibrary::Gemm(const GemmArgs& args, cudaStream_t stream) {
  if (!GemmSupported(args)) return cudaErrorNotSupported;
  if (args.M == 0 || args.N == 0) return cudaSuccess;
  if (args.K == 0) {
    const size_t element = args.c_type == Operand::kF32 ? 4 : 2;
    const size_t pitch = static_cast<size_t>(args.ldc) * element;
    const size_t width = static_cast<size_t>(args.N) * element;
    if (args.beta == 0.f) {
      return cudaMemset2DAsync(args.C, pitch, 0, width, static_cast<size_t>(args.M), stream);
    }
    if (args.addend == nullptr || args.addend == args.C) return cudaSuccess;
    return cudaMemcpy2DAsync(args.C, pitch, args.addend, pitch, width, static_cast<size_t>(args.M),
                             cudaMemcpyDeviceToDevice, stream);
  }
  const GemmKey key(args);
  auto chosen = rep_->table.find(key);
  if (chosen == rep_->table.end()) {
    if (rep_->fallback == Fallback::kError) return cudaErrorNotReady;
    ChosenGemm first;
    first.problem = std::make_unique<GemmProblem>(args);
    if (first.problem->status() != CUBLAS_STATUS_SUCCESS)
      return FromCublas(first.problem->status());
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    const cublasStatus_t status = rep_->Candidates(*first.problem, 1, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return FromCublas(status);
    first.algorithm = found.front().algo;
    chosen = rep_->table.emplace(key, std::move(first)).first;
  }
  return FromCublas(rep_->Run(*chosen->second.problem, chosen->second.algorithm, args, stream));
}

cudaError_t GemmLibrary::GemmF32(const GemmArgs& args, void* scratch, int64_t scratch_bytes,
                                 cudaStream_t stream) {
  if (args.M == 0 || args.N == 0) return cudaSuccess;
  if (args.K == 0) {  // nothing to split
    GemmArgs nothing = args;
    nothing.c_type = Operand::kF32;
    return Gemm(nothing, stream);
  }
  return ForEachSplitChunk(args, scratch, scratch_bytes, [&](const SplitChunk& chunk) {
    cudaError_t error = SplitOperands(chunk, stream);
    for (int i = 0; i < chunk.count && error == cudaSuccess; ++i) {
      error = Gemm(chunk.products[i], stream);
    }
    return error;
  });
}

std::string GemmLibrary::Algorithm(const GemmArgs& args) const {
  const auto it = rep_->table.find(GemmKey(args));
  if (it == rep_->table.end()) return "";
  return Hex(&it->second.algorithm, sizeof it->second.algorithm);
}

cudaError_t GemmLibrary::Adopt(const GemmArgs& args, const std::string& algorithm) {
  if (!GemmSupported(args)) return cudaErrorNotSupported;
  ChosenGemm chosen;
  if (!FromHex(algorithm, &chosen.algorithm, sizeof chosen.algorithm)) return cudaErrorInvalidValue;
  chosen.problem = std::make_unique<GemmProblem>(args);
  const GemmProblem& p = *chosen.problem;
  if (p.status() != CUBLAS_STATUS_SUCCESS) return FromCublas(p.status());
  cublasLtMatmulHeuristicResult_t checked;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(rep_->handle, p.operation(), p.first(), p.second(), p.out(), p.out(),
                              &chosen.algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > rep_->workspace_bytes) {
    return cudaErrorNotSupported;
  }
  rep_->table.insert_or_assign(GemmKey(args), std::move(chosen));
  return cudaSuccess;
}

int64_t GemmLibrary::shapes() const { return static_cast<int64_t>(rep_->table.size()); }

std::string GemmLibrary::LibraryVersion() {
  const size_t v = cublasLtGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

}  // namespace soup::kernels::cuda
