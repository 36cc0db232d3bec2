#include "engine/plan/pass_forecaster.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

// What a rate counts as when the profile has not measured it: low, so that a plan made blind is
// not a promise.
constexpr double kUnmeasuredFlops = 5e10;
constexpr double kUnmeasuredBytesPerSecond = 5e9;
// Attention runs at about this part of the GEMM rate (kernels/cpu, SmolLM2 shapes).
constexpr double kAttentionShare = 0.25;
// Products with a LoRA rank among their sizes move their operands at this part of a device copy's
// rate, and take so many times a small op's launch at least (measured: soup-bench --breakdown).
constexpr double kLoraShare = 0.6;
constexpr double kLoraLaunches = 1.2;
// Elementwise ops come this near to a device copy's rate.
constexpr double kElementwiseShare = 0.85;
// What a block that comes back from host memory costs the link beside its bytes, of the time that a
// slab takes: it waits for the slab under way, and the next one for it. Not measured by itself:
// fitted to two link-bound steps with boundaries in host memory, of an 8B and of a 70B model, whose
// forecasts were 5 and 4 % short without it (placement_rows_test).
constexpr double kBlockOfSlab = 0.12;
// What a backward visit waits for a boundary that comes back from host memory, of its copy's time,
// where the link has room to spare and the time lines show no wait: it queues behind larger blocks.
// Steps of 4,096, 16,384 and 4 x 4,096 tokens with boundaries there waited 0.07, 0.27 and 0.09 of
// it (soup-bench's stalls on an H200), steps without them nothing of the kind.
constexpr double kBoundaryWait = 0.14;
// A gate as an op of its own reads and writes 3 elements of its width a row forward, 5 backward.
// Within the products beside it those bytes are saved, and at the power limit most of their time
// comes back as a lower clock (fitted: soup-bench's steps on an H200, 8B shapes).
constexpr double kGateForward = 3, kGateBackward = 5;
constexpr double kFusedGateForward = 2, kFusedGateBackward = 4.5;
// Small ops of a forward visit, of a backward visit, and of what is made again.
constexpr double kForwardOpsPerVisit = 6;
constexpr double kBackwardOpsPerVisit = 7;
constexpr double kAttentionAgainOps = 4;
// Products over weights of an NF4 base take this part of the time that the profile's have, which
// are of random bf16: sixteen levels draw less power, and products of so many rows are bound by it
// (measured on an H200: 730 TFLOPS in steps against 686 in the profile at 4,096 rows); those of
// our own (gates within products) do not get faster.
constexpr double kNf4PowerShare = 0.94;
constexpr double kPowerBoundRows = 4096;
// Bytes that the update reads and writes for each element of an adapter: the gradient's norm, AdamW
// on four vectors, the operand copy.
constexpr double kUpdateBytesPerElement = 4 + 28 + 6;

// fp32 activations on CUDA: a product is two of the library's, and its operand is split before, the
// adapters' too; and attention runs on the fp32 units, at a share of the products' rate that hardly
// depends on the length (soup-bench's steps of 512 and 4,096 tokens a sequence on an H200).
constexpr double kSplitProducts = 2.35;
constexpr double kSplitLora = 5.8;
constexpr double kSplitLaunches = 2;  // a product, beyond its one
constexpr double kF32AttentionForward = 1.0 / 55, kF32AttentionBackward = 1.0 / 75;

double Rate(double measured, double unmeasured) { return measured > 0 ? measured : unmeasured; }

double Elements(const GroupShape& shape) {
  return static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
}

