#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/plan/job_plan.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobShape Shape(std::vector<int32_t> lengths, bool packing = true) {
  JobShape shape;
  shape.model.vocab = 49152;
  shape.model.max_position = 8192;
  shape.lora.r = 8;
  shape.lora.targets = {Module::kQ};
  shape.lengths = std::move(lengths);
  shape.batch.batch_size = 4;
  shape.batch.packing = packing;
  return shape;
}

MachineProfile Cpu() {
  MachineProfile profile;
  profile.cpu_threads = 2;
  profile.blas_core = "Zen";
  return profile;
}

TEST(NumericPlan, BucketsRiseAndCoverTheCapacity) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int i = 0; i < 200; ++i) {
    std::vector<int32_t> lengths(rng.Int(1, 20));
    for (int32_t& n : lengths) n = static_cast<int32_t>(rng.Int(1, 8000));
    const bool packing = rng.Chance(0.5);
    const auto plan = MakeNumericPlan(Shape(lengths, packing), Cpu());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    EXPECT_GE(plan->micro_batch_tokens, longest);
    EXPECT_TRUE(std::is_sorted(plan->buckets.begin(), plan->buckets.end()));
    EXPECT_EQ(plan->BucketFor(plan->micro_batch_tokens), plan->micro_batch_tokens);
    EXPECT_EQ(plan->BucketFor(plan->micro_batch_tokens + 1), 0);
    for (int64_t t = 1; t <= plan->micro_batch_tokens; t += rng.Int(1, 40)) {
      const int64_t bucket = plan->BucketFor(t);
      ASSERT_GE(bucket, t);
      EXPECT_LT(bucket - t, std::max<int64_t>(9, t / 16)) << t;
    }
  }
}

TEST(NumericPlan, AnotherMachineIsTold) {
  const auto plan = MakeNumericPlan(Shape({5, 9}), Cpu());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(OtherMachine(*plan, Cpu()), "");
  MachineProfile other = Cpu();
  other.backend = "cuda";
  EXPECT_THAT(OtherMachine(*plan, other), ::testing::HasSubstr("backend cpu"));
  other = Cpu();
  other.blas_core = "Haswell";
  EXPECT_EQ(OtherMachine(*plan, other), "it was planned for Zen, and this machine has Haswell");
  other = Cpu();
  other.cpu_threads = 3;  // bits do not depend on it
  EXPECT_EQ(OtherMachine(*plan, other), "");
  NumericPlan library = *plan;
  library.attention.library = "cudnn-9.14.0";
  EXPECT_THAT(OtherMachine(library, Cpu()), ::testing::HasSubstr("none that works"));
  other = Cpu();
  other.attention_library = "cudnn-9.15.0";
  EXPECT_THAT(OtherMachine(library, other), ::testing::HasSubstr("cudnn-9.15.0"));
  // One that the plan does not use is nobody's business.
  EXPECT_EQ(OtherMachine(*plan, other), "");
}

TEST(NumericPlan, MeanTailOfPackedMicroBatchesIsSmall) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  std::vector<int32_t> lengths(512);
  for (int32_t& n : lengths) n = static_cast<int32_t>(rng.Int(20, 600));
  JobShape shape = Shape(lengths);
  shape.batch.batch_size = 16;
  const auto plan = MakeNumericPlan(shape, Cpu());
  ASSERT_TRUE(plan.ok());
  const auto schedule = MakeTrainSchedule(shape, *plan);
  ASSERT_TRUE(schedule.ok());
  int64_t tokens = 0, tail = 0;
  for (int64_t step = 1; step <= schedule->steps(); ++step) {
    for (const MicroBatch& m : schedule->Step(step)) {
      tokens += m.tokens;
      tail += plan->BucketFor(m.tokens) - m.tokens;
    }
  }
  EXPECT_LT(static_cast<double>(tail), 0.02 * static_cast<double>(tokens));
}

TEST(NumericPlan, WithoutPackingAMicroBatchHoldsTheLongestRecord) {
  const auto plan = MakeNumericPlan(Shape({10, 40}, false), Cpu());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->micro_batch_tokens, 40);
}

