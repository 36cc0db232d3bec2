// A Backend that times every launcher by a pair of events on the compute stream and adds the times
// up by class: where a step's time goes. What the compute stream waits for copies counts as
// "stall", what lies between ops as "idle". The events cost a little: a step is slower with it than
// without.
#ifndef SOUP_BENCH_OP_TIMER_H_
#define SOUP_BENCH_OP_TIMER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/forwarding_backend.h"

namespace soup::bench {

enum class OpClass : uint8_t {
  kGemm,  // products with the base's weights
  kLora,  // products with a LoRA rank among their sizes
  kHead,  // the head's products: fp32 results that are not LoRA's
  kLoss,  // loss kernels
  kAttentionForward,
  kAttentionBackward,
  kElementwise,  // norms, rope, SwiGLU, residual copies, row gathers, dropout
  kDequant,      // NF4, widening
  kOptimizer,    // norm of the gradient, AdamW, operand copies
  kTransfer,     // embedding rows, item indices, results to the host
  kStall,
};
inline constexpr int kOpClasses = 11;
const char* OpClassName(OpClass c);

struct Breakdown {
  std::array<double, kOpClasses> seconds = {};  // by OpClass
  std::array<int64_t, kOpClasses> calls = {};
  double span_seconds = 0;  // from the first op's begin to the last one's end
  double idle_seconds() const;
};

class OpTimer final : public ForwardingBackend {
 public:
  // `lora_rank`: of the job that runs, and its model's columns of q, k, v: to tell products apart.
  OpTimer(engine::Backend* next, int64_t lora_rank, int64_t qkv_width)
      : ForwardingBackend(next), lora_rank_(lora_rank), qkv_width_(qkv_width) {}

  // Off at first.
  void Enable(bool on) { on_ = on; }
  // What has run since the last call; waits for it. Errors: those of the device.
  absl::StatusOr<Breakdown> Take();

  absl::Status Wait(engine::StreamView stream, const engine::Event& event) override;
  absl::Status CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                 engine::StreamView stream) override;
  absl::Status CopyToHostAsync(void* dst, const void* src, int64_t bytes) override;
  void CopyOnDevice(void* dst, const void* src, int64_t bytes) override;
  void FillZero(void* dst, int64_t bytes) override;
  void GatherRows(const kernels::GatherRowsArgs& a) override;
  void Widen(const kernels::WidenArgs& a) override;
  void Nf4Dequant(const kernels::Nf4DequantArgs& a) override;
  void RmsNormForward(const kernels::RmsNormForwardArgs& a) override;
  void RmsNormBackward(const kernels::RmsNormBackwardArgs& a) override;
  void HeadNormForward(const kernels::HeadNormForwardArgs& a) override;
  void QkvFinish(const kernels::QkvFinishArgs& a) override;
  void HeadNormBackward(const kernels::HeadNormBackwardArgs& a) override;
  void AddBias(const kernels::AddBiasArgs& a) override;
  void Rope(const kernels::RopeArgs& a) override;
  void AttentionForward(const kernels::AttentionForwardArgs& a) override;
  void AttentionBackward(const kernels::AttentionBackwardArgs& a,
                         const engine::AttentionScratch& scratch) override;
  void AttentionBackwardTurned(const kernels::AttentionBackwardArgs& args,
                               const engine::AttentionScratch& scratch,
                               const kernels::RopeArgs& turn) override;
  void SwigluForward(const kernels::SwigluForwardArgs& a) override;
  void SwigluBackward(const kernels::SwigluBackwardArgs& a) override;
  void Gemm(const kernels::GemmArgs& a) override;
  void GateUp(const kernels::GateUpArgs& a) override;
  void DownBackward(const kernels::DownBackwardArgs& a) override;
  void AdaptedProduct(const kernels::AdaptedProductArgs& a) override;
  void TurnedProduct(const kernels::TurnedProductArgs& a) override;
  void LoraUp(const kernels::LoraUpArgs& a) override;
  void LoraUpRope(const kernels::LoraUpRopeArgs& a) override;
  void LoraBack(const kernels::LoraBackArgs& a) override;
  void LoraGrad(const kernels::LoraGradArgs& a) override;
  void LoraNormedGrad(const kernels::LoraNormedGradArgs& a) override;
  void Axpy(const kernels::AxpyArgs& a) override;
  void Dropout(const kernels::DropoutArgs& a) override;
  void GatherActRows(const kernels::GatherActRowsArgs& a) override;
  void ScatterActRows(const kernels::ScatterActRowsArgs& a) override;
  void LossSlice(const kernels::LossSliceArgs& a) override;
  void LossTargetRows(const kernels::LossTargetRowsArgs& a) override;
  void LossFinish(const kernels::LossFinishArgs& a) override;
  void Route(const kernels::RouteArgs& a) override;
  void RouteBackward(const kernels::RouteBackwardArgs& a) override;
  void ListExperts(const kernels::ListExpertsArgs& a) override;
  void GatherEntries(const kernels::GatherEntriesArgs& a) override;
  void ScatterEntries(const kernels::ScatterEntriesArgs& a) override;
  void EntryGrad(const kernels::EntryGradArgs& a) override;
  void AddF32(const kernels::AddF32Args& a) override;
  void SumSquares(const kernels::SumSquaresArgs& a) override;
  void AdamW(const kernels::AdamWArgs& a) override;
  void NarrowToBf16(const float* src, void* dst, int64_t n) override;

 private:
  struct Timing {
    OpClass op_class;
    engine::Event begin;
    engine::Event end;
  };
  // The index of an open timing, or -1 when off.
  int64_t Begin(OpClass c);
  void End(int64_t index);
  template <typename Fn>
  auto Timed(OpClass c, const Fn& fn);
  OpClass ClassOf(const kernels::GemmArgs& a) const;

  const int64_t lora_rank_;
  const int64_t qkv_width_;
  bool on_ = false;
  std::vector<Timing> timings_;  // those in use come first; events are used again
  size_t used_ = 0;
  absl::Status error_;  // of an event
};

}  // namespace soup::bench

#endif  // SOUP_BENCH_OP_TIMER_H_