// Means over the layers of a group's weights: those that a token's product runs through (of experts
// the chosen ones), and those that a visit makes operands of (every expert).
double SparseShare(const ModelSpec& model) {
  double sparse = 0;
  for (int64_t l = 0; l < model.layers; ++l) sparse += model.kind(l).sparse ? 1 : 0;
  return model.layers > 0 ? sparse / static_cast<double>(model.layers) : 0;
}
double Mean(const ModelSpec& model, Group g, int64_t experts) {
  const double dense = Elements(MakeGroupShape(model, g));
  if (!IsMlpGroup(g) || !model.has_sparse_layers()) return dense;
  const double share = SparseShare(model);
  return (1 - share) * dense +
         share * static_cast<double>(experts) * Elements(MakeExpertShape(model, g));
}
double Elements(const ModelSpec& model, Group g) { return Mean(model, g, model.experts.per_token); }
double OperandElements(const ModelSpec& model, Group g) {
  return Mean(model, g, model.experts.count);
}
// Matrices that a visit dequantises or widens, each by a launch of its own; the most of any layer.
double Matrices(const ModelSpec& model) {
  const double attention = model.fused_projections ? 2 : 4;
  const double dense = model.fused_projections ? 2 : 3;
  return attention +
         (model.has_sparse_layers() ? 3.0 * static_cast<double>(model.experts.count) : dense);
}
// Keys that a query sees of a sequence, mean over the layers; without windows half of it.
double MeanKeys(const ModelSpec& model, double length) {
  double keys = 0;
  for (int64_t l = 0; l < model.layers; ++l) {
    const double window = static_cast<double>(model.kind(l).window);
    keys += window > 0 && window < length ? window - window * window / (2 * length) : length / 2;
  }
  return model.layers > 0 ? keys / static_cast<double>(model.layers) : length / 2;
}

}  // namespace

PassForecaster::PassForecaster(const ModelSpec& model, BaseFormat format,
                               const std::vector<PassJob>& jobs, const MachineProfile& profile)
    : model_(model), profile_(profile) {
  if (!jobs.empty()) {
    act_ = static_cast<double>(jobs.front().numeric.act_bytes());
    wt_ = static_cast<double>(jobs.front().numeric.wt_bytes());
  }
  split_ = act_ > wt_;
  in_place_ = format == BaseFormat::kBf16 && wt_ == 2;
  slab_bytes_ = static_cast<double>(MakeLayerLayout(model, format).bytes);
  head_bytes_ = 2.0 * static_cast<double>(model.vocab * model.hidden);
  for (const PassJob& job : jobs) {
    const int64_t rows = std::max<int64_t>(job.numeric.head_slice_rows, 1);
    head_slices_ = (model.vocab + rows - 1) / rows;
    for (const PassItem& item : job.items) CountItem(job, item);
  }
  CountOnce(jobs);
}

double PassForecaster::Gemm(double flops, double tokens) const {
  const double measured = RateAt(profile_.gemm_rates, static_cast<int64_t>(tokens));
  const double products = split_ ? kSplitProducts : 1;
  return products * flops / Rate(measured, Rate(profile_.gemm_flops, kUnmeasuredFlops));
}

// As kernels::GateProductsTaken (kernels/gate_ops.h).
bool PassForecaster::FusesGate(int64_t tokens) const {
  const bool sizes = model_.hidden % 8 == 0 && model_.intermediate % 8 == 0;
  return !split_ && sizes && profile_.fused_gate_rows > 0 && tokens >= profile_.fused_gate_rows;
}

