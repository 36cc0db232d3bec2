#include "kernels/cuda/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

namespace soup::kernels::cuda {
namespace {

constexpr int kMaxCandidates = 32;

cudaError_t FromCublas(cublasStatus_t status) {
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

// Everything of a product that an algorithm depends on.
std::string KeyOf(const GemmArgs& a) {
  char text[160];
  std::snprintf(text, sizeof text, "%c%c m%lld n%lld k%lld a%lld b%lld c%lld %s %s",
                a.transpose_a ? 't' : 'n', a.transpose_b ? 't' : 'n', static_cast<long long>(a.M),
                static_cast<long long>(a.N), static_cast<long long>(a.K),
                static_cast<long long>(a.lda), static_cast<long long>(a.ldb),
                static_cast<long long>(a.ldc), a.c_type == Operand::kF32 ? "f32" : "bf16",
                a.beta != 0.f ? "add" : "set");
  return text;
}

// Owns the four descriptors of one product. cuBLASLt is column-major: C^T = op(B)^T op(A)^T, so A
// and B change places.
class Problem {
 public:
  explicit Problem(const GemmArgs& a) {
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
  ~Problem() {
    if (out_ != nullptr) cublasLtMatrixLayoutDestroy(out_);
    if (second_ != nullptr) cublasLtMatrixLayoutDestroy(second_);
    if (first_ != nullptr) cublasLtMatrixLayoutDestroy(first_);
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

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

struct Chosen {
  std::unique_ptr<Problem> problem;
  cublasLtMatmulAlgo_t algorithm;
};

bool Supported(const GemmArgs& a) {
  return a.a_type != Operand::kF32 && a.b_type != Operand::kF32 && (a.beta == 0.f || a.beta == 1.f);
}

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

struct GemmLibrary::Rep {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  Fallback fallback = Fallback::kError;
  std::map<std::string, Chosen> table;
  std::map<std::string, std::string> imported;  // key -> hex, turned into a Chosen at first use

  ~Rep() {
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  cublasStatus_t Run(const Chosen& chosen, const GemmArgs& a, cudaStream_t stream) {
    return cublasLtMatmul(handle, chosen.problem->operation(), &a.alpha, a.B,
                          chosen.problem->first(), a.A, chosen.problem->second(), &a.beta, a.C,
                          chosen.problem->out(), a.C, chosen.problem->out(), &chosen.algorithm,
                          workspace, workspace_bytes, stream);
  }

  cublasStatus_t Candidates(const Problem& p, int want,
                            std::vector<cublasLtMatmulHeuristicResult_t>* out) {
    cublasLtMatmulPreference_t preference = nullptr;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    // In place and by output type only: no reduction through atomics in the workspace's order of
    // arrival.
    const uint32_t reduction =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace_bytes, sizeof workspace_bytes);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &reduction, sizeof reduction);
    // The library assumes 256 bytes; column ranges of a buffer and tensors of a flat adapter
    // promise 16 only.
    const uint32_t alignment = 16;
    for (const cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment);
    }
    out->resize(static_cast<size_t>(std::min(want, kMaxCandidates)));
    int found = 0;
    status = cublasLtMatmulAlgoGetHeuristic(handle, p.operation(), p.first(), p.second(), p.out(),
                                            p.out(), preference, static_cast<int>(out->size()),
                                            out->data(), &found);
    out->resize(static_cast<size_t>(std::max(found, 0)));
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && out->empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
  }

  // The table's entry, an imported one made ready, or null.
  const Chosen* Find(const std::string& key, const GemmArgs& a) {
    if (const auto it = table.find(key); it != table.end()) return &it->second;
    const auto text = imported.find(key);
    if (text == imported.end()) return nullptr;
    Chosen chosen;
    chosen.problem = std::make_unique<Problem>(a);
    cublasLtMatmulHeuristicResult_t checked;
    const bool good = FromHex(text->second, &chosen.algorithm, sizeof chosen.algorithm) &&
                      chosen.problem->status() == CUBLAS_STATUS_SUCCESS &&
                      cublasLtMatmulAlgoCheck(
                          handle, chosen.problem->operation(), chosen.problem->first(),
                          chosen.problem->second(), chosen.problem->out(), chosen.problem->out(),
                          &chosen.algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
                      checked.workspaceSize <= workspace_bytes;
    imported.erase(text);
    if (!good) return nullptr;
    return &table.emplace(key, std::move(chosen)).first->second;
  }
};

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
  if (!Supported(args)) return cudaErrorNotSupported;
  if (args.M == 0 || args.N == 0) return cudaSuccess;
  if (args.K == 0) {
    if (args.beta != 0.f) return cudaSuccess;
    const size_t element = args.c_type == Operand::kF32 ? 4 : 2;
    return cudaMemset2DAsync(args.C, static_cast<size_t>(args.ldc) * element, 0,
                             static_cast<size_t>(args.N) * element, static_cast<size_t>(args.M),
                             stream);
  }
  const std::string key = KeyOf(args);
  const Chosen* chosen = rep_->Find(key, args);
  if (chosen == nullptr) {
    if (rep_->fallback == Fallback::kError) return cudaErrorNotReady;
    Chosen first;
    first.problem = std::make_unique<Problem>(args);
    if (first.problem->status() != CUBLAS_STATUS_SUCCESS)
      return FromCublas(first.problem->status());
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    const cublasStatus_t status = rep_->Candidates(*first.problem, 1, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return FromCublas(status);
    first.algorithm = found.front().algo;
    chosen = &rep_->table.emplace(key, std::move(first)).first->second;
  }
  return FromCublas(rep_->Run(*chosen, args, stream));
}

cudaError_t GemmLibrary::Tune(const GemmArgs& args, int candidates, int repeats,
                              cudaStream_t stream) {
  if (!Supported(args)) return cudaErrorNotSupported;
  if (args.M == 0 || args.N == 0 || args.K == 0) return cudaSuccess;
  const std::string key = KeyOf(args);
  if (rep_->Find(key, args) != nullptr) return cudaSuccess;
  Chosen best;
  best.problem = std::make_unique<Problem>(args);
  if (best.problem->status() != CUBLAS_STATUS_SUCCESS) return FromCublas(best.problem->status());
  std::vector<cublasLtMatmulHeuristicResult_t> found;
  const cublasStatus_t status = rep_->Candidates(*best.problem, candidates, &found);
  if (status != CUBLAS_STATUS_SUCCESS) return FromCublas(status);
  cudaEvent_t begin, end;
  cudaError_t error = cudaEventCreate(&begin);
  if (error != cudaSuccess) return error;
  error = cudaEventCreate(&end);
  float best_ms = -1.f;
  for (const auto& candidate : found) {
    if (error != cudaSuccess) break;
    Chosen trial;
    trial.problem = std::move(best.problem);
    trial.algorithm = candidate.algo;
    cublasStatus_t ran = rep_->Run(trial, args, stream);  // warm-up
    cudaEventRecord(begin, stream);
    for (int r = 0; r < repeats && ran == CUBLAS_STATUS_SUCCESS; ++r)
      ran = rep_->Run(trial, args, stream);
    cudaEventRecord(end, stream);
    error = cudaEventSynchronize(end);
    float ms = 0.f;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, begin, end);
    best.problem = std::move(trial.problem);
    if (ran == CUBLAS_STATUS_SUCCESS && error == cudaSuccess && (best_ms < 0.f || ms < best_ms)) {
      best_ms = ms;
      best.algorithm = candidate.algo;
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  if (error != cudaSuccess) return error;
  if (best_ms < 0.f) return cudaErrorNotSupported;
  rep_->table.emplace(key, std::move(best));
  return cudaSuccess;
}

std::string GemmLibrary::LibraryVersion() const {
  const size_t v = cublasLtGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

std::string GemmLibrary::Export() const {
  std::string text;
  const std::string version = LibraryVersion();
  for (const auto& [key, chosen] : rep_->table) {
    text += version + "|" + key + "|" + Hex(&chosen.algorithm, sizeof chosen.algorithm) + "\n";
  }
  return text;
}

int GemmLibrary::Import(const std::string& text) {
  std::istringstream lines(text);
  const std::string version = LibraryVersion();
  int taken = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find('|'), second = line.find('|', first + 1);
    if (second == std::string::npos || line.substr(0, first) != version) continue;
    rep_->imported[line.substr(first + 1, second - first - 1)] = line.substr(second + 1);
    ++taken;
  }
  return taken;
}

}  // namespace soup::kernels::cuda
