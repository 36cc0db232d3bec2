// soup-bench on the CPU backend and a tiny shape: what its rows say, and what it refuses.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/cli.h"
#include "bench/forwarding_backend.h"
#include "bench/line_fit.h"
#include "bench/named_base.h"
#include "bench/row_runner.h"
#include "bench/row_spec.h"
#include "bench/synthetic_base.h"
#include "engine/device/cpu_backend.h"
#include "engine/device/machine_measure.h"
#include "engine/model/slab_contents.h"
#include "engine/train/model_base.h"
#include "kernels/bf16.h"
#include "kernels/nf4.h"

namespace soup::bench {
namespace {

using nlohmann::json;

const char kTinyConfig[] = SOUP_TEST_DATA_DIR "/golden/llama/config.json";

// The keys of the report that others read; "detail" is ours.
const std::set<std::string> kRowKeys = {"base",
                                        "format",
                                        "lora",
                                        "batch",
                                        "seq",
                                        "budget_bytes",
                                        "slots",
                                        "resident_layers",
                                        "retention",
                                        "tok_s",
                                        "step_s",
                                        "stall_fraction",
                                        "copy_gb_s",
                                        "arena_bytes",
                                        "device_bytes",
                                        "planned_bytes",
                                        "predicted_step_s",
                                        "ideal_share",
                                        "command",
                                        "detail"};

struct Ran {
  int exit_code = 0;
  std::string out, err;
  json report;
};

Ran RunBench(std::vector<std::string> arguments) {
  // Tests run beside each other.
  const std::string path = testing::TempDir() + "/soup_bench." + std::to_string(getpid()) + ".json";
  std::remove(path.c_str());
  for (const char* a : {"--backend", "cpu", "--threads", "1", "--quick-ceilings", "--base",
                        kTinyConfig, "--steps", "2", "--warmup", "1", "--json", path.c_str()}) {
    arguments.emplace_back(a);
  }
  Ran ran;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ran.exit_code = RunCli(arguments);
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!text.empty()) ran.report = json::parse(text);
  return ran;
}

std::set<std::string> Keys(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

// A library whose parts are missing is found, and fails at its first plan.
class PlansRefused final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  absl::Status PrepareAttention(absl::string_view library,
                                absl::Span<const engine::AttentionPreparation> sequences) override {
    asked = absl::StrCat(library, " ", sequences.size());
    return broken ? absl::InternalError("libcudnn_engines_precompiled.so.9: no such file")
                  : absl::OkStatus();
  }
  bool broken = true;
  std::string asked;
};

TEST(AttentionLibraryTest, OneThatDoesNotWorkIsLeftOutOfTheProfile) {
  const auto cpu = engine::MakeCpuBackend();
  PlansRefused backend(cpu.get());
  engine::MachineProfile profile;
  profile.device_memory_bytes = int64_t{80} << 30;
  EXPECT_TRUE(engine::CheckAttentionLibrary(&backend, &profile).ok());
  EXPECT_EQ(backend.asked, "") << "nothing to try";
  profile.attention_library = "cudnn-9.14.0";
  backend.broken = false;
  EXPECT_TRUE(engine::CheckAttentionLibrary(&backend, &profile).ok());
  EXPECT_EQ(backend.asked, "cudnn-9.14.0 1");
  EXPECT_EQ(profile.attention_library, "cudnn-9.14.0");
  backend.broken = true;
  testing::internal::CaptureStderr();
  EXPECT_TRUE(engine::CheckAttentionLibrary(&backend, &profile).ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(profile.attention_library, "");
  EXPECT_TRUE(absl::StrContains(log, "cudnn-9.14.0 is here and does not work")) << log;
  EXPECT_TRUE(absl::StrContains(log, "no such file")) << log;
  // And so the plan of a job of long sequences names none.
  engine::JobShape shape;
  shape.model = FindBase("llama-8b").value();
  shape.lora.r = 8;
  shape.lora.targets = {engine::Module::kQ};
  shape.lengths = {4096};
  profile.backend = "cuda";
  const auto plan = engine::MakeNumericPlan(shape, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->attention.library, "");
}

TEST(BenchCliTest, ReportsRowsAsDocumented) {
  const Ran ran = RunBench({"--row", "batch=2 seq=32 slots=2 retention=keep", "--row",
                            "batch=1 seq=32 budget=100MB format=bf16", "--breakdown"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::set<std::string> top = {"machine", "ceilings", "rows"};
  EXPECT_EQ(Keys(ran.report), top);
  EXPECT_EQ(ran.report["machine"]["backend"], "cpu");
  EXPECT_GT(ran.report["ceilings"]["copy_to_device_gb_s"].get<double>(), 0);
  EXPECT_FALSE(ran.report["ceilings"]["gemm"].empty());
  ASSERT_EQ(ran.report["rows"].size(), 2u);
  std::set<std::string> keys = kRowKeys;
  keys.insert("breakdown");
  for (const json& row : ran.report["rows"]) {
    EXPECT_EQ(Keys(row), keys);
    EXPECT_EQ(row["planned_bytes"], row["arena_bytes"]);
    EXPECT_EQ(row["detail"]["planned_arena_bytes"], row["arena_bytes"]);
    EXPECT_EQ(row["detail"]["page_table_bytes"], 0);  // a card's
    EXPECT_EQ(row["detail"]["precision"], "fp32");    // the CPU's
    EXPECT_GT(row["arena_bytes"].get<int64_t>(), 0);
    EXPECT_NEAR(row["tok_s"].get<double>() * row["step_s"].get<double>(),
                row["batch"].get<double>() * 32, 1e-6);
    EXPECT_GT(row["ideal_share"].get<double>(), 0);
    EXPECT_GT(row["predicted_step_s"].get<double>(), 0);
    // Random tokens and fresh weights: about even over the vocabulary.
    EXPECT_NEAR(row["detail"]["loss"].get<double>(), std::log(320.0), 1.5);
    EXPECT_GT(row["breakdown"]["gemm"]["calls"].get<int64_t>(), 0);
    EXPECT_GT(row["breakdown"]["lora"]["calls"].get<int64_t>(), 0);
    EXPECT_GT(row["breakdown"]["head"]["calls"].get<int64_t>(), 0);
  }
  const json& first = ran.report["rows"][0];
  EXPECT_EQ(first["slots"], 2);
  EXPECT_EQ(first["retention"], "keep");
  EXPECT_EQ(first["budget_bytes"], 0);
  EXPECT_GT(first["detail"]["copy_bytes"].get<double>(), 0);
  EXPECT_EQ(ran.report["rows"][1]["budget_bytes"], 100'000'000);
  EXPECT_EQ(ran.report["rows"][1]["format"], "bf16");
  // A bf16 base has nothing to dequantise, the other has.
  EXPECT_NE(ran.out.find("tok/s"), std::string::npos);
}

TEST(BenchCliTest, ARowsCommandRunsTheSameRow) {
  const Ran ran = RunBench({"--precision", "fp32", "--row",
                            "batch=2 seq=32 slots=3 retention=recompute targets=q,down r=4"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::string command = ran.report["rows"][0]["command"];
  const size_t begin = command.find("--row \"") + 7;
  const std::string text = command.substr(begin, command.rfind('"') - begin);
  const auto parsed = ParseRow(text, RowSpec());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->ToText(), text);
  EXPECT_EQ(parsed->placement.slots, 3);
  EXPECT_EQ(parsed->lora_r, 4);
  EXPECT_EQ(parsed->precision, engine::Precision::kFp32);
  EXPECT_EQ(parsed->targets.size(), 2u);
}

// Steps of sequences of many lengths: room for the largest, and what the last one took is planned.
TEST(BenchCliTest, LengthsAreDrawnWhereAShortestIsGiven) {
  const Ran ran = RunBench({"--row", "batch=3 seq=64 shortest=8 budget=100MB steps=6", "--row",
                            "batch=3 seq=64 shortest=64 slots=2"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json& row = ran.report["rows"][0];
  const double tokens = row["detail"]["tokens_a_step"];
  EXPECT_GT(tokens, 3 * 16);
  EXPECT_LT(tokens, 3 * 56);
  EXPECT_NEAR(row["tok_s"].get<double>() * row["step_s"].get<double>(), tokens, 1e-6);
  EXPECT_EQ(row["planned_bytes"], row["arena_bytes"]);
  EXPECT_LE(row["arena_bytes"].get<int64_t>(), 100'000'000);
  EXPECT_GT(row["predicted_step_s"].get<double>(), 0);
  EXPECT_EQ(row["detail"]["shortest"], 8);
  EXPECT_NE(ran.out.find("lengths from 8"), std::string::npos);
  EXPECT_NE(row["command"].get<std::string>().find("seq=64 shortest=8"), std::string::npos);
  EXPECT_EQ(ran.report["rows"][1]["detail"]["tokens_a_step"], 3 * 64);
}

TEST(BenchCliTest, AblationsAreLabelledInTableAndJson) {
  const Ran ran = RunBench({"--row", "batch=1 seq=32 slots=2", "--ablate", "no-copies,no-dequant"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  ASSERT_EQ(ran.report["rows"].size(), 4u);
  EXPECT_FALSE(ran.report["rows"][0].contains("ablation"));
  const char* names[] = {"no-copies", "no-dequant", "no-copies,no-dequant"};
  for (size_t i = 0; i < 3; ++i) {
    const json& row = ran.report["rows"][i + 1];
    EXPECT_EQ(row["ablation"], names[i]);
    EXPECT_EQ(row["timing_only"], true);
    EXPECT_NE(ran.out.find(absl::StrCat("ABLATED, timing only: ", names[i])), std::string::npos);
    EXPECT_NE(row["command"].get<std::string>().find("--ablate"), std::string::npos);
  }
  // No slab moves once each slot has one.
  EXPECT_GT(ran.report["rows"][0]["detail"]["copy_bytes"].get<double>(), 0);
  EXPECT_EQ(ran.report["rows"][1]["detail"]["copy_bytes"].get<double>(), 0);
}

TEST(BenchCliTest, TheSweepFitsItsPoints) {
  const Ran ran =
      RunBench({"--seq", "32", "--slots", "2", "--token-sweep", "--sweep-batches", "1,2,3"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  ASSERT_EQ(ran.report["sweeps"].size(), 1u);
  const json& sweep = ran.report["sweeps"][0];
  ASSERT_EQ(sweep["rows"].size(), 3u);
  for (const json& row : sweep["rows"]) {
    const double fit = sweep["fixed_s"].get<double>() +
                       sweep["per_token_s"].get<double>() * 32 * row["batch"].get<double>();
    EXPECT_LE(std::abs(row["step_s"].get<double>() - fit),
              sweep["worst_residual_s"].get<double>() + 1e-9);
  }
  EXPECT_NE(ran.out.find("ms/token"), std::string::npos);
}

TEST(BenchCliTest, RefusesWhatItDoesNotKnow) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } cases[] = {
      {{"--row", "batch=1 seq=32 slots=2 colour=red"}, "colour"},
      {{"--row", "batch=0 seq=32 slots=2"}, "batch=0"},
      {{"--row", "batch=1 seq=32 budget=9.9"}, "9.9GB"},
      {{"--row", "batch=1 seq=32 slots=2 shortest=33"}, "shortest is more than seq"},
      {{"--row", "batch=1 seq=32 slots=2 format=fp8"}, "fp8"},
      {{"--row", "batch=1 seq=32 slots=2 precision=fp16"}, "use auto, bf16 or fp32"},
      {{"--row", "batch=1 seq=32 slots=2 targets=q,q"}, "targets"},
      {{"--row", "batch=1 seq=32 slots=2 base=llama-9b"}, "llama-8b"},
      {{"--row", "batch=1 seq=32 slots=2 retention=some"}, "some"},
      {{"--row", "batch=1 seq=32"}, "budget"},
      {{"--row", "batch=1 seq=32 budget=1GB slots=2"}, "both"},
      {{"--row", "batch=1 seq=32 slots=2", "--ablate", "no-gemm"}, "no-gemm"},
      {{"--slots", "2", "--frobnicate"}, "frobnicate"},
      {{"--slots", "2", "--rows", "/nowhere/rows"}, "/nowhere/rows"},
  };
  for (const auto& c : cases) {
    const Ran ran = RunBench(c.arguments);
    EXPECT_EQ(ran.exit_code, 2) << c.says;
    EXPECT_NE(ran.err.find(c.says), std::string::npos) << c.says << ": " << ran.err;
    EXPECT_TRUE(ran.report.is_null()) << c.says;
  }
}

TEST(BenchCliTest, TheCpuHasNoBf16Activations) {
  const Ran refused = RunBench({"--row", "batch=1 seq=32 slots=2 precision=bf16"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("use auto or fp32"), std::string::npos) << refused.err;
  EXPECT_TRUE(refused.report["rows"].empty());
}

TEST(BenchCliTest, ABudgetTooSmallNamesTheLeast) {
  const Ran refused = RunBench({"--row", "batch=2 seq=32 budget=20kB"});
  EXPECT_EQ(refused.exit_code, 1);
  const size_t at = refused.err.find("at least ");
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string least = refused.err.substr(at + 9, refused.err.find(' ', at + 9) - at - 9);
  // That much is enough, and the report of the refused run has no rows.
  EXPECT_TRUE(refused.report["rows"].empty());
  EXPECT_EQ(RunBench({"--row", absl::StrCat("batch=2 seq=32 budget=", least, "B")}).exit_code, 0);
}

TEST(RowSpecTest, TheRowsWordOnMemoryReplacesTheCommandLines) {
  RowSpec defaults;
  ASSERT_TRUE(ApplySetting("budget", "2GB", defaults).ok());
  const auto placed = ParseRow("slots=4 retention=attention=device:all,mlp=device:3", defaults);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_TRUE(CheckRow(*placed).ok());
  EXPECT_EQ(placed->placement.mlp.device, 3);
  const auto plain = ParseRow("batch=3", defaults);
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(CheckRow(*plain).ok());
  EXPECT_EQ(plain->budget_bytes, 2'000'000'000);
  const auto budget = ParseRow("budget=3GiB", *placed);
  ASSERT_TRUE(budget.ok());
  EXPECT_TRUE(CheckRow(*budget).ok());
  EXPECT_EQ(budget->budget_bytes, int64_t{3} << 30);
}

TEST(RowSpecTest, Bytes) {
  EXPECT_EQ(*ParseBytes("9.9GB"), 9'900'000'000);
  EXPECT_EQ(*ParseBytes("1MiB"), 1 << 20);
  EXPECT_EQ(*ParseBytes("12B"), 12);
  for (const char* bad : {"", "GB", "-1GB", "1", "1gb", "nanGB", "1e30GB"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(LineFitTest, FindsTheLine) {
  const auto fit = FitLine({{512, 0.5 + 512 * 0.002}, {1024, 0.5 + 1024 * 0.002}, {4096, 8.692}});
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->fixed, 0.5, 1e-9);
  EXPECT_NEAR(fit->slope, 0.002, 1e-12);
  EXPECT_NEAR(fit->worst_residual, 0, 1e-9);
  EXPECT_FALSE(FitLine({{3, 1}, {3, 2}}).ok());
  EXPECT_FALSE(FitLine({}).ok());
}

// Standard deviation of a matrix of slab 0 as a dequantiser would see it.
double Deviation(const engine::ModelBase& base, engine::Module module) {
  const engine::LayerLayout layout = engine::MakeLayerLayout(base.spec, base.format);
  const engine::MatrixLayout& m = layout.matrix(module);
  const auto* slab = reinterpret_cast<const uint8_t*>(base.slabs[0].data());
  const int64_t n = m.rows * m.cols;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t byte = slab[m.data_offset + i / 2];
    const float code = kernels::kNf4Code[i % 2 == 0 ? byte >> 4 : byte & 15];
    const int64_t block = i / 64;
    float absmax, offset;
    std::memcpy(&absmax, slab + m.nested_absmax_offset + block / 256 * 4, 4);
    std::memcpy(&offset, slab + m.offset_offset, 4);
    const double w =
        code * (kernels::Nf4NestedCode()[slab[m.absmax_offset + block]] * absmax + offset);
    sum += w * w;
  }
  return std::sqrt(sum / static_cast<double>(n));
}

TEST(SyntheticBaseTest, WeightsHaveTheScaleOfAModelAndAreTheSameEveryTime) {
  const auto spec = FindBase("smollm-135m");
  ASSERT_TRUE(spec.ok());
  engine::ModelSpec small = *spec;
  small.layers = 2;
  small.vocab = 512;
  const auto one = SyntheticBase::Make(small, engine::BaseFormat::kNf4DoubleQuant, /*threads=*/1);
  const auto three = SyntheticBase::Make(small, engine::BaseFormat::kNf4DoubleQuant, /*threads=*/3);
  ASSERT_TRUE(one.ok() && three.ok());
  ASSERT_EQ((*one)->bytes(), (*three)->bytes());
  EXPECT_EQ(std::memcmp((*one)->data(), (*three)->data(), (*one)->bytes()), 0);
  EXPECT_TRUE(engine::CheckModelBase((*one)->base()).ok());
  for (const engine::Module m : {engine::Module::kQ, engine::Module::kDown}) {
    const double inputs = m == engine::Module::kQ ? 576 : 1536;
    EXPECT_NEAR(Deviation((*one)->base(), m) * std::sqrt(inputs), 1.0, 0.1);
  }
  // Layers differ.
  const auto& slabs = (*one)->base().slabs;
  EXPECT_NE(std::memcmp(slabs[0].data(), slabs[1].data(), slabs[0].size()), 0);
}

// Normal, even, or of what NF4 codes stand for (at most 16 values to 64 elements): all as wide.
TEST(SyntheticBaseTest, Bf16HasOneOfThreeKindsOfValues) {
  const auto spec = FindBase("smollm-135m");
  ASSERT_TRUE(spec.ok());
  engine::ModelSpec small = *spec;
  small.layers = 1;
  small.vocab = 512;
  for (const WeightValues values :
       {WeightValues::kNormal, WeightValues::kEven, WeightValues::kNf4}) {
    const auto base = SyntheticBase::Make(small, engine::BaseFormat::kBf16, 2, values);
    ASSERT_TRUE(base.ok());
    const auto layout = engine::MakeLayerLayout(small, engine::BaseFormat::kBf16);
    const engine::MatrixLayout& m = layout.matrix(engine::Module::kDown);
    const auto* weights =
        reinterpret_cast<const uint16_t*>((*base)->base().slabs[0].data() + m.data_offset);
    const int64_t n = m.rows * m.cols;
    double sum = 0;
    size_t most = 0;
    std::set<uint16_t> all;
    for (int64_t block = 0; block < n / 64; ++block) {
      const std::set<uint16_t> levels(weights + block * 64, weights + block * 64 + 64);
      most = std::max(most, levels.size());
      all.insert(levels.begin(), levels.end());
    }
    int64_t within = 0;  // one deviation
    for (int64_t i = 0; i < n; ++i) {
      const double w = kernels::Bf16ToF32(weights[i]) * std::sqrt(1536.0);
      sum += w * w;
      within += std::abs(w) < 1;
    }
    const double share = static_cast<double>(within) / static_cast<double>(n);
    EXPECT_NEAR(std::sqrt(sum / static_cast<double>(n)), 1.0, 0.1);
    if (values != WeightValues::kNf4) {
      EXPECT_NEAR(share, values == WeightValues::kNormal ? 0.6827 : 0.5774, 0.003);
    }
    if (values == WeightValues::kNf4) {
      EXPECT_LE(most, 16u);
    } else {
      EXPECT_GT(most, 48u);
    }
    EXPECT_GT(all.size(), 200u);  // blocks differ
  }
  EXPECT_FALSE(CheckRow(*ParseRow("values=nf4 format=nf4 slots=2", RowSpec())).ok());
  EXPECT_TRUE(CheckRow(*ParseRow("values=nf4 format=bf16 slots=2", RowSpec())).ok());
  EXPECT_EQ(ParseRow("values=even", RowSpec())->values, WeightValues::kEven);
  EXPECT_NE(ParseRow("values=even slots=2 format=bf16", RowSpec())->ToText().find(" values=even "),
            std::string::npos);
  EXPECT_FALSE(ParseRow("values=zeros", RowSpec()).ok());
}

TEST(NamedBaseTest, ShapesAreThePublishedOnes) {
  const auto model = FindBase("llama-70b");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->layers, 80);
  EXPECT_EQ(model->head_dim, 128);
  // 0.516 bytes a weight.
  EXPECT_NEAR(
      static_cast<double>(engine::SlabBytes(*model, engine::BaseFormat::kNf4DoubleQuant, 0)), 441e6,
      2e6);
}

}  // namespace
}  // namespace soup::bench
