// The numeric plan: all that decides bits, chosen from the job's shape and the machine, never from
// a budget; and the micro-batches and pass items that follow from it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/job_plan.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

// Short records are packed into micro-batches of about this many tokens: enough rows for the GEMMs
// to reach their rate and to share the widening of the weights, few enough to keep the memory of
// one work item small.
constexpr int64_t kCpuMicroBatchTokens = 1024;
constexpr int64_t kCpuRowTile = 8;
// Logits of one slice are fp32 [rows, slice]: small enough to stay near the caches.
constexpr int64_t kMaxHeadSliceRows = 2048;
// The same for a GPU: the matrix units want rows in whole tiles and a few thousand of them, and a
// head slice large enough that its product is not a launch's length.
constexpr int64_t kCudaMicroBatchTokens = 4096;
constexpr int64_t kCudaMaxHeadSliceRows = 8192;
constexpr int64_t kCudaRowTile = 64;
constexpr int64_t kCudaHeadDims[] = {16, 32, 64, 96, 128, 256};
// 2: the head's rows in buckets; 3: the shuffle window; 4: q, k, v from an fp32 product
// (QkvFinish); 5: the gate within the products beside it; 6: a window's steps take turns drawn
// anew; 7: attention by warpgroups, adapters within products (sm_90a); 8: CPU threads are no part
// of it
constexpr int kNumericPlanVersion = 8;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The distance between buckets around n: 1/32 of the power of two below, at least `least` (CPU 8,
// CUDA one row tile) and at most 256, so that the mean tail is under 1.1 % of a micro-batch of 256
// tokens or more.
int64_t BucketStep(int64_t n, int64_t least) {
  int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return std::clamp<int64_t>(power / 32, least, 256);
}

std::vector<int64_t> MakeBuckets(int64_t capacity, int64_t least_step) {
  std::vector<int64_t> buckets;
  int64_t n = 0;
  while (n < capacity) {
    n += BucketStep(std::max<int64_t>(n, 1), least_step);
    buckets.push_back(n);
  }
  return buckets;
}

// What the CUDA kernels ask of a model's widths (kernels/cuda).
constexpr int64_t kMaxCpuHeadDim = 256;  // kernels/cpu/context.h

absl::Status CheckCudaShape(const ModelSpec& model) {
  if (std::find(std::begin(kCudaHeadDims), std::end(kCudaHeadDims), model.head_dim) ==
      std::end(kCudaHeadDims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim ", model.head_dim,
                     " has no CUDA attention kernel; supported: 16, 32, 64, 96, 128, 256. Run the "
                     "job on the CPU backend"));
  }
  if (model.hidden % 8 != 0 || model.intermediate % 8 != 0 || model.experts.intermediate % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden size ", model.hidden, ", intermediate size ", model.intermediate,
                     " and that of an expert, ", model.experts.intermediate,
                     ", must be multiples of 8 on CUDA. Run the job on the CPU backend"));
  }
  if (model.rotary() % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("partial_rotary_factor: ", model.rotary(), " dimensions of a head turn; on ",
                     "CUDA it must be a multiple of 16. Run the job on the CPU backend"));
  }
  return absl::OkStatus();
}

// Whether an operand [rows, columns] of an adapter, as two bf16 matrices, leaves room in the
// scratch of products with fp32 activations for a row of the other one (kernels/cuda/gemm_split.h).
bool SplitFits(int64_t rows, int64_t columns, int64_t other_columns) {
  constexpr int64_t kBf16Bytes = 2, kAlignment = 256;
  const int64_t matrix = RoundUp(rows * RoundUp(columns, 8) * kBf16Bytes, kAlignment);
  const int64_t row = RoundUp(other_columns, 8) * kBf16Bytes;
  return 2 * (matrix + row) + 4 * kAlignment <= kProductScratchBytes;
}

