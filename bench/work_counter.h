// A Backend that adds up the matrix products and the attention it is asked for, and the time they
// would take at the machine's ceilings: the ideal of a step, its recomputation included.
#ifndef SOUP_BENCH_WORK_COUNTER_H_
#define SOUP_BENCH_WORK_COUNTER_H_

#include <cstdint>
#include <vector>

#include "bench/forwarding_backend.h"
#include "engine/base/machine_profile.h"

namespace soup::bench {

struct Work {
  double gemm_flops = 0;
  double attention_flops = 0;  // causal, as MachineProfile counts them
  double ideal_seconds = 0;    // at RateAt of the profile's curves

  void Add(const Work& other, double weight) {
    gemm_flops += weight * other.gemm_flops;
    attention_flops += weight * other.attention_flops;
    ideal_seconds += weight * other.ideal_seconds;
  }
};

class WorkCounter final : public ForwardingBackend {
 public:
  WorkCounter(engine::Backend* next, const engine::MachineProfile& profile)
      : ForwardingBackend(next), profile_(profile) {}

  void Reset() { work_ = Work(); }
  const Work& work() const { return work_; }

  void Gemm(const kernels::GemmArgs& args) override;
  void GateUp(const kernels::GateUpArgs& args) override;
  void DownBackward(const kernels::DownBackwardArgs& args) override;
  void AdaptedProduct(const kernels::AdaptedProductArgs& args) override;
  void TurnedProduct(const kernels::TurnedProductArgs& args) override;
  void AttentionForward(const kernels::AttentionForwardArgs& args) override;
  void AttentionBackward(const kernels::AttentionBackwardArgs& args,
                         const engine::AttentionScratch& scratch) override;
  void AttentionBackwardTurned(const kernels::AttentionBackwardArgs& args,
                               const engine::AttentionScratch& scratch,
                               const kernels::RopeArgs& turn) override;

 private:
  void Product(double flops, int64_t tokens);
  void Attention(const int32_t* cu_seqlens, int64_t sequences, int64_t query_width, double factor,
                 const std::vector<engine::MeasuredRate>& curve);

  const engine::MachineProfile profile_;
  Work work_;
};

}  // namespace soup::bench

#endif  // SOUP_BENCH_WORK_COUNTER_H_