void PassForecaster::CountItem(const PassJob& job, const PassItem& item) {
  const double t = static_cast<double>(item.tokens);
  const double h = static_cast<double>(model_.hidden);
  const double q = static_cast<double>(model_.q_width());
  const double nq = static_cast<double>(model_.qkv_width());
  const double inner = Elements(model_, Group::kDown) / h;  // of experts: the chosen ones' widths
  const double qkv_o = Elements(model_, Group::kQkv) + Elements(model_, Group::kO);
  const double gate_up = Elements(model_, Group::kGateUp);
  const double all = qkv_o + gate_up + Elements(model_, Group::kDown);
  const double launch = profile_.launch_seconds;
  const double traffic = kElementwiseShare *
                         Rate(profile_.device_copy_bytes_per_second, 2 * kUnmeasuredBytesPerSecond);
  const auto moved = [&](double elements) { return t * elements * act_ / traffic; };
  // Scores and values, half of the square: causal. The backward: 2.5 times that.
  const double length = t / std::max(item.sequences, 1);
  const double attention_flops = 4 * t * MeanKeys(model_, length) * q;
  const double blind = attention_flops / kAttentionShare;
  const auto attention = [&](const std::vector<MeasuredRate>& rates, double times,
                             double f32_share) {
    if (split_) return times * Gemm(attention_flops / (kSplitProducts * f32_share), t);
    const double rate = RateAt(rates, static_cast<int64_t>(length));
    return times * (rate > 0 ? attention_flops / rate : Gemm(blind, t));
  };
  const double attention_forward =
      attention(profile_.attention_forward_rates, 1, kF32AttentionForward);
  const double power = !in_place_ && wt_ == 2 && t >= kPowerBoundRows ? kNf4PowerShare : 1;
  const auto product = [&](double elements, bool own = false) {
    return (own ? 1 : power) * Gemm(2 * t * elements, t);
  };

  tokens_ += t;
  Seconds& s = seconds_;
  const bool fused = FusesGate(item.tokens);
  const auto adapts = [&job](Group g) {
    return std::any_of(job.lora.targets.begin(), job.lora.targets.end(),
                       [g](Module m) { return ModuleGroup(m) == g; });
  };
  const bool fused_up = fused && !adapts(Group::kGateUp);
  const bool fused_down = fused && !adapts(Group::kDown);
  const double gate = fused_up ? kFusedGateForward : kGateForward;
  const double gate_backward = fused_down ? kFusedGateBackward : kGateBackward;
  const double more = split_ ? kSplitLaunches : 0;  // launches of each of four products
  // Two norms, rope, SwiGLU; the middle's copy where it is kept is left out.
  s.forward += product(all - gate_up) + product(gate_up, fused_up) + attention_forward +
               moved(4 * h + 2 * nq + gate * inner) + (kForwardOpsPerVisit + 4 * more) * launch;
  const double head = Gemm(2 * t * h * static_cast<double>(model_.vocab), t);
  s.loss += head + 4 * t * static_cast<double>(model_.vocab) / traffic;
  CountLora(job, t, item.train);
  if (!item.train) return;
  backward_ = true;
  // The logits once more and their products' sums, slice by slice.
  s.loss +=
      head + (6 * static_cast<double>(model_.vocab) + 8 * h * static_cast<double>(head_slices_)) *
                 t / traffic;
  // The norms' backward, rope, SwiGLU's backward.
  const double down = Elements(model_, Group::kDown);
  s.backward += product(all - down) + product(down, fused_down) +
                attention(profile_.attention_backward_rates, 2.5, kF32AttentionBackward) +
                moved(8 * h + 2 * nq + gate_backward * inner) +
                (kBackwardOpsPerVisit + 4 * more) * launch;
  s.attention_again += product(qkv_o) + attention_forward + moved(2 * h + 2 * nq) +
                       (kAttentionAgainOps + 2 * more) * launch;
  // Gate and up come after the product that would have gone on through them.
  s.mlp_again += product(gate_up, fused_up) +
                 moved(2 * h + (kGateBackward - gate_backward) * inner) + more * launch;
  const int64_t tokens = item.tokens, act = static_cast<int64_t>(act_);
  const int64_t wt = static_cast<int64_t>(wt_);
  int64_t attention_rank = 0, mlp_rank = 0;
  for (const Module m : job.lora.targets)
    (IsMlpModule(m) ? mlp_rank : attention_rank) += LowRankColumns(job.lora.r);
  blocks_.boundary += t * h * static_cast<double>(model_.state_planes()) * act_;
  blocks_.attention +=
      static_cast<double>(MakeAttentionBlock(model_, tokens, attention_rank, act).bytes);
  blocks_.mlp += static_cast<double>(MakeMlpBlock(model_, tokens, mlp_rank, act, wt).bytes);
}

