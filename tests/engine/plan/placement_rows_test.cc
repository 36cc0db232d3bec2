// What the planner makes of known shapes on a large GPU, whose measured rates are
// docs/benchmarks' : each row must fit its budget, and be placed so that it can reach its mark.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "engine/plan/job_plan.h"

namespace soup::engine {
namespace {

ModelSpec Llama8b() {
  ModelSpec m;
  m.family = "llama";
  m.hidden = 4096;
  m.intermediate = 14336;
  m.layers = 32;
  m.heads = 32;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.vocab = 128256;
  m.max_position = 131072;
  return m;
}

ModelSpec Llama70b() {
  ModelSpec m = Llama8b();
  m.hidden = 8192;
  m.intermediate = 28672;
  m.layers = 80;
  m.heads = 64;
  return m;
}

// NVIDIA H200, docs/benchmarks; copies as on an idle link.
MachineProfile H200() {
  MachineProfile p;
  p.backend = "cuda";
  p.copy_bytes_per_second = 55.3e9;
  p.copy_to_host_bytes_per_second = 55.4e9;
  p.copy_both_ways_bytes_per_second = 50.8e9;
  p.device_copy_bytes_per_second = 4168e9;
  p.dequant_bytes_per_second = 2811e9;
  p.launch_seconds = 4.35e-6;
  p.gemm_flops = 700e12;
  p.gemm_rates = {{512, 600e12}, {1024, 715e12}, {2048, 746e12}, {4096, 741e12}, {16384, 700e12}};
  p.attention_forward_rates = {{512, 209e12}, {2048, 334e12}, {4096, 370e12}, {16384, 394e12}};
  p.attention_backward_rates = {{512, 179e12}, {2048, 253e12}, {4096, 274e12}, {16384, 281e12}};
  return p;
}

struct Row {
  const char* name;
  bool large;
  BaseFormat format;
  int32_t batch, length;
  double budget_gb;
  double least_tokens_per_second;  // predicted
};

PassJob Job(const Row& row) {
  JobShape shape;
  shape.model = row.large ? Llama70b() : Llama8b();
  shape.format = row.format;
  shape.lora.r = 8;
  shape.lora.targets = {Module::kQ, Module::kK, Module::kV, Module::kO};
  shape.lengths.assign(static_cast<size_t>(row.batch), row.length);
  shape.batch.batch_size = row.batch;
  shape.batch.packing = true;
  const auto numeric = MakeNumericPlan(shape, H200());
  EXPECT_TRUE(numeric.ok()) << numeric.status();
  return LargestPass("a", shape, *numeric, row.batch);
}

class Rows : public ::testing::TestWithParam<Row> {};

TEST_P(Rows, FitAndReachTheirMark) {
  const Row& row = GetParam();
  const ModelSpec model = row.large ? Llama70b() : Llama8b();
  const std::vector<PassJob> jobs = {Job(row)};
  const int64_t budget = static_cast<int64_t>(row.budget_gb * 1e9);
  const auto begin = std::chrono::steady_clock::now();
  const auto plan = ChoosePlacement(model, row.format, jobs, budget, H200());
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->arena_bytes(), budget);
  const auto forecast = ForecastPass(model, row.format, jobs, plan->placement, H200());
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  std::printf("%s: %zu items, %.3f GB, host %.3f GB, %.2f ms (stall %.2f), %.0f tok/s, %s; %.1f ms\n",
              row.name, jobs[0].items.size(), plan->arena_bytes() * 1e-9, plan->host_bytes() * 1e-9,
              forecast->step_seconds * 1e3, forecast->stall_seconds * 1e3,
              forecast->tokens_per_second, PlacementText(plan->placement).c_str(), ms);
  EXPECT_GE(forecast->tokens_per_second, row.least_tokens_per_second);
}

constexpr BaseFormat kNf4 = BaseFormat::kNf4DoubleQuant;
INSTANTIATE_TEST_SUITE_P(
    H200, Rows,
    ::testing::Values(Row{"8b_nf4_b1_s512_1gb", false, kNf4, 1, 512, 1.0, 3300},
                      Row{"8b_nf4_b1_s512_3gb4", false, kNf4, 1, 512, 3.4, 6500},
                      Row{"8b_nf4_b8_s512_9gb9", false, kNf4, 8, 512, 9.9, 16000},
                      Row{"8b_nf4_b32_s512_32gb", false, kNf4, 32, 512, 32, 16300},
                      Row{"8b_nf4_b32_s512_60gb", false, kNf4, 32, 512, 60, 19000},
                      Row{"8b_nf4_b4_s4096_32gb", false, kNf4, 4, 4096, 32, 14000},
                      Row{"8b_nf4_b1_s16384_46gb", false, kNf4, 1, 16384, 46, 9000},
                      Row{"8b_bf16_b8_s512_32gb", false, BaseFormat::kBf16, 8, 512, 32, 19000},
                      Row{"70b_nf4_b1_s512_3gb", true, kNf4, 1, 512, 3.0, 350}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace soup::engine
