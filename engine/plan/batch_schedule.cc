#include "engine/plan/batch_schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/philox.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

// Streams of a seed are told apart by their upper word; this one is the record order's.
constexpr uint64_t kOrderStream = uint64_t{0x6f726472} << 32;  // "ordr"

// Above so many record visits the largest micro-batch of a packed run is bounded, not searched.
constexpr int64_t kExactVisits = int64_t{1} << 24;

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

absl::StatusOr<BatchSchedule> BatchSchedule::Create(std::vector<int32_t> lengths,
                                                    BatchParams params) {
  SOUP_RETURN_IF_ERROR(Check(lengths, params));
  BatchSchedule schedule;
  schedule.lengths_ = std::move(lengths);
  schedule.params_ = params;
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
        absl::StrCat(params.epochs, " epochs of ", n, " records hold no record; ask for at least ",
                     0.5 / static_cast<double>(n), " epochs, or for max_steps"));
  }
  schedule.FindLargest();
  return schedule;
}

BatchSchedule::Range BatchSchedule::RangeOf(int64_t step) const {
  SOUP_CHECK(step >= 1 && step <= steps_);
  Range range;
  range.epoch = (step - 1) / steps_an_epoch_;
  range.begin = (step - 1) % steps_an_epoch_ * params_.batch_size;
  const int64_t records_of_epoch = range.epoch < whole_epochs_ ? records() : last_records_;
  range.end = std::min<int64_t>(range.begin + params_.batch_size, records_of_epoch);
  return range;
}

std::vector<int32_t> BatchSchedule::EpochOrder(int64_t epoch) const {
  std::vector<int32_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), 0);
  if (!params_.shuffle) return order;
  const PhiloxStream draws(params_.seed, kOrderStream | static_cast<uint64_t>(epoch));
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[BoundedFromU64(draws.U64(i), i + 1)]);
  }
  return order;
}

std::vector<MicroBatch> BatchSchedule::Pack(std::vector<int32_t> records) const {
  std::vector<MicroBatch> micro_batches;
  if (params_.packing) {
    std::stable_sort(records.begin(), records.end(), [this](int32_t a, int32_t b) {
      return lengths_[static_cast<size_t>(a)] > lengths_[static_cast<size_t>(b)];
    });
  }
  for (int32_t record : records) {
    const int64_t tokens = lengths_[static_cast<size_t>(record)];
    auto fits = micro_batches.end();
    if (params_.packing) {
      fits = std::find_if(micro_batches.begin(), micro_batches.end(), [&](const MicroBatch& m) {
        return m.tokens + tokens <= params_.micro_batch_tokens;
      });
    }
    if (fits == micro_batches.end()) fits = micro_batches.insert(fits, MicroBatch{});
    fits->records.push_back(record);
    fits->tokens += tokens;
  }
  return micro_batches;
}

std::vector<MicroBatch> BatchSchedule::Step(int64_t step) const {
  const Range range = RangeOf(step);
  const std::vector<int32_t> order = EpochOrder(range.epoch);
  return Pack({order.begin() + range.begin, order.begin() + range.end});
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
    visit(Pack({order.begin() + range.begin, order.begin() + range.end}));
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