TEST(NumericPlan, ValidationRecordsFitToo) {
  JobShape shape = Shape({10});
  shape.validation_lengths = {3000};
  const auto plan = MakeNumericPlan(shape, Cpu());
  ASSERT_TRUE(plan.ok());
  EXPECT_GE(plan->micro_batch_tokens, 3000);
  EXPECT_TRUE(MakeValidationSchedule(shape, *plan).ok());
}

TEST(NumericPlan, TextRoundTrips) {
  const auto plan = MakeNumericPlan(Shape({10, 2000}), Cpu());
  ASSERT_TRUE(plan.ok());
  const std::string text = plan->ToText();
  const auto back = NumericPlan::FromText(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToText(), text);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(NumericPlan, TextOfAnotherVersionOrShapeIsRefused) {
  const auto plan = MakeNumericPlan(Shape({10}), Cpu());
  ASSERT_TRUE(plan.ok());
  NumericPlan other = *plan;
  other.version = 99;
  EXPECT_THAT(std::string(NumericPlan::FromText(other.ToText()).status().message()),
              HasSubstr("version 99"));
  other = *plan;
  other.buckets = {64, 32};
  EXPECT_FALSE(NumericPlan::FromText(other.ToText()).ok());
  EXPECT_FALSE(NumericPlan::FromText("{").ok());
  EXPECT_FALSE(NumericPlan::FromText("{}").ok());
  std::string extra = plan->ToText();
  extra.insert(1, "\"aaa\":1,");
  EXPECT_FALSE(NumericPlan::FromText(extra).ok());
}

MachineProfile Cuda() {
  MachineProfile profile;
  profile.backend = "cuda";
  profile.blas_core = "sm_90, 132 SMs, cuBLASLt 13.1";
  profile.device_memory_bytes = 150'754'820'096;
  profile.attention_library = "cudnn-9.14.0";
  return profile;
}

JobShape LongShape(std::vector<int32_t> lengths) {
  JobShape shape = Shape(std::move(lengths));
  shape.model.hidden = 4096;
  shape.model.intermediate = 14336;
  shape.model.heads = 32;
  shape.model.kv_heads = 8;
  shape.model.head_dim = 128;
  return shape;
}

TEST(NumericPlan, AttentionLibraryIsNamedWhereItTakesASequence) {
  const auto plan = MakeNumericPlan(LongShape({100, 8000}), Cuda());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->attention.library, "cudnn-9.14.0");
  EXPECT_TRUE(plan->attention.forward.holds(8000));
  EXPECT_FALSE(plan->attention.forward.holds(100));
  EXPECT_TRUE(plan->attention.backward.holds(8000));
  // No more room than its own records take.
  const AttentionWidths widths = {32, 8, 128};
  EXPECT_EQ(plan->attention.workspace_limit,
            AttentionGroups(8000, widths, plan->attention.workspace_limit) *
                AttentionGroupBytes(AttentionLengthClass(8000), widths));
  EXPECT_EQ(AttentionWorkspaceBytes(8192, widths, plan->attention),
            plan->attention.workspace_limit);
  const auto back = NumericPlan::FromText(plan->ToText());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToText(), plan->ToText());
  EXPECT_EQ(back->attention.backward, plan->attention.backward);

  // Another version of the library is another plan.
  MachineProfile newer = Cuda();
  newer.attention_library = "cudnn-9.19.0";
  EXPECT_NE(MakeNumericPlan(LongShape({100, 8000}), newer)->ToText(), plan->ToText());
}

