// Properties of batch schedules, and the known answers of Philox that they rest on.
#include "engine/plan/batch_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/plan/job_plan.h"
#include "tests/engine/plan/quickstart_lengths.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PhiloxTest, KnownAnswersOfRandom123) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ::testing::ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  const uint32_t f = 0xffffffffu;
  EXPECT_THAT(Philox4x32({f, f, f, f}, {f, f}),
              ::testing::ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      Philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      ::testing::ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

std::vector<int32_t> RecordsOf(const std::vector<MicroBatch>& step) {
  std::vector<int32_t> records;
  for (const MicroBatch& m : step)
    records.insert(records.end(), m.records.begin(), m.records.end());
  return records;
}

// First fit by decreasing length, as plainly as it can be said.
std::vector<std::vector<int32_t>> PlainFfd(std::vector<int32_t> records,
                                           const std::vector<int32_t>& lengths, int64_t capacity) {
  std::stable_sort(records.begin(), records.end(), [&](int32_t a, int32_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::vector<std::vector<int32_t>> bins;
  std::vector<int64_t> room;
  for (int32_t r : records) {
    size_t bin = 0;
    while (bin < bins.size() && room[bin] < lengths[static_cast<size_t>(r)]) ++bin;
    if (bin == bins.size()) {
      bins.emplace_back();
      room.push_back(capacity);
    }
    bins[bin].push_back(r);
    room[bin] -= lengths[static_cast<size_t>(r)];
  }
  return bins;
}

TEST(BatchScheduleTest, EveryRecordOnceAnEpochInBatchesOfTheRightSize) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> lengths;
    const int64_t n = rng.Int(1, 60);
    for (int64_t i = 0; i < n; ++i) lengths.push_back(static_cast<int32_t>(rng.Int(1, 50)));
    BatchParams p;
    p.batch_size = static_cast<int32_t>(rng.Int(1, 70));
    p.packing = rng.Chance(0.5);
    p.micro_batch_tokens = rng.Int(50, 200);
    p.seed = static_cast<uint64_t>(rng.Int(0, 1 << 30));
    p.shuffle = rng.Chance(0.8);
    p.order_tile = static_cast<int32_t>(rng.Int(0, 16));
    const int64_t whole = rng.Int(0, 3);
    const double fraction = rng.Chance(0.5) ? rng.Real(0.01, 0.99) : 0.0;
    p.epochs = static_cast<double>(whole) + fraction;
    const int64_t rest = std::llround((p.epochs - std::floor(p.epochs)) * static_cast<double>(n));
    const auto s = BatchSchedule::Create(lengths, p);
    if (whole == 0 && rest == 0) {
      EXPECT_EQ(s.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(s.ok()) << s.status();

    int64_t step = 0, most_tokens = 0;
    size_t most_items = 0, most_records = 0;
    for (int64_t epoch = 0; epoch < whole + (rest > 0 ? 1 : 0); ++epoch) {
      const int64_t records = epoch < whole ? n : rest;
      std::multiset<int32_t> seen;
      while (static_cast<int64_t>(seen.size()) < records) {
        ASSERT_LT(step, s->steps());
        const auto micro_batches = s->Step(++step);
        ASSERT_FALSE(micro_batches.empty());
        const auto of_step = RecordsOf(micro_batches);
        EXPECT_EQ(static_cast<int64_t>(of_step.size()),
                  std::min<int64_t>(p.batch_size, records - static_cast<int64_t>(seen.size())));
        seen.insert(of_step.begin(), of_step.end());
        for (const MicroBatch& m : micro_batches) {
          int64_t tokens = 0;
          for (int32_t r : m.records) tokens += lengths[static_cast<size_t>(r)];
          EXPECT_EQ(tokens, m.tokens);
          if (p.packing) {
            EXPECT_LE(tokens, p.micro_batch_tokens);
          } else {
            EXPECT_EQ(m.records.size(), 1u);
          }
          most_tokens = std::max(most_tokens, tokens);
          most_records = std::max(most_records, m.records.size());
        }
        most_items = std::max(most_items, micro_batches.size());
        EXPECT_EQ(s->EndsEpoch(step), static_cast<int64_t>(seen.size()) == records);
      }
      const std::set<int32_t> distinct(seen.begin(), seen.end());
      EXPECT_EQ(static_cast<int64_t>(distinct.size()), records) << "a record came twice";
    }
    EXPECT_EQ(step, s->steps());
    EXPECT_EQ(s->max_micro_batch_tokens(), most_tokens);
    EXPECT_EQ(s->max_micro_batches(), static_cast<int32_t>(most_items));
    EXPECT_EQ(s->max_records_in_micro_batch(), static_cast<int32_t>(most_records));
  }
}

TEST(BatchScheduleTest, PackingIsFirstFitDecreasing) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 100; ++round) {
    std::vector<int32_t> lengths;
    for (int64_t i = rng.Int(1, 40); i > 0; --i) {
      lengths.push_back(static_cast<int32_t>(rng.Int(1, 12)));  // many ties
    }
    BatchParams p;
    p.batch_size = static_cast<int32_t>(lengths.size());
    p.packing = true;
    p.micro_batch_tokens = rng.Int(12, 40);
    p.shuffle = false;
    const auto s = BatchSchedule::Create(lengths, p);
    ASSERT_TRUE(s.ok());
    std::vector<int32_t> records;
    for (size_t i = 0; i < lengths.size(); ++i) records.push_back(static_cast<int32_t>(i));
    std::vector<std::vector<int32_t>> got;
    for (const MicroBatch& m : s->Step(1)) got.push_back(m.records);
    EXPECT_EQ(got, PlainFfd(records, lengths, p.micro_batch_tokens));
  }
}

TEST(BatchScheduleTest, AStepIsAFunctionOfSeedAndStep) {
  const std::vector<int32_t> lengths(50, 7);
  BatchParams p;
  p.epochs = 3;
  p.batch_size = 8;
  p.seed = 42;
  const auto one = BatchSchedule::Create(lengths, p);
  const auto two = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(one.ok() && two.ok());
  // Backwards on one, forwards on the other: no state in between.
  for (int64_t step = one->steps(); step >= 1; --step) RecordsOf(one->Step(step));
  for (int64_t step = 1; step <= one->steps(); ++step) {
    EXPECT_EQ(RecordsOf(one->Step(step)), RecordsOf(two->Step(step)));
  }
  // A longer run of the same seed begins with the same steps.
  p.epochs = 7.5;
  const auto longer = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(longer.ok());
  for (int64_t step = 1; step <= one->steps(); ++step) {
    EXPECT_EQ(RecordsOf(one->Step(step)), RecordsOf(longer->Step(step)));
  }
  // Epochs and seeds differ.
  EXPECT_NE(RecordsOf(one->Step(1)), RecordsOf(one->Step(8)));
  p.seed = 43;
  const auto other = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(RecordsOf(one->Step(1)), RecordsOf(other->Step(1)));
}

TEST(BatchScheduleTest, TheOrderIsFrozen) {
  // A change here changes the bits of every job in flight: version the numeric plan instead.
  BatchParams p;
  p.batch_size = 10;
  p.seed = 42;
  const auto s = BatchSchedule::Create(std::vector<int32_t>(10, 1), p);
  ASSERT_TRUE(s.ok());
  EXPECT_THAT(RecordsOf(s->Step(1)), ::testing::ElementsAre(8, 5, 7, 2, 9, 6, 1, 4, 0, 3));
}

TEST(BatchScheduleTest, EveryPlaceIsReachedByEveryRecord) {
  // Chi-square of 6 records over 6 places, 6000 epochs: 30 degrees of freedom, 99.99 % below 66.
  constexpr int kRecords = 6, kEpochs = 6000;
  BatchParams p;
  p.batch_size = kRecords;
  p.epochs = kEpochs;
  p.seed = 7;
  const auto s = BatchSchedule::Create(std::vector<int32_t>(kRecords, 1), p);
  ASSERT_TRUE(s.ok());
  std::vector<double> counts(kRecords * kRecords, 0);
  for (int64_t step = 1; step <= s->steps(); ++step) {
    const auto records = RecordsOf(s->Step(step));
    for (int place = 0; place < kRecords; ++place) {
      counts[static_cast<size_t>(place * kRecords + records[static_cast<size_t>(place)])] += 1;
    }
  }
  double chi2 = 0;
  constexpr double kMean = double{kEpochs} / kRecords;
  for (double c : counts) chi2 += (c - kMean) * (c - kMean) / kMean;
  EXPECT_LT(chi2, 66);
  EXPECT_GT(chi2, 6) << "too even to be random";
}

TEST(BatchScheduleTest, MaxStepsCutsTheRun) {
  BatchParams p;
  p.epochs = 2;
  p.batch_size = 4;
  p.max_steps = 5;
  const std::vector<int32_t> lengths(16, 3);
  const auto s = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->steps(), 5);
  EXPECT_TRUE(s->EndsEpoch(4));
  EXPECT_FALSE(s->EndsEpoch(3));
  EXPECT_TRUE(s->EndsEpoch(5)) << "the end of the run";
  p.max_steps = 100;
  const auto all = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->steps(), 8);
}

