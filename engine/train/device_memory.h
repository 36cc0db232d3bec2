// What a trainer holds on the device from pass to pass: the arena, the slots with their ring, the
// head, and the states of jobs. Follows the memory plan of each pass; states move only when the
// part of the plan that does not depend on the items changes.
//
// Not thread-safe. Errors: those of the arena, the rings and the device.
#ifndef SOUP_ENGINE_TRAIN_DEVICE_MEMORY_H_
#define SOUP_ENGINE_TRAIN_DEVICE_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/device/backend.h"
#include "engine/device/slot_ring.h"
#include "engine/plan/job_plan.h"
#include "engine/train/head_stream.h"
#include "engine/train/model_base.h"

namespace soup::engine {

// A job's adapter on the host: where it lives while it is not on the device, and where its moments
// live always when the placement says so. In a host arena: it moves at the link's rate. Move-only.
class HostState {
 public:
  // All zero. Errors: those of Backend::CreateHostArena.
  static absl::StatusOr<HostState> Create(Backend* backend, int64_t elements);
  HostState() = default;

  absl::Span<float> weights() const { return weights_; }
  absl::Span<float> gradients() const { return gradients_; }
  absl::Span<float> first_moment() const { return first_moment_; }
  absl::Span<float> second_moment() const { return second_moment_; }

 private:
  std::unique_ptr<Arena> arena_;
  std::vector<ArenaBuffer> buffers_;
  absl::Span<float> weights_;
  absl::Span<float> gradients_;
  absl::Span<float> first_moment_;
  absl::Span<float> second_moment_;
};

// The same on the device; null where it is not there (a pass that only scores has the weights
// only; moments may be kept on the host).
struct DeviceState {
  float* weights = nullptr;
  // The weights as GEMM operands: themselves where that type is fp32, else a bf16 copy that is made
  // anew whenever the weights change (RefreshOperand).
  std::byte* operand = nullptr;
  int64_t operand_bytes = 4;  // of an element
  float* gradients = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
};

class DeviceMemory {
 public:
  DeviceMemory(Backend* backend, const ModelBase* base) : backend_(backend), base_(*base) {}
  ~DeviceMemory();

  // Prepares a pass: `states` holds every open job by id.
  absl::Status Configure(const MemoryPlan& plan, const std::vector<PassJob>& jobs,
                         const std::map<std::string, HostState*>& states, bool always_relayout);
  // The least sizes of the arenas that Configure makes from now on, on the device and in host
  // memory.
  void HoldAtLeast(int64_t bytes, int64_t host_bytes) {
    hold_bytes_ = bytes;
    hold_host_bytes_ = host_bytes;
  }
  // After an optimizer step: the operand copy follows the weights.
  void RefreshOperand(const std::string& job_id);
  // Copies a job's state to the host, if it is on the device. It stays there. A finished step's
  // gradients are of use to checkers only.
  absl::Status Save(const std::string& job_id, HostState* state, bool with_gradients = true);
  // Forgets a job's state on the device, if it is there: the next Configure lays out anew.
  void Drop(const std::string& job_id);
  // After a failed pass: nothing on the device is valid any more.
  void DropAll();
  // Gives the arena back to the machine, when no job is left.
  void Release() {
    DropAll();
    arena_.reset();
    host_arena_.reset();
  }

  DeviceState state(const std::string& job_id) const;
  Arena* arena() { return arena_.get(); }
  Arena* host_arena() { return host_arena_.get(); }  // null until a pass keeps something there
  SlotRing* ring() { return ring_.get(); }
  HeadStream* head() { return head_.get(); }
  const std::byte* final_norm() const { return final_norm_; }
  const float* inverse_frequencies() const { return inverse_frequencies_; }
  double* sum_squares() const { return sum_squares_; }
  std::byte* product_scratch() const { return product_scratch_; }  // null: the plan has none

 private:
  absl::Status GrowArena(int64_t bytes);
  absl::Status BindHostArena(const ArenaLayout& layout);
  absl::Status LayOut(const MemoryPlan& plan, const std::vector<PassJob>& jobs,
                      const std::map<std::string, HostState*>& states);
  absl::Status MakeRings(const MemoryPlan& plan, const std::vector<PassJob>& jobs);
  absl::Status LoadGlobals(const NumericPlan& numeric);
  absl::Status LoadState(const PassJob& job, const HostState& host, const Placement& placement);
  void Refresh(const DeviceState& device, int64_t elements);
  absl::StatusOr<std::byte*> Take(absl::string_view name);
  absl::StatusOr<float*> TakeFloats(const std::string& name, absl::Span<const float> values);

  Backend* backend_;
  const ModelBase& base_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> host_arena_;
  int64_t hold_bytes_ = 0;
  int64_t hold_host_bytes_ = 0;
  std::string signature_;  // of what is laid out; empty: nothing
  std::vector<ArenaBuffer> buffers_;
  std::unique_ptr<SlotRing> ring_;
  std::unique_ptr<HeadStream> head_;
  const std::byte* final_norm_ = nullptr;
  const float* inverse_frequencies_ = nullptr;
  double* sum_squares_ = nullptr;
  std::byte* product_scratch_ = nullptr;
  std::map<std::string, DeviceState> states_;
  std::map<std::string, int64_t> elements_;  // of each state's vectors
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_DEVICE_MEMORY_H_
