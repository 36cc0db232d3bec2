// The predicted time of one pass under one placement.
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_forecaster.h"

namespace soup::engine {

absl::StatusOr<Forecast> ForecastPass(const ModelSpec& model, BaseFormat format,
                                      const std::vector<PassJob>& jobs, const Placement& placement,
                                      const MachineProfile& profile) {
  return PassForecaster(model, format, jobs, profile).Run(NormalPlacement(placement, model.layers));
}

}  // namespace soup::engine
