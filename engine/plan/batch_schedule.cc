#include "engine/plan/batch_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/base/log.h"
#include "engine/base/philox.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

// Streams of a seed are told apart by their upper word; these are the record order's.
constexpr uint64_t kOrderStream = uint64_t{0x6f726472} << 32;  // "ordr"
constexpr uint64_t kTurnStream = uint64_t{0x7475726e} << 32;   // "turn": the steps of a window

// Above so many record visits the largest micro-batch of a packed run is bounded, not searched.
constexpr int64_t kExactVisits = int64_t{1} << 22;

constexpr int kMostExchanges = 4;  // of a step that no single one brings to a multiple

// Exchanges records within one window of an epoch's order (batch_schedule.h).
class Window {
 public:
  // `records`: the window's part of the order, whole steps, changed in place.
  Window(absl::Span<int32_t> records, const std::vector<int32_t>& lengths, int64_t batch_size,
         int64_t tile)
      : records_(records), lengths_(lengths), batch_size_(batch_size), tile_(tile) {}

  void Arrange() {
    const auto size = static_cast<int64_t>(records_.size());
    for (int64_t i = batch_size_; i < size; ++i) later_[LengthAt(i)].insert(i);
    for (int64_t begin = 0; begin + batch_size_ < size; begin += batch_size_) {
      ArrangeStep(begin);
      for (int64_t i = begin + batch_size_; i < begin + 2 * batch_size_; ++i) Forget(i);
    }
  }
  // The first steps have found what they wanted, the last have what was left: they take turns drawn
  // anew.
  void Shuffle(const PhiloxStream& draws, int64_t first_draw) {
    for (int64_t k = static_cast<int64_t>(records_.size()) / batch_size_ - 1; k > 0; --k) {
      const uint64_t draw = draws.U64(static_cast<uint64_t>(first_draw + k));
      const auto j = static_cast<int64_t>(BoundedFromU64(draw, static_cast<uint64_t>(k) + 1));
      if (j == k) continue;
      const auto step = records_.begin() + k * batch_size_;
      std::swap_ranges(step, step + batch_size_, records_.begin() + j * batch_size_);
    }
  }

 private:
  int32_t LengthAt(int64_t i) const {
    return lengths_[static_cast<size_t>(records_[static_cast<size_t>(i)])];
  }
  void Forget(int64_t i) {
    const auto it = later_.find(LengthAt(i));
    it->second.erase(i);
    if (it->second.empty()) later_.erase(it);
  }

  void ArrangeStep(int64_t begin) {
    int64_t tokens = 0;
    std::map<int32_t, int64_t> here;  // a place of each length of the step
    for (int64_t i = begin; i < begin + batch_size_; ++i) {
      tokens += LengthAt(i);
      here.emplace(LengthAt(i), i);
    }
    const int64_t over = tokens % tile_;
    if (over == 0 || tokens > BatchSchedule::kMostTiles * tile_) return;
    // To the nearer multiple, or to the other.
    int64_t missing = tile_ - over;
    const bool up_first = missing <= over;
    if (Exchange(&here, up_first ? missing : -over)) return;
    if (Exchange(&here, up_first ? -over : missing)) return;
    // Lengths that differ by less than that: as far up as a few exchanges bring it.
    for (int exchange = 0; exchange < kMostExchanges && missing > 0; ++exchange) {
      int64_t change = missing;
      while (change > 0 && !Exchange(&here, change)) --change;
      if (change == 0) return;
      missing -= change;
    }
  }

  // Swaps a record of the step for a later one that is `change` tokens longer. `here` loses it.
  bool Exchange(std::map<int32_t, int64_t>* here, int64_t change) {
    for (auto it = here->begin(); it != here->end(); ++it) {
      const auto [length, i] = *it;
      const int64_t wanted = length + change;
      if (wanted < 1 || wanted > INT32_MAX) continue;
      const auto found = later_.find(static_cast<int32_t>(wanted));
      if (found == later_.end()) continue;
      const int64_t j = *found->second.begin();
      Forget(j);
      std::swap(records_[static_cast<size_t>(i)], records_[static_cast<size_t>(j)]);
      later_[LengthAt(j)].insert(j);
      here->erase(it);
      return true;
    }
    return false;
  }

  absl::Span<int32_t> records_;
  const std::vector<int32_t>& lengths_;
  const int64_t batch_size_;
  const int64_t tile_;
  std::map<int32_t, std::set<int64_t>> later_;  // places of later steps, by length
};

// Bins of one capacity, and the first that has room, in O(log bins).
class FirstFit {
 public:
  FirstFit(size_t most_bins, int64_t capacity) {
    while (leaves_ < most_bins) leaves_ *= 2;
    room_.assign(2 * leaves_, capacity);  // of the roomiest bin below a node
  }
  // The first bin with room for `tokens`, which are put into it. There is one: bins suffice for one
  // record each.
  size_t Put(int64_t tokens) {
    size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= tokens ? 2 * node : 2 * node + 1;
    const size_t bin = node - leaves_;
    room_[node] -= tokens;
    while (node > 1) {
      node /= 2;
      room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    }
    return bin;
  }