// What becomes of a run's rows on a device: of each bucket's rows, those after the last record.
struct Rows {
  int64_t tokens = 0;
  int64_t tails = 0;
  double TailPart() const {
    return static_cast<double>(tails) / static_cast<double>(tokens + tails);
  }
};

Rows RowsOf(const BatchSchedule& schedule, const NumericPlan& plan,
            const std::vector<int32_t>& lengths) {
  Rows rows;
  for (int64_t step = 1; step <= schedule.steps(); ++step) {
    for (const MicroBatch& m : schedule.Step(step)) {
      int64_t tokens = 0;
      for (int32_t r : m.records) tokens += lengths[static_cast<size_t>(r)];
      EXPECT_EQ(tokens, m.tokens) << "padding between records";
      rows.tokens += tokens;
      rows.tails += plan.BucketFor(m.tokens) - m.tokens;
    }
  }
  return rows;
}

JobShape ShapeOf(std::vector<int32_t> lengths, int32_t batch_size, bool packing = true) {
  JobShape shape;
  shape.lengths = std::move(lengths);
  shape.batch.batch_size = batch_size;
  shape.batch.packing = packing;
  shape.batch.seed = 42;
  return shape;
}

double TailPart(const JobShape& shape, const std::string& backend) {
  NumericPlan plan;
  plan.backend = backend;
  SetBuckets(shape, &plan);
  const auto schedule = MakeTrainSchedule(shape, plan);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return schedule.ok() ? RowsOf(*schedule, plan, shape.lengths).TailPart() : 1;
}

