#include "engine/base/machine_profile.h"

#include <gtest/gtest.h>

namespace soup::engine {
namespace {

MachineProfile Filled() {
  MachineProfile p;
  p.backend = "cuda";
  p.device_name = "a \"card\"";
  p.device_memory_bytes = 150'000'000'000;
  p.overhead_bytes = 560 << 20;
  p.copy_bytes_per_second = 55.3e9;
  p.copy_to_host_bytes_per_second = 55.4e9;
  p.copy_both_ways_bytes_per_second = 50.8e9;
  p.device_copy_bytes_per_second = 4.2e12;
  p.gemm_flops = 7e14;
  p.dequant_bytes_per_second = 1.8e12;
  p.launch_seconds = 4.5e-6;
  p.gemm_rates = {{512, 583e12}, {2048, 746e12}, {16384, 680e12}};
  p.attention_forward_rates = {{512, 242e12}, {4096, 395e12}};
  p.attention_backward_rates = {{512, 203e12}};
  p.cpu_threads = 3;
  p.blas_core = "sm_90";
  p.attention_library = "cudnn-9.14.0";
  p.fused_gate_rows = 1024;
  return p;
}

TEST(MachineProfileTest, TextComesBackWhole) {
  const MachineProfile p = Filled();
  const auto read = MachineProfile::FromText(p.ToText());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToText(), p.ToText());
  EXPECT_EQ(read->copy_both_ways_bytes_per_second, 50.8e9);
  ASSERT_EQ(read->gemm_rates.size(), 3u);
  EXPECT_EQ(read->gemm_rates[1].size, 2048);
  EXPECT_EQ(read->gemm_rates[1].flops, 746e12);
  EXPECT_EQ(read->attention_backward_rates[0].flops, 203e12);
  EXPECT_EQ(read->device_name, "a \"card\"");
  EXPECT_EQ(read->attention_library, "cudnn-9.14.0");
  EXPECT_EQ(read->fused_gate_rows, 1024);
}

TEST(MachineProfileTest, AnotherVersionOrABrokenTextIsRefused) {
  std::string text = Filled().ToText();
  const size_t at = text.find("\"version\":4");
  ASSERT_NE(at, std::string::npos);
  std::string old = text;
  old.replace(at, 11, "\"version\":1");
  for (const std::string& bad :
       {old, std::string("{}"), std::string("["), text.substr(1), std::string("{\"version\":4}")}) {
    EXPECT_EQ(MachineProfile::FromText(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  MachineProfile unsorted = Filled();
  std::swap(unsorted.gemm_rates[0], unsorted.gemm_rates[1]);
  EXPECT_FALSE(MachineProfile::FromText(unsorted.ToText()).ok());
}

TEST(MachineProfileTest, RatesBetweenAndBeyondTheMeasuredSizes) {
  EXPECT_EQ(RateAt({}, 100), 0);
  const std::vector<MeasuredRate> curve = {{512, 100}, {2048, 300}, {4096, 200}};
  EXPECT_EQ(RateAt(curve, 1), 100);
  EXPECT_EQ(RateAt(curve, 512), 100);
  EXPECT_DOUBLE_EQ(RateAt(curve, 1024), 200);  // halfway in log
  EXPECT_DOUBLE_EQ(RateAt(curve, 2048), 300);
  EXPECT_EQ(RateAt(curve, 1 << 20), 200);
}

}  // namespace
}  // namespace soup::engine