TEST(NumericPlan, ShortSequencesOfOneLengthShareCalls) {
  const AttentionWidths widths = {32, 8, 128};
  const auto plan = MakeNumericPlan(LongShape(std::vector<int32_t>(64, 512)), Cuda());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->attention.library, "cudnn-9.14.0");
  EXPECT_EQ(plan->attention.batched, 512);
  EXPECT_EQ(plan->attention.workspace_limit, 8 * 8 * AttentionGroupBytes(512, widths));
  EXPECT_EQ(AttentionWorkspaceBytes(4096, widths, plan->attention),
            plan->attention.workspace_limit);
  EXPECT_EQ(AttentionWorkspaceBytes(2048, widths, plan->attention), 0);
  const std::string text = plan->ToText();
  const auto back = NumericPlan::FromText(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToText(), text);
  EXPECT_EQ(back->attention.batched, 512);

  // A record that was made before the key: each sequence alone.
  const auto longer = MakeNumericPlan(LongShape({100, 8000}), Cuda());
  EXPECT_EQ(longer->attention.batched, 0);
  EXPECT_THAT(longer->ToText(), Not(HasSubstr("attention_batched")));
  std::string wrong = text;
  wrong.replace(wrong.find("batched\":512"), 12, "batched\":500");
  EXPECT_FALSE(NumericPlan::FromText(wrong).ok());

  // Not enough tokens an item for a call.
  const auto few = MakeNumericPlan(LongShape({512}), Cuda());
  EXPECT_EQ(few->attention.library, "");
}

TEST(NumericPlan, OurOwnAttentionOtherwise) {
  MachineProfile without = Cuda();
  without.attention_library = "";
  const auto absent = MakeNumericPlan(LongShape({8000}), without);
  const auto short_ones = MakeNumericPlan(LongShape({100, 700}), Cuda());
  const auto cpu = MakeNumericPlan(LongShape({8000}), Cpu());
  for (const auto* plan : {&absent, &short_ones, &cpu}) {
    ASSERT_TRUE(plan->ok()) << plan->status();
    EXPECT_EQ((*plan)->attention.library, "");
  }
  EXPECT_THAT(absent->ToText(), HasSubstr("\"attention\":\"own\""));
  // A CPU plan has no such key, and none is taken.
  EXPECT_EQ(cpu->ToText().find("attention"), std::string::npos);
  std::string extra = cpu->ToText();
  extra.insert(1, "\"attention\":\"own\",");
  EXPECT_FALSE(NumericPlan::FromText(extra).ok());
}

JobShape SparseShape(std::vector<int32_t> lengths) {
  JobShape shape = LongShape(std::move(lengths));
  shape.model.layers = 4;
  shape.model.experts = {.count = 8, .per_token = 2, .intermediate = 14336};
  shape.model.kinds.assign(static_cast<size_t>(shape.model.layers), LayerKind{.sparse = true});
  return shape;
}

// With experts CUDA computes in fp32, without a library; and older records keep what they had.
TEST(NumericPlan, ModelsWithExpertsHaveF32ActivationsOnCuda) {
  const auto sparse = MakeNumericPlan(SparseShape({100, 8000}), Cuda());
  ASSERT_TRUE(sparse.ok()) << sparse.status();
  EXPECT_EQ(sparse->activation_type(), DType::kF32);
  EXPECT_EQ(sparse->act_bytes(), 4);
  EXPECT_EQ(sparse->wt_bytes(), 2);
  EXPECT_EQ(sparse->attention.library, "");
  const std::string text = sparse->ToText();
  EXPECT_THAT(text, HasSubstr("\"activations\":\"f32\""));
  const auto back = NumericPlan::FromText(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToText(), text);
  EXPECT_TRUE(back->f32_activations);

  // A record that was made before the key: bf16 as it was, and its text does not change.
  std::string old = text;
  const std::string key = "\"activations\":\"f32\",";
  old.erase(old.find(key), key.size());
  const auto before = NumericPlan::FromText(old);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->activation_type(), DType::kBF16);
  EXPECT_EQ(before->ToText(), old);

  std::string unknown = text;
  unknown.replace(unknown.find("\"f32\""), 5, "\"f16\"");
  EXPECT_THAT(std::string(NumericPlan::FromText(unknown).status().message()), HasSubstr("f16"));
  // No library works in fp32.
  NumericPlan library = *MakeNumericPlan(LongShape({8000}), Cuda());
  library.f32_activations = true;
  EXPECT_FALSE(NumericPlan::FromText(library.ToText()).ok());
}