// Of every product of an adapter with this rank: x A^T of the linears that read one input (of one
// where each has a mask of its own, or columns that stand apart), and u B^T of each.
bool AdapterProductsFit(const JobShape& shape, int64_t r) {
  const bool unmasked = !shape.lora.dropout || !shape.validation_lengths.empty();
  const bool together = r % 8 == 0 && unmasked;
  int64_t linears[kGroups] = {};
  for (const Module m : shape.lora.targets) {
    const int64_t in = ModuleInput(shape.model, m), out = ModuleOutput(shape.model, m);
    const int64_t rows = r * (together ? ++linears[static_cast<int>(ModuleGroup(m))] : 1);
    if (!SplitFits(rows, in, std::max(in, rows)) || !SplitFits(out, r, std::max(out, r))) {
      return false;
    }
  }
  return true;
}

absl::Status CheckF32Adapters(const JobShape& shape) {
  if (AdapterProductsFit(shape, shape.lora.r)) return absl::OkStatus();
  int64_t most = shape.lora.r / 8 * 8;
  while (most > 8 && !AdapterProductsFit(shape, most)) most -= 8;
  return absl::InvalidArgumentError(absl::StrCat(
      "lora.r is ", shape.lora.r, ": with fp32 activations on CUDA adapters of this model have a ",
      "rank of at most ", most, "; lower it, or use training.precision: bf16"));
}

int64_t Longest(const JobShape& shape) {
  int64_t longest = 0;
  for (int32_t n : shape.lengths) longest = std::max<int64_t>(longest, n);
  for (int32_t n : shape.validation_lengths) longest = std::max<int64_t>(longest, n);
  return longest;
}

constexpr char kOwnAttention[] = "own";
// Written only where sequences share calls: older records have no such key.
constexpr char kBatched[] = "attention_batched";
// Written only where activations are not the backend's own type: older records have no such key.
constexpr char kActivations[] = "activations";
constexpr char kF32Activations[] = "f32";

nlohmann::json AttentionToJson(const AttentionShare& a) {
  const auto range = [](const TokenRange& r) { return std::vector<int64_t>{r.least, r.most}; };
  nlohmann::json j = {{"attention", a.library.empty() ? std::string(kOwnAttention) : a.library},
                      {"attention_forward", range(a.forward)},
                      {"attention_backward", range(a.backward)},
                      {"attention_workspace", a.workspace_limit}};
  if (a.batched != 0) j[kBatched] = a.batched;
  return j;
}

// Throws what the JSON library throws.
AttentionShare AttentionFromJson(const nlohmann::json& j) {
  const auto range = [&j](const char* key) {
    const auto ends = j.at(key).get<std::vector<int64_t>>();
    return TokenRange{ends.at(0), ends.size() == 2 ? ends[1] : int64_t{-1}};
  };
  AttentionShare a;
  a.library = j.at("attention").get<std::string>();
  if (a.library == kOwnAttention) a.library.clear();
  a.forward = range("attention_forward");
  a.backward = range("attention_backward");
  a.workspace_limit = j.at("attention_workspace").get<int64_t>();
  a.batched = j.value(kBatched, int64_t{0});
  return a;
}

// Our own kernels take no range; the backward's share lies within the forward's.
bool Sane(const AttentionShare& a) {
  const TokenRange none;
  const auto ascends = [&none](const TokenRange& r) {
    return r == none || (r.least > 0 && r.most >= r.least);
  };
  if (a.library.empty()) {
    return a.forward == none && a.backward == none && a.workspace_limit == 0 && a.batched == 0;
  }
  if (a.batched < 0 || (a.batched > 0 && !FillsItsClass(a.batched))) return false;
  if (a.forward == none || !ascends(a.forward) || !ascends(a.backward)) return false;
  if (a.backward == none) return a.workspace_limit == 0;
  return a.workspace_limit > 0 && a.forward.holds(a.backward.least) &&
         a.forward.holds(a.backward.most);
}