 private:
  size_t leaves_ = 1;
  std::vector<int64_t> room_;
};

absl::Status Check(const std::vector<int32_t>& lengths, const BatchParams& params) {
  if (lengths.empty()) {
    return absl::InvalidArgumentError("there are no training records to make batches of");
  }
  if (params.batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size is ", params.batch_size, "; it must be at least 1"));
  }
  if (!std::isfinite(params.epochs) || params.epochs <= 0 || params.epochs > 1e6) {
    return absl::InvalidArgumentError(
        absl::StrCat("epochs is ", params.epochs, "; it must be above 0 and at most 1e6"));
  }
  if (params.order_tile < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("order_tile is ", params.order_tile, "; it must be 0 (no window) or more"));
  }
  if (params.max_steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_steps is ", params.max_steps, "; it must be 0 (no limit) or more"));
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1) {
      return absl::InvalidArgumentError(absl::StrCat("record ", i, " has ", lengths[i], " tokens"));
    }
    if (params.packing && lengths[i] > params.micro_batch_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", i, " has ", lengths[i], " tokens, more than the ",
                       params.micro_batch_tokens, " of a micro-batch"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct BatchSchedule::Memory {
  absl::Mutex mu;
  int64_t epoch ABSL_GUARDED_BY(mu) = -1;
  std::vector<int32_t> order ABSL_GUARDED_BY(mu);
  int64_t step ABSL_GUARDED_BY(mu) = 0;
  std::vector<MicroBatch> micro_batches ABSL_GUARDED_BY(mu);
};

absl::StatusOr<BatchSchedule> BatchSchedule::Create(std::vector<int32_t> lengths,
                                                    BatchParams params) {
  SOUP_RETURN_IF_ERROR(Check(lengths, params));
  BatchSchedule schedule;
  schedule.lengths_ = std::move(lengths);
  schedule.params_ = params;
  schedule.memory_ = std::make_shared<Memory>();
  const int64_t n = schedule.records();
  const int64_t batch = params.batch_size;
  schedule.steps_an_epoch_ = (n + batch - 1) / batch;
  const double whole = std::floor(params.epochs);
  schedule.whole_epochs_ = static_cast<int64_t>(whole);
  schedule.last_records_ =
      static_cast<int64_t>(std::llround((params.epochs - whole) * static_cast<double>(n)));
  if (schedule.last_records_ == n) {
    ++schedule.whole_epochs_;
    schedule.last_records_ = 0;
  }
  schedule.steps_ = schedule.whole_epochs_ * schedule.steps_an_epoch_ +
                    (schedule.last_records_ + batch - 1) / batch;
  if (params.max_steps > 0) schedule.steps_ = std::min(schedule.steps_, params.max_steps);
  if (schedule.steps_ < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(params.epochs, " epochs of ", n, " records hold no record; ask for ",
                     1 / static_cast<double>(n), " epochs (one record) or more"));
  }
  schedule.FindLargest();
  return schedule;
}

BatchSchedule::Range BatchSchedule::RangeOf(int64_t step) const {
  SOUP_CHECK(step >= 1 && step <= steps_);
  Range range;
  range.epoch = (step - 1) / steps_an_epoch_;
  range.begin = (step - 1) % steps_an_epoch_ * params_.batch_size;
  range.end = std::min<int64_t>(range.begin + params_.batch_size, RecordsOfEpoch(range.epoch));
  return range;
}

int64_t BatchSchedule::RecordsOfEpoch(int64_t epoch) const {
  return epoch < whole_epochs_ ? records() : last_records_;
}

std::vector<int32_t> BatchSchedule::EpochOrder(int64_t epoch) const {
  std::vector<int32_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), 0);
  if (!params_.shuffle) return order;
  const PhiloxStream draws(params_.seed, kOrderStream | static_cast<uint64_t>(epoch));
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[BoundedFromU64(draws.U64(i), i + 1)]);
  }
  const int64_t batch = params_.batch_size;
  // Steps of one record have none to exchange that would not be another step.
  if (params_.order_tile <= 0 || batch == 1) return order;
  const PhiloxStream turns(params_.seed, kTurnStream | static_cast<uint64_t>(epoch));
  const int64_t window = std::max<int64_t>(1, kWindowRecords / batch) * batch;
  const int64_t end = RecordsOfEpoch(epoch) / batch * batch;  // a smaller last step is left alone
  for (int64_t begin = 0; begin < end; begin += window) {
    const int64_t size = std::min(window, end - begin);
    Window steps(
        absl::MakeSpan(order).subspan(static_cast<size_t>(begin), static_cast<size_t>(size)),
        lengths_, batch, params_.order_tile);
    steps.Arrange();
    steps.Shuffle(turns, begin / batch);
  }
  return order;
}

