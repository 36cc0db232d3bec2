// Which records make which micro-batch of which step: part of the numeric plan, a pure function of
// its inputs.
//
// Each epoch visits every training record once in an order drawn from (seed, epoch); a step takes
// the next `batch_size` records of that epoch (the last step of an epoch may be smaller). Within a
// step, packing puts records into micro-batches of at most `micro_batch_tokens` by
// first-fit-decreasing (ties: earlier record first); without packing a micro-batch holds one
// record. A fraction of an epoch ends after round(fraction * records) records. Random order:
// Fisher-Yates on Philox4x32-10, so any step can be found without replaying the ones before.
// max_steps cuts the run short; it never lengthens it.
//
// Shuffle window (order_tile > 0): a device works in token counts that are multiples of a tile, and
// a step's few hundred tokens seldom are one. So steps exchange records within windows of about
// kWindowRecords shuffled records: each step in turn, but the window's last, gives one record for a
// later one of a length that brings its tokens to a multiple of the tile; where no single exchange
// does, up to four bring it near. Then the steps of the window take turns drawn anew, so that a
// record's place in the epoch does not depend on its length. Every record still comes once an
// epoch, a step still has batch_size records. It does not look at `packing`: the same records make
// a step packed or not. Left alone are steps of one record, an epoch's smaller last step, and steps
// of more than kMostTiles tiles, whose tails are small by themselves.
//
// Immutable after Create; any thread. Step() keeps the order of the last epoch asked for and the
// last step: steps in turn cost O(batch_size) each, the first of an epoch O(records).
#ifndef SOUP_ENGINE_PLAN_BATCH_SCHEDULE_H_
#define SOUP_ENGINE_PLAN_BATCH_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace soup::engine {

struct BatchParams {
  double epochs = 1.0;
  int64_t max_steps = 0;  // at most; 0: as many as the epochs hold
  int32_t batch_size = 1;
  bool packing = false;
  int64_t micro_batch_tokens = 0;  // capacity of a packed micro-batch; >= the longest record
  uint64_t seed = 0;
  bool shuffle = true;
  int32_t order_tile = 0;  // tokens; 0: no shuffle window
};

// Records of one micro-batch in the order they are packed, and their tokens together.
struct MicroBatch {
  std::vector<int32_t> records;
  int64_t tokens = 0;
};

class BatchSchedule {
 public:
  static constexpr int64_t kWindowRecords = 1024;
  static constexpr int64_t kMostTiles = 64;

  // `lengths`: tokens of each record (>= 1). Errors: InvalidArgument (no records, a record longer
  // than the capacity).
  static absl::StatusOr<BatchSchedule> Create(std::vector<int32_t> lengths, BatchParams params);

  int64_t steps() const { return steps_; }
  int64_t records() const { return static_cast<int64_t>(lengths_.size()); }
  // Micro-batches of step 1 .. steps(). Never empty.
  std::vector<MicroBatch> Step(int64_t step) const;
  // Calls `visit` for every micro-batch of the run in order, or does nothing and answers false when
  // the run is too long to be walked (more than 2^24 record visits).
  bool VisitAll(const std::function<void(const MicroBatch&)>& visit) const;
  // True when `step` is the last of an epoch (or of the run): validation runs after it.
  bool EndsEpoch(int64_t step) const;
  // The largest micro-batch of the run, in tokens, the most micro-batches in a step, and the most
  // records in a micro-batch. Exact; upper bounds for packed runs of more than 2^22 record visits.
  int64_t max_micro_batch_tokens() const { return max_micro_batch_tokens_; }
  int32_t max_micro_batches() const { return max_micro_batches_; }
  int32_t max_records_in_micro_batch() const { return max_records_; }

 private:
  // Records [begin, end) of an epoch's order.
  struct Range {
    int64_t epoch = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };
  BatchSchedule() = default;
  struct Memory;  // what Step() keeps
  Range RangeOf(int64_t step) const;
  int64_t RecordsOfEpoch(int64_t epoch) const;
  std::vector<int32_t> EpochOrder(int64_t epoch) const;
  std::vector<int32_t> StepRecords(const std::vector<int32_t>& order, const Range& range) const;
  std::vector<MicroBatch> Pack(std::vector<int32_t> records) const;
  bool CanWalk() const;
  void VisitSteps(const std::function<void(const std::vector<MicroBatch>&)>& visit) const;
  void FindLargest();
  void BoundLargest();

  std::vector<int32_t> lengths_;
  BatchParams params_;
  int64_t steps_ = 0;
  int64_t steps_an_epoch_ = 0;  // of a whole one
  int64_t whole_epochs_ = 0;
  int64_t last_records_ = 0;  // of the fraction of an epoch after the whole ones
  int64_t max_micro_batch_tokens_ = 0;
  int32_t max_micro_batches_ = 0;
  int32_t max_records_ = 0;
  std::shared_ptr<Memory> memory_;  // shared by copies: they are equal
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_BATCH_SCHEDULE_H_