// Sequences that the library would take, if any: without one the plan does not name it.
AttentionShare ChooseAttention(const JobShape& shape, const MachineProfile& profile,
                               int64_t item_tokens) {
  // Windows, soft caps, and rows that are longer than those of their gradients are our own
  // kernels'.
  if (shape.model.attention_soft_cap != 0 || shape.model.qkv_row() != shape.model.qkv_width()) {
    return AttentionShare();
  }
  for (int64_t l = 0; l < shape.model.layers; ++l) {
    if (shape.model.kind(l).window != 0) return AttentionShare();
  }
  AttentionShare share =
      ChooseAttentionShare(profile.attention_library, profile.device_memory_bytes, item_tokens,
                           AttentionWidthsOf(shape.model));
  const AttentionWidths widths = AttentionWidthsOf(shape.model);
  const auto any = [&](const std::vector<int32_t>& lengths) {
    return std::any_of(lengths.begin(), lengths.end(),
                       [&](int32_t n) { return LibraryTakesForward(n, share.forward); });
  };
  if (item_tokens * widths.heads <= kAttentionLibraryMostRows) {
    share.batched = BatchedAttentionLength(shape.lengths);
  }
  // A call's: as many as there are and as fill an item.
  const auto have = std::count(shape.lengths.begin(), shape.lengths.end(), share.batched);
  int64_t most = 1;
  while (most * 2 <= have && most * 2 * share.batched <= item_tokens) most *= 2;
  if (!LibraryTakesForward(share.batched, share.forward, most)) share.batched = 0;
  if (share.batched == 0 && !any(shape.lengths) && !any(shape.validation_lengths)) {
    return AttentionShare();
  }
  // The limit becomes what the job's own records take under it: other lengths need no room.
  int64_t taken = 0;
  for (const int32_t n : shape.lengths) {
    if (!share.backward.holds(n)) continue;
    taken = std::max(taken, AttentionCallBytes(n, widths, share.workspace_limit));
  }
  for (int64_t count = 2; share.batched > 0 && count <= most; count *= 2) {
    taken =
        std::max(taken, AttentionCallBytes(share.batched, widths, share.workspace_limit, count));
  }
  share.workspace_limit = taken;
  if (taken == 0) share.backward = TokenRange();
  return share;
}

}  // namespace

int64_t NumericPlan::BucketFor(int64_t tokens) const {
  const auto it = std::lower_bound(buckets.begin(), buckets.end(), tokens);
  return it == buckets.end() ? 0 : *it;
}

std::string NumericPlan::ToText() const {
  nlohmann::json j = {{"version", version},
                      {"backend", backend},
                      {"micro_batch_tokens", micro_batch_tokens},
                      {"order_tile", order_tile},
                      {"buckets", buckets},
                      {"head_slice_rows", head_slice_rows},
                      {"max_supervised_rows", max_supervised_rows},
                      {"blas_core", blas_core}};
  if (backend == "cuda") j.update(AttentionToJson(attention));
  if (backend == "cuda" && f32_activations) j[kActivations] = kF32Activations;
  return j.dump();
}