void PassForecaster::CountLora(const PassJob& job, double t, bool train) {
  const double rate =
      kLoraShare * Rate(profile_.device_copy_bytes_per_second, 2 * kUnmeasuredBytesPerSecond);
  const double least = kLoraLaunches * profile_.launch_seconds;
  const double slower = split_ ? kSplitLora : 1;
  const auto product = [&](double elements) {
    return slower * std::max(least, t * elements * act_ / rate);
  };
  for (const Group g : {Group::kQkv, Group::kO, Group::kGateUp, Group::kDown}) {
    double in = 0, out = 0;  // the linears of a group read one input
    for (const Module m : job.lora.targets) {
      if (ModuleGroup(m) != g) continue;
      in = static_cast<double>(ModuleInput(model_, m));
      out += static_cast<double>(ModuleOutput(model_, m));
    }
    if (out == 0) continue;
    // u = x A^T, y += u B^T; the latter within rope's pass.
    const double forward = product(in) + (g == Group::kQkv ? 0 : product(2 * out));
    seconds_.forward += forward;
    if (!train) continue;
    // du = dy B, dB, dA, dx = du A below the product.
    seconds_.backward += 2 * product(out) + 2 * product(in);
    (IsMlpGroup(g) ? seconds_.mlp_again : seconds_.attention_again) += forward;
  }
}

// What a visit pays once, however many items it serves, and what the pass pays once.
void PassForecaster::CountOnce(const std::vector<PassJob>& jobs) {
  double all = 0;
  for (int g = 0; g < kGroups; ++g) all += OperandElements(model_, static_cast<Group>(g));
  if (!in_place_) {
    const double rate = Rate(profile_.dequant_bytes_per_second, kUnmeasuredBytesPerSecond) / wt_;
    const double launch = profile_.launch_seconds;
    const double again = OperandElements(model_, Group::kQkv) + OperandElements(model_, Group::kO);
    seconds_.forward += all / rate + Matrices(model_) * launch;
    seconds_.attention_again += again / rate + 4 * launch;
    if (wt_ == 4) seconds_.loss += static_cast<double>(model_.vocab * model_.hidden) / rate;
    if (backward_) seconds_.backward += all / rate + Matrices(model_) * launch;
  }
  const double traffic = Rate(profile_.device_copy_bytes_per_second, 2 * kUnmeasuredBytesPerSecond);
  for (const PassJob& job : jobs) {
    const bool trains = std::any_of(job.items.begin(), job.items.end(),
                                    [](const PassItem& item) { return item.train; });
    if (!trains) continue;
    const double elements = static_cast<double>(AdapterElements(model_, job.lora));
    moment_bytes_ += 8 * elements;
    seconds_.update += elements * kUpdateBytesPerElement / traffic;
  }
}

absl::StatusOr<const VisitSchedule*> PassForecaster::Schedule(Schedules& schedules, int64_t layers,
                                                              int32_t slots, int32_t resident,
                                                              bool backward) {
  const auto key = std::make_pair(slots, resident);
  const auto known = schedules.find(key);
  if (known != schedules.end()) return &known->second;
  VisitScheduleParams params;
  params.layers = static_cast<int32_t>(layers);
  params.slots = slots;
  params.resident_layers = resident;
  params.backward = backward;
  // The second pass of a run: its slots begin as the first has left them.
  SOUP_ASSIGN_OR_RETURN(const VisitSchedule first, MakeVisitSchedule(params));
  params.slot_layer_at_start = first.slot_layer_at_end;
  SOUP_ASSIGN_OR_RETURN(VisitSchedule schedule, MakeVisitSchedule(params));
  return &schedules.emplace(key, std::move(schedule)).first->second;
}

// One placement's time lines.
class PassForecaster::Play {
 public:
  Play(const PassForecaster& f, const Placement& p, const VisitSchedule& layers,
       const VisitSchedule* head)
      : f_(f), p_(p), visits_(layers.visits), layers_(f.model_.layers) {
    const MachineProfile& m = f.profile_;
    const double alone = Rate(m.copy_bytes_per_second, kUnmeasuredBytesPerSecond);
    const double out = Rate(m.copy_to_host_bytes_per_second, alone);
    const double both = Rate(m.copy_both_ways_bytes_per_second, std::min(alone, out));
    in_.rate = alone;
    in_.slowed = std::max(1.0, alone / both);
    out_.rate = out;
    out_.slowed = std::max(1.0, out / both);
    copies_.schedule = &layers;
    copies_.bytes = f.slab_bytes_;
    copies_.filled.assign(visits_.size(), 0);
    head_.schedule = head;
    head_.bytes = f.head_bytes_ / static_cast<double>(f.head_slices_);
    if (head != nullptr) head_.filled.assign(head->visits.size(), 0);
    // On the CPU the copy stream is a thread of the same cores: what it takes, compute lacks.
    if (m.backend == "cpu") shared_ = 1.0 / std::max(m.cpu_threads, 1);
    if (p.boundaries_host) Ring(0, layers_ + 1, kBoundarySlots, f.blocks_.boundary);
    for (const auto& [split, bytes] :
         {std::make_pair(p.attention, f.blocks_.attention), std::make_pair(p.mlp, f.blocks_.mlp)}) {
      if (split.host > 0) Ring(layers_ - split.device - split.host, split.host, kKeptSlots, bytes);
    }
  }

