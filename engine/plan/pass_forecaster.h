// The predicted time of a pass under many placements: costs that no placement changes are counted
// once. Internal to engine/plan. Not thread-safe.
//
// A visit's compute is its matrix products at the measured rate of their row count, attention at
// that of its sequence length, NF4 dequantisation once for all items, and the bytes that the other
// ops read and write. The visits are then played on three time lines: compute, the link to the
// device (slabs, head slices, what comes back from host memory) and the link to the host.
#ifndef SOUP_ENGINE_PLAN_PASS_FORECASTER_H_
#define SOUP_ENGINE_PLAN_PASS_FORECASTER_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/visit_schedule.h"

namespace soup::engine {

// What placements are compared by. A second of stall counts as more than itself: it rests on copies
// that overlap as forecast, and heat that a stall lets the chip lose is not there to use.
inline constexpr double kStallWeight = 2;
inline double PlacementCost(const Forecast& f) {
  return f.step_seconds + kStallWeight * f.stall_seconds;
}

// Passes smaller than the one that is planned run under its placement. Where layers keep different
// things the layout of a smaller one may be larger than that of the larger by up to this part
// (tests/engine/plan/memory_plan_test.cc): room for it is left when there is any.
inline constexpr int64_t kLayoutSlack = 512;

class PassForecaster {
 public:
  // Borrows `model`.
  PassForecaster(const ModelSpec& model, BaseFormat format, const std::vector<PassJob>& jobs,
                 const MachineProfile& profile);

  // `placement` is normal. Errors: InvalidArgument (no work item, impossible slots).
  absl::StatusOr<Forecast> Run(const Placement& placement);

 private:
  // Seconds of compute.
  struct Seconds {
    double forward = 0;          // a visit
    double backward = 0;         // a visit where everything is kept
    double attention_again = 0;  // beside it, where attention is made again
    double mlp_again = 0;
    double loss = 0;
    double update = 0;
  };
  // What all items keep of one class a layer, and of one boundary.
  struct BlockBytes {
    double boundary = 0;
    double attention = 0;
    double mlp = 0;
  };
  class Play;

  void CountItem(const PassJob& job, const PassItem& item);
  void CountLora(const PassJob& job, double tokens, bool train);
  void CountOnce(const std::vector<PassJob>& jobs);
  bool FusesGate(int64_t tokens) const;
  double Gemm(double flops, double tokens) const;
  using Schedules = std::map<std::pair<int32_t, int32_t>, VisitSchedule>;  // by slots, resident
  // Of a pass that follows one like it.
  static absl::StatusOr<const VisitSchedule*> Schedule(Schedules& schedules, int64_t layers,
                                                       int32_t slots, int32_t resident,
                                                       bool backward);

  const ModelSpec& model_;
  const MachineProfile profile_;
  double act_ = 4;      // bytes of an activation
  double wt_ = 4;       // bytes of a weight operand
  bool split_ = false;  // products of fp32 activations with bf16 weights
  bool backward_ = false;
  double tokens_ = 0;
  double slab_bytes_ = 0;
  double head_bytes_ = 0;
  double moment_bytes_ = 0;  // of all jobs that train, both moments
  int64_t head_slices_ = 1;
  bool in_place_ = false;  // bf16 weights are operands as they are
  Seconds seconds_;
  BlockBytes blocks_;
  Schedules layer_schedules_;
  Schedules head_schedules_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_PASS_FORECASTER_H_
