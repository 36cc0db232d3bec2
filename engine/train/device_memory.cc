#include "engine/train/device_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/model/rope_table.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

constexpr int64_t kF32Bytes = 4;
constexpr int64_t kBf16Bytes = 2;
constexpr absl::Duration kWait = absl::Minutes(5);

// The persistent part as text: equal text, equal addresses and contents of the same kind.
std::string Signature(const MemoryPlan& plan) {
  std::string text = absl::StrCat(plan.placement.resident_layers, " resident;");
  for (const BufferPlacement& b : plan.arena.buffers) {
    if (b.bytes == 0 || b.offset + b.bytes > plan.persistent_bytes) continue;
    absl::StrAppend(&text, b.name, "@", b.offset, "+", b.bytes, ";");
  }
  return text;
}

}  // namespace

absl::StatusOr<HostState> HostState::Create(Backend* backend, int64_t elements) {
  HostState state;
  const char* const names[] = {kJobWeights, kJobGradients, kJobFirstMoment, kJobSecondMoment};
  absl::Span<float>* const parts[] = {&state.weights_, &state.gradients_, &state.first_moment_,
                                      &state.second_moment_};
  std::vector<BufferRequest> requests;
  for (const char* name : names) {
    requests.push_back({name, "adapter", elements * kF32Bytes, 0, 0});
  }
  ArenaLayout layout = LayOutArena(requests);
  SOUP_ASSIGN_OR_RETURN(state.arena_, backend->CreateHostArena(layout.bytes));
  SOUP_RETURN_IF_ERROR(state.arena_->Bind(std::move(layout)));
  for (int i = 0; i < 4; ++i) {
    SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer, state.arena_->Take(names[i], elements * kF32Bytes));
    *parts[i] = absl::MakeSpan(buffer.as<float>(), static_cast<size_t>(elements));
    state.buffers_.push_back(std::move(buffer));
  }
  return state;
}

DeviceMemory::~DeviceMemory() { DropAll(); }

absl::Status DeviceMemory::Configure(const MemoryPlan& plan, const std::vector<PassJob>& jobs,
                                     const std::map<std::string, HostState*>& states,
                                     bool always_relayout) {
  SOUP_RETURN_IF_ERROR(BindHostArena(plan.host));
  const std::string signature = Signature(plan);
  const int64_t bytes = std::max(plan.arena_bytes(), hold_bytes_);
  const bool fits = arena_ != nullptr && bytes <= arena_->bytes();
  if (fits && !always_relayout && signature == signature_) return arena_->Bind(plan.arena);
  for (const auto& [id, host] : states) SOUP_RETURN_IF_ERROR(Save(id, host));
  DropAll();
  if (!fits) SOUP_RETURN_IF_ERROR(GrowArena(bytes));
  SOUP_RETURN_IF_ERROR(arena_->Bind(plan.arena));
  const absl::Status laid_out = LayOut(plan, jobs, states);
  if (!laid_out.ok()) {
    DropAll();
    return laid_out;
  }
  signature_ = signature;
  return absl::OkStatus();
}

absl::Status DeviceMemory::GrowArena(int64_t bytes) {
  const bool grows_again = arena_ != nullptr;
  arena_.reset();  // before the next: both may not fit
  if (grows_again && absl::string_view(backend_->name()) == "cpu") {
    // Passes of varying size would make and fault in a new arena each time that one is the largest
    // so far. On the CPU address space that is not touched takes no memory.
    absl::StatusOr<std::unique_ptr<Arena>> arena = backend_->CreateArena(bytes + bytes / 2);
    if (arena.ok()) {
      arena_ = *std::move(arena);
      return absl::OkStatus();
    }
  }
  SOUP_ASSIGN_OR_RETURN(arena_, backend_->CreateArena(bytes));
  return absl::OkStatus();
}

// Grows only: pinning takes time.
absl::Status DeviceMemory::BindHostArena(const ArenaLayout& layout) {
  const int64_t bytes = std::max(layout.bytes, hold_host_bytes_);
  if (bytes == 0 && host_arena_ == nullptr) return absl::OkStatus();
  if (host_arena_ == nullptr || host_arena_->bytes() < bytes) {
    host_arena_.reset();
    SOUP_ASSIGN_OR_RETURN(host_arena_, backend_->CreateHostArena(bytes));
  }
  return host_arena_->Bind(layout);
}