  Forecast Run() {
    Start(copies_, -1);
    if (p_.boundaries_host) Written(rings_.front(), 0);
    const int64_t n = static_cast<int64_t>(visits_.size());
    for (int64_t v = 0; v < layers_; ++v) Forward(v);
    Loss();
    for (int64_t v = layers_; v < n; ++v) Backward(v);
    now_ += f_.seconds_.update;
    if (p_.optimizer_host) MoveMoments();
    told_.step_seconds = now_;
    told_.tokens_per_second = f_.tokens_ / now_;
    return told_;
  }

 private:
  // One direction of the link. Copies queue up; while the other direction works they are slower.
  struct Link {
    double rate = 0;
    double slowed = 1;
    double free = 0;
    double Move(double may_start, double bytes, const Link& other) {
      const double start = std::max(free, may_start);
      const double seconds = bytes / rate;
      const double both = std::clamp(other.free - start, 0.0, seconds);
      return free = start + seconds + both * (slowed - 1);
    }
  };

  // Slabs or head slices under a schedule (engine/device/slot_ring.h).
  struct Copies {
    const VisitSchedule* schedule = nullptr;  // null: nothing is copied
    double bytes = 0;
    size_t next = 0;
    std::vector<double> filled;  // by visit
  };

  // Blocks that go to host memory and come back (engine/device/spill_ring.h).
  struct SpillLine {
    int64_t first = 0;  // layer of block 0
    int64_t blocks = 0;
    int64_t slots = 0;
    double bytes = 0;
    std::vector<double> moved;  // when the last copy of a block ends
  };

  void Ring(int64_t first, int64_t blocks, int64_t slots, double bytes) {
    SpillLine ring;
    ring.first = first;
    ring.blocks = blocks;
    ring.slots = std::min(blocks, slots);
    ring.bytes = bytes;
    ring.moved.assign(static_cast<size_t>(blocks), 0);
    rings_.push_back(std::move(ring));
  }
  bool IsBoundary(const SpillLine& ring) const {
    return p_.boundaries_host && &ring == &rings_.front();
  }

  void WaitFor(double time) {
    if (time <= now_) return;
    told_.stall_seconds += time - now_;
    now_ = time;
  }

  // As SlotRing::StartCopies.
  void Start(Copies& copies, int64_t released) {
    if (copies.schedule == nullptr) return;
    const std::vector<Visit>& visits = copies.schedule->visits;
    for (; copies.next < visits.size(); ++copies.next) {
      const Visit& visit = visits[copies.next];
      if (!visit.copy) continue;
      if (visit.copy_after_visit > released) return;
      copies.filled[copies.next] = in_.Move(now_, copies.bytes, out_);
      told_.copy_bytes += static_cast<int64_t>(copies.bytes);
      told_.copy_seconds += copies.bytes / in_.rate;
    }
  }
  void Acquire(const Copies& copies, int64_t v) {
    if (copies.schedule == nullptr || !copies.schedule->visits[v].copy) return;
    WaitFor(copies.filled[v]);
    now_ += copies.bytes / in_.rate * shared_;
  }

