#include "engine/device/gemm_recorder.h"

#include "absl/strings/str_cat.h"
#include "kernels/lora_products.h"

namespace soup::engine {
namespace {
// Where device memory without storage "lies": never read or written.
constexpr uintptr_t kBase = uintptr_t{1} << 40;
}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> GemmRecorder::CreateArena(int64_t bytes) {
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("an arena of ", bytes, " bytes"));
  return std::make_unique<Arena>(reinterpret_cast<std::byte*>(kBase), bytes, [] {});
}

void GemmRecorder::Gemm(const kernels::GemmArgs& a) {
  const int64_t flags = a.transpose_a | a.transpose_b << 1 | (a.beta != 0) << 2;
  const int64_t types = static_cast<int64_t>(a.a_type) | static_cast<int64_t>(a.b_type) << 8 |
                        static_cast<int64_t>(a.c_type) << 16;
  if (known_.insert({a.M, a.N, a.K, a.lda, a.ldb, a.ldc, flags, types}).second) {
    products_.push_back(a);
  }
}

void GemmRecorder::GateUp(const kernels::GateUpArgs& a) {
  if (!gates_taken(a.T, a.H, a.I)) Backend::GateUp(a);
}
void GemmRecorder::DownBackward(const kernels::DownBackwardArgs& a) {
  if (!gates_taken(a.T, a.H, a.I)) Backend::DownBackward(a);
}
void GemmRecorder::AdaptedProduct(const kernels::AdaptedProductArgs& a) {
  if (act_ == DType::kBF16 && kernels::AdaptedProductTaken(fused_gate_rows_, a.M, a.N, a.K, a.R)) {
    return;
  }
  Backend::AdaptedProduct(a);
}

void GemmRecorder::TurnedProduct(const kernels::TurnedProductArgs& a) {
  if (act_ == DType::kBF16 && kernels::TurnedProductTaken(fused_gate_rows_, a)) return;
  Backend::TurnedProduct(a);
}

template <typename Args>
void GemmRecorder::Products(const Args& args) {
  if (has_lora_kernels() && kernels::LoraKernelsTake(args.linears, args.r, args.ldy)) return;
  kernels::ForEachProduct(args, DTypeBytes(act_), [this](const kernels::GemmArgs& g) { Gemm(g); });
}
void GemmRecorder::LoraUp(const kernels::LoraUpArgs& args) {
  if (has_lora_kernels() && kernels::LoraUpKernelsTake(args.linears, args.r, args.ldy)) return;
  Products(args);
}
void GemmRecorder::LoraUpRope(const kernels::LoraUpRopeArgs& args) {
  if (has_lora_kernels() && kernels::LoraUpRopeTaken(args)) return;
  Backend::LoraUpRope(args);
}
void GemmRecorder::QkvFinish(const kernels::QkvFinishArgs& args) {
  // In bf16 one kernel has it whole, on the one backend that has bf16.
  if (act_ == DType::kF32) Backend::QkvFinish(args);
}
void GemmRecorder::LoraBack(const kernels::LoraBackArgs& args) { Products(args); }
void GemmRecorder::LoraGrad(const kernels::LoraGradArgs& args) { Products(args); }
void GemmRecorder::LoraNormedGrad(const kernels::LoraNormedGradArgs& args) {
  if (has_lora_kernels() && kernels::LoraNormedGradTaken(args)) return;
  Backend::LoraNormedGrad(args);
}

}  // namespace soup::engine