TEST(PackingTest, QuickstartTailsAreUnderTwoPercent) {
  const std::vector<int32_t> lengths(std::begin(kQuickstartLengths), std::end(kQuickstartLengths));
  JobShape shape = ShapeOf(lengths, 16);
  shape.batch.epochs = 2;
  for (const char* backend : {"cpu", "cuda"}) {
    const double part = TailPart(shape, backend);
    EXPECT_LT(part, 0.02) << backend;
    RecordProperty(std::string("tail_part_") + backend, std::to_string(part));
  }
}

TEST(PackingTest, LognormalCorpusTailsAreUnderTwoPercent) {
  constexpr int kRecords = 100'000;
  std::mt19937_64 random(20260101);
  std::lognormal_distribution<double> tokens(5.0, 1.0);
  std::vector<int32_t> lengths;
  for (int i = 0; i < kRecords; ++i)
    lengths.push_back(static_cast<int32_t>(std::clamp(tokens(random), 2.0, 2048.0)));
  for (const int32_t batch_size : {4, 8, 32, 256}) {
    for (const char* backend : {"cpu", "cuda"}) {
      const double part = TailPart(ShapeOf(lengths, batch_size), backend);
      EXPECT_LT(part, 0.02) << backend << ", batch_size " << batch_size;
    }
  }
}

TEST(PackingTest, AStepHasTheSameRecordsPackedOrNot) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<int32_t> lengths;
  for (int i = 0; i < 500; ++i) lengths.push_back(static_cast<int32_t>(rng.Int(2, 300)));
  for (const char* backend : {"cpu", "cuda"}) {
    const JobShape packed_shape = ShapeOf(lengths, 8), plain_shape = ShapeOf(lengths, 8, false);
    NumericPlan packed_plan, plain_plan;
    packed_plan.backend = plain_plan.backend = backend;
    SetBuckets(packed_shape, &packed_plan);
    SetBuckets(plain_shape, &plain_plan);
    const auto packed = MakeTrainSchedule(packed_shape, packed_plan);
    const auto plain = MakeTrainSchedule(plain_shape, plain_plan);
    ASSERT_TRUE(packed.ok() && plain.ok());
    ASSERT_EQ(packed->steps(), plain->steps());
    for (int64_t step = 1; step <= packed->steps(); ++step) {
      EXPECT_THAT(RecordsOf(packed->Step(step)),
                  ::testing::UnorderedElementsAreArray(RecordsOf(plain->Step(step))));
    }
  }
}

