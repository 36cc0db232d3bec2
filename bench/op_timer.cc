#include "bench/op_timer.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"

namespace soup::bench {
namespace {
constexpr absl::Duration kPatience = absl::Minutes(10);
// Modules of a layer: adapters of several may share one product.
constexpr int64_t kModules = 7;
}  // namespace

const char* OpClassName(OpClass c) {
  static constexpr const char* kNames[kOpClasses] = {"gemm",
                                                     "lora",
                                                     "head",
                                                     "loss",
                                                     "attention_forward",
                                                     "attention_backward",
                                                     "elementwise",
                                                     "dequant",
                                                     "optimizer",
                                                     "transfer",
                                                     "stall"};
  return kNames[static_cast<int>(c)];
}

double Breakdown::idle_seconds() const {
  double busy = 0;
  for (const double s : seconds) busy += s;
  return std::max(0.0, span_seconds - busy);
}

int64_t OpTimer::Begin(OpClass c) {
  if (!on_) return -1;
  if (used_ == timings_.size()) {
    timings_.push_back({c, next().MakeTimedEvent(), next().MakeTimedEvent()});
  }
  Timing& t = timings_[used_];
  t.op_class = c;
  error_.Update(next().Record(t.begin, next().compute_stream()));
  return static_cast<int64_t>(used_++);
}

void OpTimer::End(int64_t index) {
  if (index < 0) return;
  error_.Update(next().Record(timings_[static_cast<size_t>(index)].end, next().compute_stream()));
}

template <typename Fn>
auto OpTimer::Timed(OpClass c, const Fn& fn) {
  const int64_t index = Begin(c);
  if constexpr (std::is_void_v<decltype(fn())>) {
    fn();
    End(index);
  } else {
    auto result = fn();
    End(index);
    return result;
  }
}

absl::StatusOr<Breakdown> OpTimer::Take() {
  SOUP_RETURN_IF_ERROR(next().Synchronize(kPatience));
  SOUP_RETURN_IF_ERROR(error_);
  Breakdown b;
  for (size_t i = 0; i < used_; ++i) {
    SOUP_ASSIGN_OR_RETURN(const double s,
                          next().SecondsBetween(timings_[i].begin, timings_[i].end));
    b.seconds[static_cast<size_t>(timings_[i].op_class)] += s;
    ++b.calls[static_cast<size_t>(timings_[i].op_class)];
  }
  if (used_ > 0) {
    SOUP_ASSIGN_OR_RETURN(b.span_seconds,
                          next().SecondsBetween(timings_[0].begin, timings_[used_ - 1].end));
  }
  used_ = 0;
  return b;
}

OpClass OpTimer::ClassOf(const kernels::GemmArgs& a) const {
  // The other two sizes than the tokens': those may be few.
  const int64_t least = std::min(a.N, a.transpose_a ? a.M : a.K);
  if (least <= kModules * lora_rank_) return OpClass::kLora;
  const bool qkv = a.transpose_b && a.N == qkv_width_;  // fp32 too, where QkvFinish reads it
  return a.c_type == kernels::Operand::kF32 && !qkv ? OpClass::kHead : OpClass::kGemm;
}

absl::Status OpTimer::Wait(engine::StreamView stream, const engine::Event& event) {
  if (stream.kind() != engine::StreamKind::kCompute) return next().Wait(stream, event);
  return Timed(OpClass::kStall, [&] { return next().Wait(stream, event); });
}
absl::Status OpTimer::CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                        engine::StreamView stream) {
  if (stream.kind() != engine::StreamKind::kCompute) {
    return next().CopyToDeviceAsync(dst, src, bytes, stream);
  }
  return Timed(OpClass::kTransfer,
               [&] { return next().CopyToDeviceAsync(dst, src, bytes, stream); });
}
absl::Status OpTimer::CopyToHostAsync(void* dst, const void* src, int64_t bytes) {
  return Timed(OpClass::kTransfer, [&] { return next().CopyToHostAsync(dst, src, bytes); });
}
void OpTimer::CopyOnDevice(void* dst, const void* src, int64_t bytes) {
  Timed(OpClass::kElementwise, [&] { next().CopyOnDevice(dst, src, bytes); });
}
void OpTimer::FillZero(void* dst, int64_t bytes) {
  Timed(OpClass::kElementwise, [&] { next().FillZero(dst, bytes); });
}
void OpTimer::GatherRows(const kernels::GatherRowsArgs& a) {
  Timed(OpClass::kTransfer, [&] { next().GatherRows(a); });
}
void OpTimer::Widen(const kernels::WidenArgs& a) {
  Timed(OpClass::kDequant, [&] { next().Widen(a); });
}
void OpTimer::Nf4Dequant(const kernels::Nf4DequantArgs& a) {
  Timed(OpClass::kDequant, [&] { next().Nf4Dequant(a); });
}
void OpTimer::RmsNormForward(const kernels::RmsNormForwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().RmsNormForward(a); });
}
void OpTimer::RmsNormBackward(const kernels::RmsNormBackwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().RmsNormBackward(a); });
}
void OpTimer::QkvFinish(const kernels::QkvFinishArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().QkvFinish(a); });
}
void OpTimer::HeadNormForward(const kernels::HeadNormForwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().HeadNormForward(a); });
}
void OpTimer::HeadNormBackward(const kernels::HeadNormBackwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().HeadNormBackward(a); });
}
void OpTimer::AddBias(const kernels::AddBiasArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().AddBias(a); });
}
void OpTimer::Rope(const kernels::RopeArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().Rope(a); });
}
void OpTimer::AttentionForward(const kernels::AttentionForwardArgs& a) {
  Timed(OpClass::kAttentionForward, [&] { next().AttentionForward(a); });
}
void OpTimer::AttentionBackward(const kernels::AttentionBackwardArgs& a,
                                const engine::AttentionScratch& scratch) {
  Timed(OpClass::kAttentionBackward, [&] { next().AttentionBackward(a, scratch); });
}
void OpTimer::AttentionBackwardTurned(const kernels::AttentionBackwardArgs& a,
                                      const engine::AttentionScratch& scratch,
                                      const kernels::RopeArgs& turn) {
  Timed(OpClass::kAttentionBackward, [&] { next().AttentionBackwardTurned(a, scratch, turn); });
}
void OpTimer::SwigluForward(const kernels::SwigluForwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().SwigluForward(a); });
}
void OpTimer::SwigluBackward(const kernels::SwigluBackwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().SwigluBackward(a); });
}
void OpTimer::Gemm(const kernels::GemmArgs& a) {
  Timed(ClassOf(a), [&] { next().Gemm(a); });
}
// What stands beside the product counts as part of it, whether or not it is a kernel of its own.
void OpTimer::GateUp(const kernels::GateUpArgs& a) {
  Timed(OpClass::kGemm, [&] { next().GateUp(a); });
}
void OpTimer::DownBackward(const kernels::DownBackwardArgs& a) {
  Timed(OpClass::kGemm, [&] { next().DownBackward(a); });
}
void OpTimer::AdaptedProduct(const kernels::AdaptedProductArgs& a) {
  Timed(OpClass::kGemm, [&] { next().AdaptedProduct(a); });
}
void OpTimer::TurnedProduct(const kernels::TurnedProductArgs& a) {
  Timed(OpClass::kGemm, [&] { next().TurnedProduct(a); });
}
void OpTimer::LoraUp(const kernels::LoraUpArgs& a) {
  Timed(OpClass::kLora, [&] { next().LoraUp(a); });
}
void OpTimer::LoraUpRope(const kernels::LoraUpRopeArgs& a) {
  Timed(OpClass::kLora, [&] { next().LoraUpRope(a); });
}
void OpTimer::LoraBack(const kernels::LoraBackArgs& a) {
  Timed(OpClass::kLora, [&] { next().LoraBack(a); });
}
void OpTimer::LoraGrad(const kernels::LoraGradArgs& a) {
  Timed(OpClass::kLora, [&] { next().LoraGrad(a); });
}
void OpTimer::LoraNormedGrad(const kernels::LoraNormedGradArgs& a) {
  Timed(OpClass::kLora, [&] { next().LoraNormedGrad(a); });
}
void OpTimer::Axpy(const kernels::AxpyArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().Axpy(a); });
}
void OpTimer::Dropout(const kernels::DropoutArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().Dropout(a); });
}
void OpTimer::GatherActRows(const kernels::GatherActRowsArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().GatherActRows(a); });
}
void OpTimer::ScatterActRows(const kernels::ScatterActRowsArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().ScatterActRows(a); });
}
void OpTimer::LossSlice(const kernels::LossSliceArgs& a) {
  Timed(OpClass::kLoss, [&] { next().LossSlice(a); });
}
void OpTimer::LossTargetRows(const kernels::LossTargetRowsArgs& a) {
  Timed(OpClass::kLoss, [&] { next().LossTargetRows(a); });
}
void OpTimer::LossFinish(const kernels::LossFinishArgs& a) {
  Timed(OpClass::kLoss, [&] { next().LossFinish(a); });
}
void OpTimer::Route(const kernels::RouteArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().Route(a); });
}
void OpTimer::RouteBackward(const kernels::RouteBackwardArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().RouteBackward(a); });
}
void OpTimer::ListExperts(const kernels::ListExpertsArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().ListExperts(a); });
}
void OpTimer::GatherEntries(const kernels::GatherEntriesArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().GatherEntries(a); });
}
void OpTimer::ScatterEntries(const kernels::ScatterEntriesArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().ScatterEntries(a); });
}
void OpTimer::EntryGrad(const kernels::EntryGradArgs& a) {
  Timed(OpClass::kElementwise, [&] { next().EntryGrad(a); });
}
void OpTimer::AddF32(const kernels::AddF32Args& a) {
  Timed(OpClass::kElementwise, [&] { next().AddF32(a); });
}
void OpTimer::SumSquares(const kernels::SumSquaresArgs& a) {
  Timed(OpClass::kOptimizer, [&] { next().SumSquares(a); });
}
void OpTimer::AdamW(const kernels::AdamWArgs& a) {
  Timed(OpClass::kOptimizer, [&] { next().AdamW(a); });
}
void OpTimer::NarrowToBf16(const float* src, void* dst, int64_t n) {
  Timed(OpClass::kOptimizer, [&] { next().NarrowToBf16(src, dst, n); });
}

}  // namespace soup::bench