  // Blocks of a layer in a ring: written in its forward visit, read in its backward visit. A
  // boundary's block l + 1 is written by layer l.
  void Write(const SpillLine& ring, int64_t block) {
    if (block >= ring.slots && block < ring.blocks) WaitFor(ring.moved[block - ring.slots]);
  }
  void Written(SpillLine& ring, int64_t block) {
    if (block < 0 || block >= ring.blocks - ring.slots) return;
    ring.moved[block] = out_.Move(now_, ring.bytes, in_);
    told_.offload_bytes += static_cast<int64_t>(ring.bytes);
  }
  void Read(const SpillLine& ring, int64_t block) {
    if (block < 0 || block >= ring.blocks - ring.slots) return;
    WaitFor(ring.moved[block]);
    if (IsBoundary(ring)) WaitFor(now_ + kBoundaryWait * ring.bytes / in_.rate);
  }
  void Done(SpillLine& ring, int64_t block) {
    const int64_t next = block - ring.slots;
    if (next < 0 || block >= ring.blocks) return;
    ring.moved[next] = in_.Move(std::max(now_, ring.moved[next]),
                                ring.bytes + kBlockOfSlab * f_.slab_bytes_, out_);
    told_.offload_bytes += static_cast<int64_t>(ring.bytes);
  }

  void Forward(int64_t v) {
    const int64_t layer = visits_[v].layer;
    Acquire(copies_, v);
    // The head's first slices are on their way while the last layer computes.
    if (layer + 1 == layers_) Start(head_, -1);
    for (const SpillLine& ring : rings_) Write(ring, layer - ring.first + IsBoundary(ring));
    now_ += f_.seconds_.forward;
    Start(copies_, v);
    for (SpillLine& ring : rings_) Written(ring, layer - ring.first + IsBoundary(ring));
  }

  void Loss() {
    for (int64_t i = 0; i < f_.head_slices_; ++i) {
      Acquire(head_, i);
      now_ += f_.seconds_.loss / static_cast<double>(f_.head_slices_);
      Start(head_, i);
    }
    if (p_.boundaries_host && f_.backward_) Done(rings_.front(), layers_);
  }

  void Backward(int64_t v) {
    const int64_t layer = visits_[v].layer;
    Acquire(copies_, v);
    for (const SpillLine& ring : rings_) Read(ring, layer - ring.first);
    now_ += f_.seconds_.backward;
    if (HomeOf(p_.attention, layers_, layer) == Home::kRecompute) {
      now_ += f_.seconds_.attention_again;
    }
    if (HomeOf(p_.mlp, layers_, layer) == Home::kRecompute) now_ += f_.seconds_.mlp_again;
    Start(copies_, v);
    for (SpillLine& ring : rings_) Done(ring, layer - ring.first);
  }

  // Chunks pass through one stream: in and out take turns, and nothing else goes on.
  void MoveMoments() {
    const double seconds = f_.moment_bytes_ * (1 / in_.rate + 1 / out_.rate);
    now_ += seconds;
    told_.stall_seconds += seconds;
    told_.offload_bytes += static_cast<int64_t>(2 * f_.moment_bytes_);
  }

  const PassForecaster& f_;
  const Placement& p_;
  const std::vector<Visit>& visits_;
  const int64_t layers_;
  double shared_ = 0;
  double now_ = 0;
  Link in_;
  Link out_;
  Copies copies_;
  Copies head_;
  std::vector<SpillLine> rings_;
  Forecast told_;
};

absl::StatusOr<Forecast> PassForecaster::Run(const Placement& placement) {
  if (tokens_ == 0) return absl::InvalidArgumentError("a pass needs at least one work item");
  SOUP_ASSIGN_OR_RETURN(const VisitSchedule* layers,
                        Schedule(layer_schedules_, model_.layers, placement.slots,
                                 placement.resident_layers, backward_));
  const VisitSchedule* head = nullptr;
  if (!placement.head_resident) {
    const int32_t slots = static_cast<int32_t>(
        std::min<int64_t>(head_slices_, kHeadRingSlices + placement.head_slices));
    const int32_t resident = slots == head_slices_ ? slots : placement.head_slices;
    SOUP_ASSIGN_OR_RETURN(head, Schedule(head_schedules_, head_slices_, slots, resident,
                                         /*backward=*/false));
  }
  return Play(*this, placement, *layers, head).Run();
}

}  // namespace soup::engine