TEST(PackingTest, AnyStepIsFoundAgainWithoutTheOnesBefore) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<int32_t> lengths;
  for (int i = 0; i < 3000; ++i) lengths.push_back(static_cast<int32_t>(rng.Int(2, 400)));
  JobShape shape = ShapeOf(lengths, 8);
  shape.batch.epochs = 2.5;
  NumericPlan plan;
  plan.backend = "cuda";
  SetBuckets(shape, &plan);
  const auto run = MakeTrainSchedule(shape, plan);
  ASSERT_TRUE(run.ok());
  std::vector<std::vector<MicroBatch>> steps{{}};
  for (int64_t step = 1; step <= run->steps(); ++step) steps.push_back(run->Step(step));
  for (int i = 0; i < 40; ++i) {
    const auto resumed = MakeTrainSchedule(shape, plan);
    ASSERT_TRUE(resumed.ok());
    const int64_t step = rng.Int(1, run->steps());
    const auto got = resumed->Step(step), again = run->Step(step);
    const auto& want = steps[static_cast<size_t>(step)];
    ASSERT_EQ(got.size(), want.size());
    for (size_t m = 0; m < got.size(); ++m) {
      EXPECT_EQ(got[m].records, want[m].records) << "step " << step;
      EXPECT_EQ(again[m].records, want[m].records) << "step " << step;
    }
  }
}

// The window changes little: records are exchanged, not sorted.
TEST(PackingTest, TheWindowLeavesTheOrderAShuffle) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<int32_t> lengths;
  for (int i = 0; i < 2000; ++i) lengths.push_back(static_cast<int32_t>(rng.Int(10, 200)));
  BatchParams p;
  p.batch_size = 16;
  p.seed = 5;
  const auto plain = BatchSchedule::Create(lengths, p);
  p.order_tile = 64;
  const auto arranged = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(plain.ok() && arranged.ok());
  std::vector<int64_t> step_of(lengths.size());
  for (int64_t step = 1; step <= plain->steps(); ++step)
    for (const int32_t r : RecordsOf(plain->Step(step))) step_of[static_cast<size_t>(r)] = step;
  int64_t moved = 0, late = 0;
  for (int64_t step = 1; step <= plain->steps(); ++step) {
    const auto records = RecordsOf(arranged->Step(step));
    ASSERT_EQ(records.size(), 16u);
    int64_t tokens = 0;
    std::map<int64_t, int64_t> from;  // steps of the plain order
    for (const int32_t r : records) {
      tokens += lengths[static_cast<size_t>(r)];
      ++from[step_of[static_cast<size_t>(r)]];
    }
    int64_t most = 0;
    for (const auto& [plain_step, count] : from) most = std::max(most, count);
    moved += 16 - most;
    late += tokens % 64 != 0;
  }
  EXPECT_LE(moved, 2 * plain->steps());  // an exchange a step
  EXPECT_LE(late, plain->steps() / 8);   // the last of each window, and few others
}

// Where a record comes in an epoch does not depend on its length; steps of one record are the plain
// shuffle.
TEST(PackingTest, LengthsHaveNoPlaceOfTheirOwn) {
  const std::vector<int32_t> lengths = {16, 5, 8, 13, 21, 24, 9, 31, 7, 40, 12, 3, 1};
  const auto records = static_cast<int64_t>(lengths.size());
  constexpr int kEpochs = 4000;
  BatchParams p;
  p.epochs = kEpochs;
  p.seed = 3;
  for (const int32_t batch_size : {1, 2, 4}) {
    p.batch_size = batch_size;
    p.order_tile = 0;
    const auto plain = BatchSchedule::Create(lengths, p);
    p.order_tile = 8;
    const auto arranged = BatchSchedule::Create(lengths, p);
    ASSERT_TRUE(plain.ok() && arranged.ok());
    const int64_t steps = (records + batch_size - 1) / batch_size;
    std::vector<double> counts(static_cast<size_t>(records * steps), 0);
    for (int64_t step = 1; step <= arranged->steps(); ++step) {
      const auto got = RecordsOf(arranged->Step(step));
      for (const int32_t r : got) ++counts[static_cast<size_t>(r * steps + (step - 1) % steps)];
      if (batch_size == 1) {
        ASSERT_EQ(got, RecordsOf(plain->Step(step)));
      }
    }
    double chi2 = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const bool last = static_cast<int64_t>(i) % steps == steps - 1;
      const int64_t places = last ? records - (steps - 1) * batch_size : batch_size;
      const double mean = static_cast<double>(kEpochs * places) / static_cast<double>(records);
      chi2 += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
    // Mean and deviation of a chi-square of so many degrees of freedom.
    const auto freedom = static_cast<double>((records - 1) * (steps - 1));
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom)) << "batch_size " << batch_size;
  }
}

