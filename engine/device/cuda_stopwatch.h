// Times stretches of a stream by pairs of events, without waiting for them: pairs are read once
// they are complete. Bounded: when too many are open, the oldest is waited for. Internal to
// engine/device. Not thread-safe.
#ifndef SOUP_ENGINE_DEVICE_CUDA_STOPWATCH_H_
#define SOUP_ENGINE_DEVICE_CUDA_STOPWATCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_handles.h"

namespace soup::engine {

class CudaStopwatch {
 public:
  // Marks the beginning of a stretch; Stop must follow on the same stream.
  absl::Status Start(cudaStream_t stream) {
    if (spare_.empty()) {
      SOUP_ASSIGN_OR_RETURN(CudaEvent begin, CudaEvent::Create(/*timing=*/true));
      SOUP_ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(/*timing=*/true));
      spare_.emplace_back(std::move(begin), std::move(end));
    }
    open_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    return CudaStatus(cudaEventRecord(open_.back().first.get(), stream), "cudaEventRecord");
  }
  absl::Status Stop(cudaStream_t stream) {
    return CudaStatus(cudaEventRecord(open_.back().second.get(), stream), "cudaEventRecord");
  }

  // Seconds of the stretches that are complete and have not been told yet.
  double Harvest() {
    double seconds = 0;
    while (!open_.empty()) {
      const bool wait = open_.size() > kMostOpen;
      const cudaError_t reached = wait ? cudaEventSynchronize(open_.front().second.get())
                                       : cudaEventQuery(open_.front().second.get());
      if (reached == cudaErrorNotReady) break;
      float ms = 0;
      if (reached == cudaSuccess &&
          cudaEventElapsedTime(&ms, open_.front().first.get(), open_.front().second.get()) ==
              cudaSuccess) {
        seconds += static_cast<double>(ms) * 1e-3;
      }
      spare_.push_back(std::move(open_.front()));
      open_.pop_front();
    }
    return seconds;
  }
  bool full() const { return open_.size() > kMostOpen; }

 private:
  static constexpr size_t kMostOpen = 4096;
  using Pair = std::pair<CudaEvent, CudaEvent>;
  std::deque<Pair> open_;
  std::vector<Pair> spare_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_STOPWATCH_H_
