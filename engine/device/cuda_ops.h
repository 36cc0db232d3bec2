// The op launchers of the CUDA backend; memory, streams and events are cuda_backend.cc's. Internal
// to engine/device. Not thread-safe.
#ifndef SOUP_ENGINE_DEVICE_CUDA_OPS_H_
#define SOUP_ENGINE_DEVICE_CUDA_OPS_H_

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/dtype.h"
#include "engine/device/backend.h"
#include "engine/device/cuda_attention_tiles.h"
#include "engine/device/cuda_gemms.h"
#include "engine/device/cuda_handles.h"
#include "engine/device/cuda_memory.h"
#include "kernels/cuda/act_type.h"
#include "kernels/cuda/cudnn_attention.h"

namespace soup::engine {

class CudaOps : public Backend {
 public:
  DType activation_type() const override { return act_; }
  absl::Status UseActivations(DType type, void* product_scratch) override;
  void GatherRows(const kernels::GatherRowsArgs& args) override;
  void Widen(const kernels::WidenArgs& args) override;
  void Nf4Dequant(const kernels::Nf4DequantArgs& args) override;
  void RmsNormForward(const kernels::RmsNormForwardArgs& args) override;
  void RmsNormBackward(const kernels::RmsNormBackwardArgs& args) override;
  void HeadNormForward(const kernels::HeadNormForwardArgs& args) override;
  void HeadNormBackward(const kernels::HeadNormBackwardArgs& args) override;
  void AddBias(const kernels::AddBiasArgs& args) override;
  void Rope(const kernels::RopeArgs& args) override;
  void AttentionForward(const kernels::AttentionForwardArgs& args) override;
  void AttentionBackward(const kernels::AttentionBackwardArgs& args,
                         const AttentionScratch& scratch) override;
  void AttentionBackwardTurned(const kernels::AttentionBackwardArgs& args,
                               const AttentionScratch& scratch,
                               const kernels::RopeArgs& turn) override;
  void SwigluForward(const kernels::SwigluForwardArgs& args) override;
  void SwigluBackward(const kernels::SwigluBackwardArgs& args) override;
  void Gemm(const kernels::GemmArgs& args) override;
  void GateUp(const kernels::GateUpArgs& args) override;
  void DownBackward(const kernels::DownBackwardArgs& args) override;
  void AdaptedProduct(const kernels::AdaptedProductArgs& args) override;
  void TurnedProduct(const kernels::TurnedProductArgs& args) override;
  int64_t fused_gate_rows() const override { return fused_gate_rows_; }
  void LoraUp(const kernels::LoraUpArgs& args) override;
  void LoraUpRope(const kernels::LoraUpRopeArgs& args) override;
  void QkvFinish(const kernels::QkvFinishArgs& args) override;
  void LoraBack(const kernels::LoraBackArgs& args) override;
  void LoraGrad(const kernels::LoraGradArgs& args) override;
  void LoraNormedGrad(const kernels::LoraNormedGradArgs& args) override;
  bool chooses_gemms() const override { return gemms_->chooses(); }
  absl::StatusOr<GemmPreparation> PrepareGemms(
      absl::Span<const kernels::GemmArgs> products,
      const std::function<absl::Status()>& make_room) override;
  absl::Status PrepareAttention(absl::string_view library,
                                absl::Span<const AttentionPreparation> sequences) override;
  void Axpy(const kernels::AxpyArgs& args) override;
  void Dropout(const kernels::DropoutArgs& args) override;
  void GatherActRows(const kernels::GatherActRowsArgs& args) override;
  void ScatterActRows(const kernels::ScatterActRowsArgs& args) override;
  void LossSlice(const kernels::LossSliceArgs& args) override;
  void LossTargetRows(const kernels::LossTargetRowsArgs& args) override;
  void LossFinish(const kernels::LossFinishArgs& args) override;
  void Route(const kernels::RouteArgs& args) override;
  void RouteBackward(const kernels::RouteBackwardArgs& args) override;
  void ListExperts(const kernels::ListExpertsArgs& args) override;
  void GatherEntries(const kernels::GatherEntriesArgs& args) override;
  void ScatterEntries(const kernels::ScatterEntriesArgs& args) override;
  void EntryGrad(const kernels::EntryGradArgs& args) override;
  void AddF32(const kernels::AddF32Args& args) override;
  void SumSquares(const kernels::SumSquaresArgs& args) override;
  void AdamW(const kernels::AdamWArgs& args) override;
  void NarrowToBf16(const float* src, void* dst, int64_t n) override;

  // "cudnn-9.14.0+sm_90a-1", as in MachineProfile::attention_library: what has a part in the
  // sequences that a library's kernels or ours for this device take. Empty: neither is here.
  std::string AttentionLibrary() const;

 protected:
  // What the launchers work with; filled by the backend at its start.
  CudaStream compute_;
  kernels::cuda::AttentionDevice attention_;
  CudaAttentionTiles tiles_;
  std::unique_ptr<kernels::cuda::CudnnAttention> cudnn_;  // null: not on this machine
  std::unique_ptr<CudaGemms> gemms_;
  int64_t fused_gate_rows_ = 0;
  double* partial_sums_ = nullptr;  // device, kSumSquaresPartials
  CudaHostRegistrations registrations_;
  bool reads_pinned_ = false;  // the device reads pinned host memory by its host address
  absl::Status status_;        // the first error; it sticks

  absl::Status Keep(absl::Status status) {
    if (status_.ok() && !status.ok()) status_ = status;
    return status;
  }
  // Before the first plans of an attention library are made.
  virtual void MakeRoomForLibraryCode() = 0;
  absl::Status Check(cudaError_t error, absl::string_view what) {
    return error == cudaSuccess ? absl::OkStatus() : Keep(CudaStatus(error, what));
  }
  // The error sticks: status() tells it.
  void Told(cudaError_t error, absl::string_view what) { Check(error, what).IgnoreError(); }

 private:
  template <typename Args>
  void Products(const Args& args);
  bool f32() const { return act_ == DType::kF32; }
  kernels::cuda::ActType act() const {
    return f32() ? kernels::cuda::ActType::kF32 : kernels::cuda::ActType::kBf16;
  }
  void GatherOnHost(const kernels::GatherRowsArgs& args);
  // `turn` null: no rope.
  void RunAttentionBackward(const kernels::AttentionBackwardArgs& args,
                            const AttentionScratch& scratch, const kernels::RopeArgs* turn);
  void ByLibrary(cudaError_t error, absl::string_view what);
  absl::Status PrepareLibrary(absl::string_view library, const AttentionPreparation& preparation,
                              int64_t groups, int64_t* workspace);

  DType act_ = DType::kBF16;
  void* product_scratch_ = nullptr;  // kProductScratchBytes, of the pass
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_OPS_H_