// A step of very many records, and the order of a large epoch, are found in a moment: a bound of
// work, not of time.
TEST(PackingTest, LargeStepsArePacked) {
  std::vector<int32_t> lengths;
  std::mt19937_64 random(7);
  for (int i = 0; i < 300'000; ++i) lengths.push_back(1 + static_cast<int32_t>(random() % 1024));
  BatchParams p;
  p.batch_size = 300'000;
  p.packing = true;
  p.micro_batch_tokens = 1024;
  p.order_tile = 8;
  const auto s = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(s.ok());
  const auto step = s->Step(1);
  int64_t tokens = 0;
  for (const MicroBatch& m : step) tokens += m.tokens;
  EXPECT_EQ(tokens, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  // First-fit-decreasing needs at most 11/9 of the bins that would do (Dósa 2007).
  EXPECT_LE(static_cast<int64_t>(step.size()), (tokens / 1024 + 1) * 11 / 9 + 1);
}

TEST(BatchScheduleTest, BoundsOfVeryLongRunsHold) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<int32_t> lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(static_cast<int32_t>(rng.Int(1, 64)));
  BatchParams p;
  p.epochs = 1e6;
  p.batch_size = 32;
  p.packing = true;
  p.micro_batch_tokens = 100;
  const auto s = BatchSchedule::Create(lengths, p);
  ASSERT_TRUE(s.ok());
  for (int i = 0; i < 2000; ++i) {
    const auto step = s->Step(rng.Int(1, s->steps()));
    EXPECT_LE(static_cast<int32_t>(step.size()), s->max_micro_batches());
    for (const MicroBatch& m : step) {
      EXPECT_LE(m.tokens, s->max_micro_batch_tokens());
      EXPECT_LE(static_cast<int32_t>(m.records.size()), s->max_records_in_micro_batch());
    }
  }
}

TEST(BatchScheduleTest, BadInputIsRefusedByName) {
  const auto message = [](std::vector<int32_t> lengths, BatchParams p) {
    const auto s = BatchSchedule::Create(std::move(lengths), p);
    EXPECT_EQ(s.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.status().message());
  };
  EXPECT_THAT(message({}, {}), HasSubstr("no training records"));
  EXPECT_THAT(message({3}, {.batch_size = 0}), HasSubstr("batch_size is 0"));
  EXPECT_THAT(message({3}, {.epochs = 0}), HasSubstr("epochs is 0"));
  EXPECT_THAT(message({3}, {.epochs = NAN}), HasSubstr("epochs"));
  EXPECT_THAT(message({3}, {.max_steps = -1}), HasSubstr("max_steps"));
  EXPECT_THAT(message({3, 0}, {}), HasSubstr("record 1 has 0 tokens"));
  EXPECT_THAT(message({3, 9}, {.packing = true, .micro_batch_tokens = 8}),
              HasSubstr("record 1 has 9 tokens, more than the 8"));
  // max_steps makes a run shorter, never longer.
  EXPECT_THAT(message({3, 3, 3}, {.epochs = 0.01, .max_steps = 2}),
              AllOf(HasSubstr("hold no record; ask for 0.333333 epochs (one record) or more"),
                    Not(HasSubstr("max_steps"))));
  for (size_t n = 1; n < 300; ++n) {  // what it asks for is told with six digits, and has to do
    const std::vector<int32_t> lengths(n, 3);
    const std::string said = message(lengths, {.epochs = 0.001});
    const double told = std::stod(said.substr(said.find("ask for ") + 8));
    EXPECT_TRUE(BatchSchedule::Create(lengths, {.epochs = told}).ok()) << said;
  }
}

}  // namespace
}  // namespace soup::engine