absl::StatusOr<NumericPlan> NumericPlan::FromText(absl::string_view text) {
  const auto j = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!j.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("numeric plan: not a JSON object: ", text));
  }
  static const char* const kCudaKeys[] = {"attention", "attention_forward", "attention_backward",
                                          "attention_workspace"};
  static const char* const kKeys[] = {"version",         "backend",
                                      "buckets",         "micro_batch_tokens",
                                      "head_slice_rows", "max_supervised_rows",
                                      "order_tile",      "blas_core"};
  const bool cuda = j.contains("backend") && j["backend"] == "cuda";
  std::vector<const char*> keys(std::begin(kKeys), std::end(kKeys));
  if (cuda) keys.insert(keys.end(), std::begin(kCudaKeys), std::end(kCudaKeys));
  for (const char* key : keys) {
    if (!j.contains(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("numeric plan: no key ", key, ": submit the job again"));
    }
  }
  const bool activations = cuda && j.contains(kActivations);
  if (activations && j[kActivations] != kF32Activations) {
    return absl::InvalidArgumentError(absl::StrCat("numeric plan: activations of type ",
                                                   j[kActivations].dump(), ", known: \"",
                                                   kF32Activations, "\""));
  }
  const bool batched = cuda && j.contains(kBatched);
  if (j.size() != keys.size() + (activations ? 1 : 0) + (batched ? 1 : 0)) {
    return absl::InvalidArgumentError(absl::StrCat("numeric plan: an unknown key in ", text));
  }
  NumericPlan plan;
  try {
    plan.version = j["version"].get<int32_t>();
    plan.backend = j["backend"].get<std::string>();
    plan.micro_batch_tokens = j["micro_batch_tokens"].get<int64_t>();
    plan.order_tile = j["order_tile"].get<int32_t>();
    plan.buckets = j["buckets"].get<std::vector<int64_t>>();
    plan.head_slice_rows = j["head_slice_rows"].get<int64_t>();
    plan.max_supervised_rows = j["max_supervised_rows"].get<int64_t>();
    plan.blas_core = j["blas_core"].get<std::string>();
    if (cuda) plan.attention = AttentionFromJson(j);
    plan.f32_activations = activations;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("numeric plan: ", e.what()));
  }
  if (plan.version != kNumericPlanVersion) {
    return absl::InvalidArgumentError(absl::StrCat("numeric plan: version ", plan.version,
                                                   "; this build makes and runs version ",
                                                   kNumericPlanVersion, ": submit the job again"));
  }
  const bool ascending = std::is_sorted(plan.buckets.begin(), plan.buckets.end()) &&
                         !plan.buckets.empty() && plan.buckets.front() > 0;
  if (!ascending || plan.head_slice_rows <= 0 || plan.micro_batch_tokens <= 0 ||
      plan.micro_batch_tokens > plan.buckets.back() || plan.max_supervised_rows <= 0 ||
      plan.order_tile < 0 || !Sane(plan.attention) ||
      (plan.f32_activations && !plan.attention.library.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("numeric plan: values out of range: ", text));
  }
  return plan;
}

void SetBuckets(const JobShape& shape, NumericPlan* plan) {
  const bool cuda = plan->backend == "cuda";
  const int64_t longest = std::max<int64_t>(Longest(shape), 1);
  const int64_t packed = cuda ? kCudaMicroBatchTokens : kCpuMicroBatchTokens;
  plan->order_tile = static_cast<int32_t>(cuda ? kCudaRowTile : kCpuRowTile);
  plan->buckets = MakeBuckets(shape.batch.packing ? std::max(longest, packed) : longest,
                              cuda ? kCudaRowTile : kCpuRowTile);
  // A full micro-batch has no tail.
  plan->micro_batch_tokens = plan->buckets.back();
}

std::string OtherMachine(const NumericPlan& plan, const MachineProfile& profile) {
  const auto differ = [](absl::string_view planned, absl::string_view here) {
    return absl::StrCat("it was planned for ", planned, ", and this machine has ", here);
  };
  if (plan.backend != profile.backend) {
    return differ(absl::StrCat("backend ", plan.backend),
                  absl::StrCat("backend ", profile.backend));
  }
  if (plan.blas_core != profile.blas_core) return differ(plan.blas_core, profile.blas_core);
  if (!plan.attention.library.empty() && plan.attention.library != profile.attention_library) {
    return differ(
        absl::StrCat("attention by ", plan.attention.library),
        profile.attention_library.empty() ? "none that works" : profile.attention_library);
  }
  return "";
}