// The choice is made once: the plan holds what was chosen, not what was asked.
TEST(NumericPlan, PrecisionIsFrozenAsTheActivations) {
  JobShape tiny = LongShape({100, 8000});
  tiny.model.hidden = kTinyHidden;
  const auto by_size = MakeNumericPlan(tiny, Cuda());
  tiny.precision = Precision::kFp32;
  const auto fp32 = MakeNumericPlan(tiny, Cuda());
  tiny.precision = Precision::kBf16;
  const auto bf16 = MakeNumericPlan(tiny, Cuda());
  ASSERT_TRUE(by_size.ok() && fp32.ok() && bf16.ok());
  EXPECT_EQ(by_size->precision(), Precision::kFp32);
  EXPECT_THAT(by_size->ToText(), HasSubstr("\"activations\":\"f32\""));
  EXPECT_EQ(by_size->ToText(), fp32->ToText());  // equal text, equal bits
  EXPECT_EQ(by_size->attention.library, "");
  EXPECT_EQ(bf16->precision(), Precision::kBf16);
  EXPECT_THAT(bf16->ToText(), Not(HasSubstr("activations")));
  EXPECT_EQ(bf16->attention.library, "cudnn-9.14.0");
  EXPECT_NE(bf16->ToText(), by_size->ToText());
  // A record of such a model from before there was a choice has no key: bf16, as it was.
  const auto before = NumericPlan::FromText(bf16->ToText());
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->precision(), Precision::kBf16);
  EXPECT_EQ(before->ToText(), bf16->ToText());
}

TEST(NumericPlan, PrecisionThatIsAskedForIsTakenWhateverTheModel) {
  JobShape dense = LongShape({100, 8000}), sparse = SparseShape({100, 8000});
  dense.precision = Precision::kFp32;
  sparse.precision = Precision::kBf16;
  const auto wide = MakeNumericPlan(dense, Cuda());
  const auto narrow = MakeNumericPlan(sparse, Cuda());
  ASSERT_TRUE(wide.ok() && narrow.ok());
  EXPECT_EQ(wide->activation_type(), DType::kF32);
  EXPECT_EQ(wide->attention.library, "");
  EXPECT_EQ(narrow->activation_type(), DType::kBF16);
  EXPECT_EQ(narrow->attention.library, "cudnn-9.14.0");
  for (const auto* plan : {&wide, &narrow}) {
    const auto back = NumericPlan::FromText((*plan)->ToText());
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->ToText(), (*plan)->ToText());
  }
}

