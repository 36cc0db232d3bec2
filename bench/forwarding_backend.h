// A Backend that hands every call to another: base of the decorators below, which override what
// they look at. Does not own the other. Thread-safety: as the other's.
#ifndef SOUP_BENCH_FORWARDING_BACKEND_H_
#define SOUP_BENCH_FORWARDING_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/device/backend.h"

namespace soup::bench {

class ForwardingBackend : public engine::Backend {
 public:
  explicit ForwardingBackend(engine::Backend* next) : next_(*next) {}

  const char* name() const override { return next_.name(); }
  engine::DType activation_type() const override { return next_.activation_type(); }
  engine::DType weight_type() const override { return next_.weight_type(); }
  absl::Status UseActivations(engine::DType type, void* product_scratch) override {
    return next_.UseActivations(type, product_scratch);
  }

  absl::StatusOr<std::unique_ptr<engine::Arena>> CreateArena(int64_t bytes) override {
    return next_.CreateArena(bytes);
  }
  void RegisterHostMemory(const void* data, int64_t bytes) override {
    next_.RegisterHostMemory(data, bytes);
  }
  void UnregisterHostMemory() override { next_.UnregisterHostMemory(); }
  absl::StatusOr<std::unique_ptr<engine::Arena>> CreateHostArena(int64_t bytes) override {
    return next_.CreateHostArena(bytes);
  }

  engine::StreamView compute_stream() override { return next_.compute_stream(); }
  engine::StreamView copy_stream() override { return next_.copy_stream(); }
  engine::StreamView offload_stream() override { return next_.offload_stream(); }
  engine::Event MakeEvent() override { return next_.MakeEvent(); }
  engine::Event MakeTimedEvent() override { return next_.MakeTimedEvent(); }
  absl::StatusOr<double> SecondsBetween(const engine::Event& begin,
                                        const engine::Event& end) override {
    return next_.SecondsBetween(begin, end);
  }
  absl::Status Record(engine::Event& event, engine::StreamView stream) override {
    return next_.Record(event, stream);
  }
  absl::Status Wait(engine::StreamView stream, const engine::Event& event) override {
    return next_.Wait(stream, event);
  }
  absl::Status HostWait(const engine::Event& event, absl::Duration timeout) override {
    return next_.HostWait(event, timeout);
  }
  absl::Status Synchronize(absl::Duration timeout) override { return next_.Synchronize(timeout); }
  absl::Status status() const override { return next_.status(); }
  engine::BackendCounters counters() const override { return next_.counters(); }

  absl::Status CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                 engine::StreamView stream) override {
    return next_.CopyToDeviceAsync(dst, src, bytes, stream);
  }
  absl::Status CopyToHostAsync(void* dst, const void* src, int64_t bytes) override {
    return next_.CopyToHostAsync(dst, src, bytes);
  }
  absl::Status OffloadAsync(void* dst, const void* src, int64_t bytes) override {
    return next_.OffloadAsync(dst, src, bytes);
  }
  void CopyOnDevice(void* dst, const void* src, int64_t bytes) override {
    next_.CopyOnDevice(dst, src, bytes);
  }
  void FillZero(void* dst, int64_t bytes) override { next_.FillZero(dst, bytes); }

