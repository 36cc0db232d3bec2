// A backend that runs nothing and notes which matrix products it is asked for: a pass driven on it
// tells the products of that pass, by the code that will launch them. Device memory is addresses
// without storage; copies and events are done at once. Not thread-safe.
#ifndef SOUP_ENGINE_DEVICE_GEMM_RECORDER_H_
#define SOUP_ENGINE_DEVICE_GEMM_RECORDER_H_

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/device/backend.h"

namespace soup::engine {

class GemmRecorder final : public Backend {
 public:
  // Looks like `model`: its name and its present types.
  explicit GemmRecorder(const Backend& model)
      : name_(model.name()),
        act_(model.activation_type()),
        wt_(model.weight_type()),
        fused_gate_rows_(model.fused_gate_rows()) {}

  // Each different product once, in the order of its first launch. Pointers are not to be read.
  const std::vector<kernels::GemmArgs>& products() const { return products_; }

  const char* name() const override { return name_.c_str(); }
  DType activation_type() const override { return act_; }
  DType weight_type() const override { return wt_; }
  absl::Status UseActivations(DType type, void*) override {
    act_ = type;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> CreateHostArena(int64_t bytes) override {
    return CreateArena(bytes);
  }
  void RegisterHostMemory(const void*, int64_t) override {}
  void UnregisterHostMemory() override {}
  StreamView compute_stream() override { return {StreamKind::kCompute, nullptr}; }
  StreamView copy_stream() override { return {StreamKind::kCopy, nullptr}; }
  StreamView offload_stream() override { return {StreamKind::kOffload, nullptr}; }
  Event MakeEvent() override { return Event(std::make_shared<EventRep>()); }
  Event MakeTimedEvent() override { return MakeEvent(); }
  absl::StatusOr<double> SecondsBetween(const Event&, const Event&) override { return 0.0; }
  absl::Status Record(Event&, StreamView) override { return absl::OkStatus(); }
  absl::Status Wait(StreamView, const Event&) override { return absl::OkStatus(); }
  absl::Status HostWait(const Event&, absl::Duration) override { return absl::OkStatus(); }
  absl::Status Synchronize(absl::Duration) override { return absl::OkStatus(); }
  absl::Status status() const override { return absl::OkStatus(); }
  BackendCounters counters() const override { return {}; }
  absl::Status CopyToDeviceAsync(void*, const void*, int64_t, StreamView) override {
    return absl::OkStatus();
  }
  absl::Status CopyToHostAsync(void*, const void*, int64_t) override { return absl::OkStatus(); }
  absl::Status OffloadAsync(void*, const void*, int64_t) override { return absl::OkStatus(); }
  void CopyOnDevice(void*, const void*, int64_t) override {}
  void FillZero(void*, int64_t) override {}
  void GatherRows(const kernels::GatherRowsArgs&) override {}
  void Widen(const kernels::WidenArgs&) override {}
  void Nf4Dequant(const kernels::Nf4DequantArgs&) override {}
  void RmsNormForward(const kernels::RmsNormForwardArgs&) override {}
  void RmsNormBackward(const kernels::RmsNormBackwardArgs&) override {}
  void HeadNormForward(const kernels::HeadNormForwardArgs&) override {}
  void HeadNormBackward(const kernels::HeadNormBackwardArgs&) override {}
  void AddBias(const kernels::AddBiasArgs&) override {}
  void Rope(const kernels::RopeArgs&) override {}
  void AttentionForward(const kernels::AttentionForwardArgs&) override {}
  void AttentionBackward(const kernels::AttentionBackwardArgs&, const AttentionScratch&) override {}
  void SwigluForward(const kernels::SwigluForwardArgs&) override {}
  void SwigluBackward(const kernels::SwigluBackwardArgs&) override {}
  void Gemm(const kernels::GemmArgs& args) override;
  void GateUp(const kernels::GateUpArgs& args) override;
  void DownBackward(const kernels::DownBackwardArgs& args) override;
  void AdaptedProduct(const kernels::AdaptedProductArgs& args) override;
  void TurnedProduct(const kernels::TurnedProductArgs& args) override;
  int64_t fused_gate_rows() const override { return fused_gate_rows_; }
  bool computes() const override { return false; }
  bool chooses_gemms() const override { return false; }
  absl::StatusOr<GemmPreparation> PrepareGemms(absl::Span<const kernels::GemmArgs>,
                                               const std::function<absl::Status()>&) override {
    return GemmPreparation();
  }
  void LoraUp(const kernels::LoraUpArgs& args) override;
  void LoraUpRope(const kernels::LoraUpRopeArgs& args) override;
  void QkvFinish(const kernels::QkvFinishArgs& args) override;
  void LoraBack(const kernels::LoraBackArgs& args) override;
  void LoraGrad(const kernels::LoraGradArgs& args) override;
  void LoraNormedGrad(const kernels::LoraNormedGradArgs& args) override;
  absl::Status PrepareAttention(absl::string_view,
                                absl::Span<const AttentionPreparation>) override {
    return absl::OkStatus();
  }
  void Axpy(const kernels::AxpyArgs&) override {}
  void Dropout(const kernels::DropoutArgs&) override {}
  void GatherActRows(const kernels::GatherActRowsArgs&) override {}
  void ScatterActRows(const kernels::ScatterActRowsArgs&) override {}
  void LossSlice(const kernels::LossSliceArgs&) override {}
  void LossTargetRows(const kernels::LossTargetRowsArgs&) override {}
  void LossFinish(const kernels::LossFinishArgs&) override {}
  void Route(const kernels::RouteArgs&) override {}
  void RouteBackward(const kernels::RouteBackwardArgs&) override {}
  void ListExperts(const kernels::ListExpertsArgs&) override {}
  void GatherEntries(const kernels::GatherEntriesArgs&) override {}
  void ScatterEntries(const kernels::ScatterEntriesArgs&) override {}
  void EntryGrad(const kernels::EntryGradArgs&) override {}
  void AddF32(const kernels::AddF32Args&) override {}
  void SumSquares(const kernels::SumSquaresArgs&) override {}
  void AdamW(const kernels::AdamWArgs&) override {}
  void NarrowToBf16(const float*, void*, int64_t) override {}

 private:
  bool gates_taken(int64_t T, int64_t H, int64_t I) const {
    return act_ == DType::kBF16 && kernels::GateProductsTaken(fused_gate_rows_, T, H, I);
  }
  // The kernels of LoRA are bf16's.
  bool has_lora_kernels() const { return name_ == "cuda" && act_ == DType::kBF16; }
  template <typename Args>
  void Products(const Args& args);

  const std::string name_;
  DType act_;
  const DType wt_;
  const int64_t fused_gate_rows_;
  std::set<std::array<int64_t, 8>> known_;
  std::vector<kernels::GemmArgs> products_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_GEMM_RECORDER_H_