absl::StatusOr<NumericPlan> MakeNumericPlan(const JobShape& shape, const MachineProfile& profile) {
  const bool cuda = profile.backend == "cuda";
  if (!cuda && profile.backend != "cpu") {
    return absl::UnimplementedError(absl::StrCat("backend \"", profile.backend,
                                                 "\" has no numeric plan; supported: cpu, cuda"));
  }
  if (cuda) SOUP_RETURN_IF_ERROR(CheckCudaShape(shape.model));
  if (!cuda && shape.model.head_dim > kMaxCpuHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim ", shape.model.head_dim, " is more than the CPU backend's ", kMaxCpuHeadDim));
  }
  if (shape.lengths.empty()) {
    return absl::InvalidArgumentError("the dataset has no training record");
  }
  SOUP_ASSIGN_OR_RETURN(const PrecisionChoice choice,
                        ChoosePrecision(shape.precision, shape.model, profile.backend));
  const int64_t longest = Longest(shape);
  if (shape.model.max_position > 0 && longest > shape.model.max_position) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a record of ", longest, " tokens is longer than the model's ", shape.model.max_position,
        " positions: lower data.max_length to ", shape.model.max_position, " or less"));
  }
  NumericPlan plan;
  plan.version = kNumericPlanVersion;
  plan.backend = profile.backend;
  SetBuckets(shape, &plan);
  plan.max_supervised_rows = plan.buckets.back();
  plan.head_slice_rows =
      std::min(cuda ? kCudaMaxHeadSliceRows : kMaxHeadSliceRows,
               RoundUp((shape.model.vocab + 3) / 4, cuda ? kCudaRowTile : int64_t{16}));
  plan.blas_core = profile.blas_core;
  plan.f32_activations = cuda && choice.precision == Precision::kFp32;
  if (plan.f32_activations) SOUP_RETURN_IF_ERROR(CheckF32Adapters(shape));
  // The library's attention is bf16.
  if (cuda && !plan.f32_activations) {
    plan.attention = ChooseAttention(shape, profile, plan.micro_batch_tokens);
  }
  return plan;
}

absl::StatusOr<BatchSchedule> MakeTrainSchedule(const JobShape& shape, const NumericPlan& plan) {
  BatchParams params = shape.batch;
  params.micro_batch_tokens = plan.micro_batch_tokens;
  params.order_tile = plan.order_tile;
  return BatchSchedule::Create(shape.lengths, params);
}

absl::StatusOr<BatchSchedule> MakeValidationSchedule(const JobShape& shape,
                                                     const NumericPlan& plan) {
  BatchParams params;
  params.epochs = 1.0;
  params.batch_size = static_cast<int32_t>(shape.validation_lengths.size());
  params.packing = shape.batch.packing;
  params.micro_batch_tokens = plan.micro_batch_tokens;
  params.shuffle = false;
  return BatchSchedule::Create(shape.validation_lengths, params);
}

absl::StatusOr<std::vector<PassItem>> MakePassItems(const std::vector<MicroBatch>& step,
                                                    const NumericPlan& plan, int32_t first,
                                                    int32_t count, bool train) {
  const int32_t total = static_cast<int32_t>(step.size());
  const int32_t end = count < 0 ? total : first + count;
  if (first < 0 || first >= end || end > total) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro-batches [", first, ", ", end, ") do not lie in a step of ", total));
  }
  std::vector<PassItem> items;
  for (int32_t i = first; i < end; ++i) {
    PassItem item;
    item.tokens = plan.BucketFor(step[i].tokens);
    item.sequences = static_cast<int32_t>(step[i].records.size());
    item.train = train;
    if (item.tokens == 0) {
      return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", step[i].tokens,
                                                     " tokens is larger than the largest bucket, ",
                                                     plan.buckets.back()));
    }
    items.push_back(item);
  }
  return items;
}

PassJob LargestPass(const std::string& job_id, const JobShape& shape, const NumericPlan& plan,
                    int32_t micro_batches_a_pass) {
  PassJob job;
  job.job_id = job_id;
  job.lora = shape.lora;
  job.numeric = plan;
  PassItem item;
  int32_t micro_batches = 1;
  const auto look = [&](const absl::StatusOr<BatchSchedule>& schedule) {
    if (!schedule.ok()) return;
    item.tokens = std::max(item.tokens, plan.BucketFor(schedule->max_micro_batch_tokens()));
    item.sequences = std::max(item.sequences, schedule->max_records_in_micro_batch());
    micro_batches = std::max(micro_batches, schedule->max_micro_batches());
  };
  look(MakeTrainSchedule(shape, plan));
  if (!shape.validation_lengths.empty()) look(MakeValidationSchedule(shape, plan));
  job.items.assign(std::max(1, std::min(micro_batches_a_pass, micro_batches)), item);
  return job;
}

}  // namespace soup::engine