absl::Status DeviceMemory::LayOut(const MemoryPlan& plan, const std::vector<PassJob>& jobs,
                                  const std::map<std::string, HostState*>& states) {
  SOUP_RETURN_IF_ERROR(MakeRings(plan, jobs));
  SOUP_RETURN_IF_ERROR(LoadGlobals(jobs.front().numeric));
  for (const PassJob& job : jobs) {
    SOUP_RETURN_IF_ERROR(LoadState(job, *states.at(job.job_id), plan.placement));
  }
  return backend_->Synchronize(kWait);
}

absl::Status DeviceMemory::MakeRings(const MemoryPlan& plan, const std::vector<PassJob>& jobs) {
  std::vector<std::byte*> slots;
  for (int i = 0; i < plan.placement.slots; ++i) {
    SOUP_ASSIGN_OR_RETURN(std::byte * slot, Take(SlotBuffer(i)));
    slots.push_back(slot);
  }
  const int64_t slab_bytes = MakeLayerLayout(base_.spec, base_.format).bytes;
  std::vector<absl::Span<const std::byte>> slabs;
  for (int64_t l = 0; l < base_.spec.layers; ++l) {
    slabs.push_back(base_.slabs[l].subspan(0, slab_bytes));
  }
  SOUP_ASSIGN_OR_RETURN(ring_,
                        SlotRing::Create(backend_, std::move(slots), slab_bytes, std::move(slabs)));

  HeadStream::Shape shape;
  shape.vocab = base_.spec.vocab;
  shape.hidden = base_.spec.hidden;
  shape.slice_rows = jobs.front().numeric.head_slice_rows;
  const int64_t head_bytes = shape.vocab * shape.hidden * kBf16Bytes;
  const absl::Span<const std::byte> head =
      base_.globals().subspan(MakeGlobalsLayout(base_.spec).head_offset, head_bytes);
  if (plan.placement.head_resident) {
    SOUP_ASSIGN_OR_RETURN(std::byte * resident, Take(kHeadResidentBuffer));
    SOUP_RETURN_IF_ERROR(
        backend_->CopyToDeviceAsync(resident, head.data(), head_bytes, backend_->compute_stream()));
    head_ = HeadStream::Resident(shape, resident);
    return absl::OkStatus();
  }
  std::vector<std::byte*> slices;
  for (int i = 0; i < kHeadRingSlices + plan.placement.head_slices; ++i) {
    SOUP_ASSIGN_OR_RETURN(std::byte * slice, Take(HeadSliceBuffer(i)));
    slices.push_back(slice);
  }
  SOUP_ASSIGN_OR_RETURN(head_, HeadStream::Streamed(backend_, shape, head, std::move(slices)));
  return absl::OkStatus();
}

absl::Status DeviceMemory::LoadGlobals(const NumericPlan& numeric) {
  SOUP_ASSIGN_OR_RETURN(std::byte * norm, Take(kFinalNormBuffer));
  const GlobalsLayout globals = MakeGlobalsLayout(base_.spec);
  SOUP_RETURN_IF_ERROR(
      backend_->CopyToDeviceAsync(norm, base_.globals().data() + globals.final_norm_offset,
                                  base_.spec.hidden * kBf16Bytes, backend_->compute_stream()));
  final_norm_ = norm;
  const std::vector<float> frequencies = RopeTables(base_.spec);
  SOUP_ASSIGN_OR_RETURN(inverse_frequencies_, TakeFloats(kInverseFrequencyBuffer, frequencies));
  SOUP_ASSIGN_OR_RETURN(std::byte * sum, Take(kSumSquaresBuffer));
  sum_squares_ = reinterpret_cast<double*>(sum);
  product_scratch_ = nullptr;
  if (ProductScratchBytes(numeric.act_bytes(), numeric.wt_bytes()) > 0) {
    SOUP_ASSIGN_OR_RETURN(product_scratch_, Take(kProductScratchBuffer));
  }
  // `frequencies` dies here.
  return backend_->Synchronize(kWait);
}