std::vector<int32_t> BatchSchedule::StepRecords(const std::vector<int32_t>& order,
                                                const Range& range) const {
  return {order.begin() + range.begin, order.begin() + range.end};
}

std::vector<MicroBatch> BatchSchedule::Pack(std::vector<int32_t> records) const {
  std::vector<MicroBatch> micro_batches;
  if (!params_.packing) {
    for (int32_t record : records)
      micro_batches.push_back({{record}, lengths_[static_cast<size_t>(record)]});
    return micro_batches;
  }
  std::stable_sort(records.begin(), records.end(), [this](int32_t a, int32_t b) {
    return lengths_[static_cast<size_t>(a)] > lengths_[static_cast<size_t>(b)];
  });
  FirstFit bins(records.size(), params_.micro_batch_tokens);
  for (int32_t record : records) {
    const int64_t tokens = lengths_[static_cast<size_t>(record)];
    const size_t bin = bins.Put(tokens);
    if (bin == micro_batches.size()) micro_batches.emplace_back();
    micro_batches[bin].records.push_back(record);
    micro_batches[bin].tokens += tokens;
  }
  return micro_batches;
}

std::vector<MicroBatch> BatchSchedule::Step(int64_t step) const {
  const Range range = RangeOf(step);
  Memory& memory = *memory_;
  absl::MutexLock lock(&memory.mu);
  if (memory.step == step) return memory.micro_batches;
  if (memory.epoch != range.epoch) {
    memory.order = EpochOrder(range.epoch);
    memory.epoch = range.epoch;
  }
  memory.micro_batches = Pack(StepRecords(memory.order, range));
  memory.step = step;
  return memory.micro_batches;
}

bool BatchSchedule::EndsEpoch(int64_t step) const {
  SOUP_CHECK(step >= 1 && step <= steps_);
  return step == steps_ || step % steps_an_epoch_ == 0;
}

void BatchSchedule::FindLargest() {
  const bool every_record = whole_epochs_ > 0 && steps_ >= steps_an_epoch_;
  if (!params_.packing && every_record) {
    max_micro_batch_tokens_ = *std::max_element(lengths_.begin(), lengths_.end());
    max_micro_batches_ = static_cast<int32_t>(std::min<int64_t>(params_.batch_size, records()));
    max_records_ = 1;
    return;
  }
  if (params_.packing && !CanWalk()) return BoundLargest();
  VisitSteps([this](const std::vector<MicroBatch>& micro_batches) {
    max_micro_batches_ = std::max(max_micro_batches_, static_cast<int32_t>(micro_batches.size()));
    for (const MicroBatch& m : micro_batches) {
      max_micro_batch_tokens_ = std::max(max_micro_batch_tokens_, m.tokens);
      max_records_ = std::max(max_records_, static_cast<int32_t>(m.records.size()));
    }
  });
}

bool BatchSchedule::CanWalk() const { return steps_ <= kExactVisits / params_.batch_size; }

void BatchSchedule::VisitSteps(
    const std::function<void(const std::vector<MicroBatch>&)>& visit) const {
  std::vector<int32_t> order;
  int64_t order_epoch = -1;
  for (int64_t step = 1; step <= steps_; ++step) {
    const Range range = RangeOf(step);
    if (range.epoch != order_epoch) {
      order = EpochOrder(range.epoch);
      order_epoch = range.epoch;
    }
    visit(Pack(StepRecords(order, range)));
  }
}

bool BatchSchedule::VisitAll(const std::function<void(const MicroBatch&)>& visit) const {
  if (!CanWalk()) return false;
  VisitSteps([&visit](const std::vector<MicroBatch>& step) {
    for (const MicroBatch& micro_batch : step) visit(micro_batch);
  });
  return true;
}

void BatchSchedule::BoundLargest() {
  const int64_t batch = std::min<int64_t>(params_.batch_size, records());
  std::vector<int32_t> sorted = lengths_;
  std::sort(sorted.begin(), sorted.end());
  // First fit leaves at most one micro-batch half empty or more.
  const int64_t most_tokens = std::accumulate(sorted.end() - batch, sorted.end(), int64_t{0});
  max_micro_batches_ =
      static_cast<int32_t>(std::min(batch, 2 * most_tokens / params_.micro_batch_tokens + 1));
  int64_t tokens = 0;
  int32_t most_records = 0;
  while (most_records < batch &&
         tokens + sorted[static_cast<size_t>(most_records)] <= params_.micro_batch_tokens) {
    tokens += sorted[static_cast<size_t>(most_records++)];
  }
  max_records_ = most_records;
  max_micro_batch_tokens_ = std::min(params_.micro_batch_tokens, most_tokens);
}

}  // namespace soup::engine