// An adapter's operands, split, must lie in the scratch: told before anything is allocated.
TEST(NumericPlan, AdaptersTooLargeForFp32AreRefusedWithTheLargestRank) {
  JobShape shape = LongShape({100});
  shape.precision = Precision::kFp32;
  shape.lora.targets = {Module::kQ, Module::kK, Module::kV, Module::kDown};
  shape.lora.r = 512;
  EXPECT_TRUE(MakeNumericPlan(shape, Cuda()).ok());
  shape.lora.r = 1024;
  const absl::Status refused = MakeNumericPlan(shape, Cuda()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  // 584 rows of 14,336 columns twice in bf16, and a row of the other operand: 33,547,264 bytes of
  // 33,555,456.
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a rank of at most 584"));
  shape.lora.r = 584;
  EXPECT_TRUE(MakeNumericPlan(shape, Cuda()).ok());
  shape.lora.r = 592;
  EXPECT_FALSE(MakeNumericPlan(shape, Cuda()).ok());
  shape.precision = Precision::kBf16;
  shape.lora.r = 1024;
  EXPECT_TRUE(MakeNumericPlan(shape, Cuda()).ok());
}

TEST(NumericPlan, TheCpuHasOnePrecisionAndOnePlan) {
  JobShape shape = Shape({10});
  const auto by_default = MakeNumericPlan(shape, Cpu());
  shape.precision = Precision::kFp32;
  const auto fp32 = MakeNumericPlan(shape, Cpu());
  ASSERT_TRUE(by_default.ok() && fp32.ok());
  EXPECT_EQ(by_default->ToText(), fp32->ToText());
  EXPECT_EQ(fp32->precision(), Precision::kFp32);
  shape.precision = Precision::kBf16;
  const absl::Status refused = MakeNumericPlan(shape, Cpu()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("training.precision is bf16"));
}

TEST(NumericPlan, OthersHaveTheirBackendsActivations) {
  const auto dense = MakeNumericPlan(LongShape({100}), Cuda());
  const auto cpu = MakeNumericPlan(SparseShape({100}), Cpu());
  ASSERT_TRUE(dense.ok() && cpu.ok());
  EXPECT_EQ(dense->activation_type(), DType::kBF16);
  EXPECT_EQ(cpu->activation_type(), DType::kF32);
  EXPECT_EQ(cpu->wt_bytes(), 4);
  for (const auto* plan : {&dense, &cpu}) {
    EXPECT_EQ((*plan)->ToText().find("activations"), std::string::npos);
  }
  // The CPU has no choice: the key is not its.
  std::string extra = cpu->ToText();
  extra.insert(1, "\"activations\":\"f32\",");
  EXPECT_FALSE(NumericPlan::FromText(extra).ok());
}

TEST(NumericPlan, AttentionRangesOutOfOrderAreRefused) {
  const auto plan = MakeNumericPlan(LongShape({8000}), Cuda());
  ASSERT_TRUE(plan.ok());
  NumericPlan other = *plan;
  other.attention.forward.most = 10;
  EXPECT_FALSE(NumericPlan::FromText(other.ToText()).ok());
  other = *plan;
  other.attention.workspace_limit = 0;
  EXPECT_FALSE(NumericPlan::FromText(other.ToText()).ok());
  other = *plan;
  other.attention.library = "";
  EXPECT_FALSE(NumericPlan::FromText(other.ToText()).ok());
}

TEST(NumericPlan, Refusals) {
  EXPECT_THAT(std::string(MakeNumericPlan(Shape({}), Cpu()).status().message()),
              HasSubstr("no training record"));
  EXPECT_THAT(std::string(MakeNumericPlan(Shape({9000}), Cpu()).status().message()),
              HasSubstr("8192"));
  MachineProfile cuda = Cpu();
  cuda.backend = "rocm";
  EXPECT_TRUE(absl::IsUnimplemented(MakeNumericPlan(Shape({10}), cuda).status()));
}

TEST(PassItems, AreTheMicroBatchesAsked) {
  JobShape shape = Shape(std::vector<int32_t>(16, 600));
  shape.batch.batch_size = 16;
  const auto plan = MakeNumericPlan(shape, Cpu());
  const auto schedule = MakeTrainSchedule(shape, *plan);
  ASSERT_TRUE(schedule.ok());
  const std::vector<MicroBatch> step = schedule->Step(1);
  ASSERT_EQ(step.size(), 16u);  // 600 + 600 do not fit in 1024
  const auto items = MakePassItems(step, *plan, 3, 2, true);
  ASSERT_TRUE(items.ok());
  ASSERT_EQ(items->size(), 2u);
  EXPECT_EQ((*items)[0].tokens, plan->BucketFor(600));
  EXPECT_EQ((*items)[0].sequences, 1);
  EXPECT_EQ(MakePassItems(step, *plan, 3, -1, true)->size(), 13u);
  EXPECT_FALSE(MakePassItems(step, *plan, 16, 1, true).ok());
  EXPECT_FALSE(MakePassItems(step, *plan, 15, 2, true).ok());
  EXPECT_FALSE(MakePassItems(step, *plan, -1, 2, true).ok());
  const PassJob largest = LargestPass("a", shape, *plan, 4);
  EXPECT_EQ(largest.items.size(), 4u);
  EXPECT_EQ(largest.items[0].tokens, plan->BucketFor(600));
}

}  // namespace
}  // namespace soup::engine