  void GatherRows(const kernels::GatherRowsArgs& a) override { next_.GatherRows(a); }
  void Widen(const kernels::WidenArgs& a) override { next_.Widen(a); }
  void Nf4Dequant(const kernels::Nf4DequantArgs& a) override { next_.Nf4Dequant(a); }
  void RmsNormForward(const kernels::RmsNormForwardArgs& a) override { next_.RmsNormForward(a); }
  void RmsNormBackward(const kernels::RmsNormBackwardArgs& a) override { next_.RmsNormBackward(a); }
  void HeadNormForward(const kernels::HeadNormForwardArgs& a) override { next_.HeadNormForward(a); }
  void HeadNormBackward(const kernels::HeadNormBackwardArgs& a) override {
    next_.HeadNormBackward(a);
  }
  void AddBias(const kernels::AddBiasArgs& a) override { next_.AddBias(a); }
  void Rope(const kernels::RopeArgs& a) override { next_.Rope(a); }
  void AttentionForward(const kernels::AttentionForwardArgs& a) override {
    next_.AttentionForward(a);
  }
  void AttentionBackward(const kernels::AttentionBackwardArgs& a,
                         const engine::AttentionScratch& scratch) override {
    next_.AttentionBackward(a, scratch);
  }
  void AttentionBackwardTurned(const kernels::AttentionBackwardArgs& a,
                               const engine::AttentionScratch& scratch,
                               const kernels::RopeArgs& turn) override {
    next_.AttentionBackwardTurned(a, scratch, turn);
  }
  void SwigluForward(const kernels::SwigluForwardArgs& a) override { next_.SwigluForward(a); }
  void SwigluBackward(const kernels::SwigluBackwardArgs& a) override { next_.SwigluBackward(a); }
  void Gemm(const kernels::GemmArgs& a) override { next_.Gemm(a); }
  void GateUp(const kernels::GateUpArgs& a) override { next_.GateUp(a); }
  void DownBackward(const kernels::DownBackwardArgs& a) override { next_.DownBackward(a); }
  void AdaptedProduct(const kernels::AdaptedProductArgs& a) override { next_.AdaptedProduct(a); }
  void TurnedProduct(const kernels::TurnedProductArgs& a) override { next_.TurnedProduct(a); }
  int64_t fused_gate_rows() const override { return next_.fused_gate_rows(); }
  bool computes() const override { return next_.computes(); }
  bool chooses_gemms() const override { return next_.chooses_gemms(); }
  absl::StatusOr<engine::GemmPreparation> PrepareGemms(
      absl::Span<const kernels::GemmArgs> products,
      const std::function<absl::Status()>& make_room) override {
    return next_.PrepareGemms(products, make_room);
  }
  void LoraUp(const kernels::LoraUpArgs& a) override { next_.LoraUp(a); }
  void LoraUpRope(const kernels::LoraUpRopeArgs& a) override { next_.LoraUpRope(a); }
  void QkvFinish(const kernels::QkvFinishArgs& a) override { next_.QkvFinish(a); }
  void LoraBack(const kernels::LoraBackArgs& a) override { next_.LoraBack(a); }
  void LoraGrad(const kernels::LoraGradArgs& a) override { next_.LoraGrad(a); }
  void LoraNormedGrad(const kernels::LoraNormedGradArgs& a) override { next_.LoraNormedGrad(a); }
  absl::Status PrepareAttention(absl::string_view library,
                                absl::Span<const engine::AttentionPreparation> sequences) override {
    return next_.PrepareAttention(library, sequences);
  }
  void Axpy(const kernels::AxpyArgs& a) override { next_.Axpy(a); }
  void Dropout(const kernels::DropoutArgs& a) override { next_.Dropout(a); }
  void GatherActRows(const kernels::GatherActRowsArgs& a) override { next_.GatherActRows(a); }
  void ScatterActRows(const kernels::ScatterActRowsArgs& a) override { next_.ScatterActRows(a); }
  void LossSlice(const kernels::LossSliceArgs& a) override { next_.LossSlice(a); }
  void LossTargetRows(const kernels::LossTargetRowsArgs& a) override { next_.LossTargetRows(a); }
  void LossFinish(const kernels::LossFinishArgs& a) override { next_.LossFinish(a); }
  void Route(const kernels::RouteArgs& a) override { next_.Route(a); }
  void RouteBackward(const kernels::RouteBackwardArgs& a) override { next_.RouteBackward(a); }
  void ListExperts(const kernels::ListExpertsArgs& a) override { next_.ListExperts(a); }
  void GatherEntries(const kernels::GatherEntriesArgs& a) override { next_.GatherEntries(a); }
  void ScatterEntries(const kernels::ScatterEntriesArgs& a) override { next_.ScatterEntries(a); }
  void EntryGrad(const kernels::EntryGradArgs& a) override { next_.EntryGrad(a); }
  void AddF32(const kernels::AddF32Args& a) override { next_.AddF32(a); }
  void SumSquares(const kernels::SumSquaresArgs& a) override { next_.SumSquares(a); }
  void AdamW(const kernels::AdamWArgs& a) override { next_.AdamW(a); }
  void NarrowToBf16(const float* src, void* dst, int64_t n) override {
    next_.NarrowToBf16(src, dst, n);
  }

 protected:
  engine::Backend& next() { return next_; }

 private:
  engine::Backend& next_;
};

}  // namespace soup::bench

#endif  // SOUP_BENCH_FORWARDING_BACKEND_H_