absl::Status DeviceMemory::LoadState(const PassJob& job, const HostState& host,
                                     const Placement& placement) {
  DeviceState& device = states_[job.job_id];
  const auto name = [&](const char* what) { return JobBuffer(job.job_id, what); };
  SOUP_ASSIGN_OR_RETURN(device.weights, TakeFloats(name(kJobWeights), host.weights()));
  const int64_t elements = static_cast<int64_t>(host.weights().size());
  elements_[job.job_id] = elements;
  device.operand = reinterpret_cast<std::byte*>(device.weights);
  device.operand_bytes = job.numeric.act_bytes();
  if (device.operand_bytes != kF32Bytes) {
    SOUP_ASSIGN_OR_RETURN(device.operand, Take(name(kJobOperand)));
    Refresh(device, elements);
  }
  const bool train = std::any_of(job.items.begin(), job.items.end(),
                                 [](const PassItem& item) { return item.train; });
  if (!train) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(device.gradients, TakeFloats(name(kJobGradients), host.gradients()));
  if (placement.optimizer_host) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(device.first_moment,
                        TakeFloats(name(kJobFirstMoment), host.first_moment()));
  SOUP_ASSIGN_OR_RETURN(device.second_moment,
                        TakeFloats(name(kJobSecondMoment), host.second_moment()));
  return absl::OkStatus();
}

void DeviceMemory::Refresh(const DeviceState& device, int64_t elements) {
  if (device.operand_bytes == kF32Bytes) return;  // the weights themselves
  backend_->NarrowToBf16(device.weights, device.operand, elements);
}

void DeviceMemory::RefreshOperand(const std::string& job_id) {
  const auto it = states_.find(job_id);
  if (it != states_.end()) Refresh(it->second, elements_.at(job_id));
}

absl::StatusOr<std::byte*> DeviceMemory::Take(absl::string_view name) {
  SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer, arena_->Take(name));
  buffers_.push_back(std::move(buffer));
  return buffers_.back().data();
}

absl::StatusOr<float*> DeviceMemory::TakeFloats(const std::string& name,
                                                absl::Span<const float> values) {
  const int64_t bytes = static_cast<int64_t>(values.size()) * kF32Bytes;
  SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer, arena_->Take(name, bytes));
  float* device = buffer.as<float>();
  buffers_.push_back(std::move(buffer));
  SOUP_RETURN_IF_ERROR(
      backend_->CopyToDeviceAsync(device, values.data(), bytes, backend_->compute_stream()));
  return device;
}

absl::Status DeviceMemory::Save(const std::string& job_id, HostState* state, bool with_gradients) {
  const auto it = states_.find(job_id);
  // Weights alone are there to be read: the host's are the same.
  if (it == states_.end() || it->second.gradients == nullptr) return absl::OkStatus();
  const DeviceState& device = it->second;
  const auto copy = [&](absl::Span<float> dst, const float* src) {
    if (src == nullptr) return absl::OkStatus();  // it lives on the host
    return backend_->CopyToHostAsync(dst.data(), src, static_cast<int64_t>(dst.size()) * kF32Bytes);
  };
  SOUP_RETURN_IF_ERROR(copy(state->weights(), device.weights));
  if (with_gradients) SOUP_RETURN_IF_ERROR(copy(state->gradients(), device.gradients));
  SOUP_RETURN_IF_ERROR(copy(state->first_moment(), device.first_moment));
  SOUP_RETURN_IF_ERROR(copy(state->second_moment(), device.second_moment));
  return backend_->Synchronize(kWait);
}

void DeviceMemory::Drop(const std::string& job_id) {
  if (states_.erase(job_id) > 0) signature_.clear();
}

void DeviceMemory::DropAll() {
  signature_.clear();
  ring_.reset();
  head_.reset();
  buffers_.clear();
  states_.clear();
}

DeviceState DeviceMemory::state(const std::string& job_id) const {
  const auto it = states_.find(job_id);
  return it == states_.end() ? DeviceState() : it->second;
}

}  // namespace soup::engine
