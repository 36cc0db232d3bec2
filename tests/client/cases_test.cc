// Faults that other trainers had (tests/cases), through the programs: the cases' own job files,
// submitted by soupctl to a real soupd with a real worker. B starts at zero, so the first step's
// loss is the base's own and tells exactly which targets were counted.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/subprocess.h"
#include "tests/daemon/harness.h"
#include "tests/support/whole_file.h"

namespace soup::client {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ReadWhole;
using testing::WriteWhole;

constexpr double kTolerance = 2e-4;

struct Ended {
  int code;
  std::string out, err;
};

// One soupd for all cases: they only submit.
class CasesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    soupd_ = new daemon::Harness();
    const absl::Status started = soupd_->Start();
    ASSERT_TRUE(started.ok()) << started << soupd_->log();
  }
  static void TearDownTestSuite() {
    delete soupd_;
    soupd_ = nullptr;
  }

  // Makes the case's folder below the model root: its files, a base under each name that its job
  // files have, and the folder's own path in them.
  std::string Compose(const std::string& name) {
    const std::string to = absl::StrCat(soupd_->dir(), "/", name);
    if (fs::exists(to)) return to;
    fs::copy(daemon::TestData("cases/" + name), to, fs::copy_options::recursive);
    const std::string bytes = daemon::TestData("cases/_base/bytes");
    const auto base = [&](const std::string& folder, const std::string& over) {
      fs::copy(bytes, folder);
      for (const char* file : {"tokenizer.json", "tokenizer_config.json", "config.json"}) {
        if (fs::exists(over + "/" + file))
          fs::copy_file(over + "/" + file, folder + "/" + file,
                        fs::copy_options::overwrite_existing);
      }
    };
    std::vector<std::string> overs, jobs;
    for (const auto& entry : fs::directory_iterator(to)) {
      const std::string file = entry.path().filename();
      if (absl::StartsWith(file, "over-")) overs.push_back(file);
      if (absl::EndsWith(file, ".yaml")) jobs.push_back(file);
    }
    for (const std::string& over : overs)
      base(absl::StrCat(to, "/base", over.substr(4)), absl::StrCat(to, "/", over));
    if (!fs::exists(to + "/base")) base(to + "/base", to);
    for (const std::string& job : jobs) {
      const std::string path = absl::StrCat(to, "/", job);
      WriteWhole(path, absl::StrReplaceAll(ReadWhole(path), {{"@HERE@", to}}));
    }
    return to;
  }

  static Ended Run(const std::string& folder, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {absl::StrCat(SOUP_BINARY_DIR, "/bin/soupctl"), "--endpoint",
                      absl::StrCat("unix:", soupd_->state_dir(), "/soupd.sock")});
    Subprocess process(arguments, {.environment = {{"HOME", folder}, {"PATH", "/usr/bin:/bin"}},
                                   .folder = folder});
    const int code = process.Wait(absl::Seconds(120));
    return {code, process.out(), process.err()};
  }

  // Submits a case's job and waits for it; its id, or "" when it did not succeed.
  std::string Submit(const std::string& name, const std::string& job,
                     const std::vector<std::string>& more = {}) {
    const std::string folder = Compose(name);
    std::vector<std::string> arguments = {"submit", job, "--wait", "-o", "name"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended e = Run(folder, arguments);
    EXPECT_EQ(e.code, 0) << name << " " << job << "\n" << e.err;
    return e.code == 0 ? std::string(absl::StripAsciiWhitespace(e.out)) : "";
  }
  // What soupctl says of a case's job that must not succeed.
  std::string Refused(const std::string& name, const std::string& job) {
    const Ended e = Run(Compose(name), {"submit", job, "--wait"});
    EXPECT_NE(e.code, 0) << name << " " << job << "\n" << e.out;
    return e.err;
  }
  void ExpectFirstStep(const std::string& id, double loss, int64_t supervised) {
    if (id.empty()) return;
    const auto steps = soupd_->Steps(id);
    ASSERT_FALSE(steps.empty());
    EXPECT_NEAR(steps[0].loss(), loss, kTolerance);
    EXPECT_EQ(steps[0].supervised_tokens(), supervised);
    EXPECT_EQ(steps[0].padding_tokens(), 0);
  }
  static nlohmann::json Expected(const std::string& name) {
    return nlohmann::json::parse(
        ReadWhole(daemon::TestData(absl::StrCat("cases/", name, "/expected.json"))));
  }

  static daemon::Harness* soupd_;
};
daemon::Harness* CasesTest::soupd_ = nullptr;

TEST_F(CasesTest, Case01OneBos) {
  const auto e = Expected("01-double-bos");
  const std::string id = Submit("01-double-bos", "job.yaml");
  ExpectFirstStep(id, e["loss"], e["supervised"]);
  EXPECT_EQ(soupd_->Steps(id)[0].tokens(), 45);
}

TEST_F(CasesTest, Case03FlagsOfAddedTokens) {
  const auto e = Expected("03-strip-flags");
  ExpectFirstStep(Submit("03-strip-flags", "job.yaml"), e["loss_with_eos"], e["supervised"]);
}

TEST_F(CasesTest, Case05PromptAndAnswerTokenisedApart) {
  const auto e = Expected("05-boundary-merge")["separate"];
  ExpectFirstStep(Submit("05-boundary-merge", "job.yaml"), e["loss"], e["supervised"]);
}

TEST_F(CasesTest, Case07ToolTurnsInEveryWireFormat) {
  const auto e = Expected("07-tool-turn-null");
  for (const char* job : {"job-object.yaml", "job-null.yaml", "job-string.yaml"})
    ExpectFirstStep(Submit("07-tool-turn-null", job), e["loss"], e["supervised"]);
}

TEST_F(CasesTest, Case09BytesOfFiles) {
  const auto e = Expected("09-file-bytes");
  for (const char* job :
       {"job-plain.yaml", "job-bom-crlf.yaml", "job-escaped.yaml", "job-csv.yaml"}) {
    SCOPED_TRACE(job);
    const std::string id = Submit("09-file-bytes", job);
    ExpectFirstStep(id, e["same_rows"]["loss"], e["same_rows"]["supervised"]);
    EXPECT_EQ(soupd_->Get(id).dataset().records(), 3);
  }
  const std::string words = Submit("09-file-bytes", "job-words.yaml");
  ExpectFirstStep(words, e["words"]["loss"], e["words"]["supervised"]);
  EXPECT_EQ(soupd_->Get(words).dataset().records(), 3);
  EXPECT_THAT(Refused("09-file-bytes", "job-lone.yaml"),
              AllOf(HasSubstr("lone-surrogate.jsonl line 2"), HasSubstr("surrogate")));
  EXPECT_THAT(Refused("09-file-bytes", "job-cp1252.yaml"),
              AllOf(HasSubstr("windows-1252.jsonl line 2"), HasSubstr("0x92"),
                    HasSubstr(absl::StrCat("offset ", e["windows_1252_offset"].get<int>()))));
}

// Adapters in float, tensor data only.
std::vector<float> Weights(const std::string& adapter) {
  uint64_t header = 0;
  if (adapter.size() < 8) return {};
  std::memcpy(&header, adapter.data(), 8);
  std::vector<float> out((adapter.size() - 8 - header) / 4);
  std::memcpy(out.data(), adapter.data() + 8 + header, out.size() * 4);
  return out;
}

TEST_F(CasesTest, Case11PackedRowsDoNotSeeEachOther) {
  const auto e = Expected("11-pack-leak");
  const std::string packed = Submit("11-pack-leak", "job-packed.yaml");
  const std::string plain = Submit("11-pack-leak", "job-plain.yaml");
  ExpectFirstStep(packed, e["loss"], e["supervised"]);
  ExpectFirstStep(plain, e["loss"], e["supervised"]);
  EXPECT_NEAR(soupd_->Steps(packed)[0].loss(), soupd_->Steps(plain)[0].loss(), 1e-5);
  const auto a = Weights(soupd_->Adapter(packed)), b = Weights(soupd_->Adapter(plain));
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i] - b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-4);
}

TEST_F(CasesTest, Case13TokensAreWeighedWhateverTheCut) {
  const auto e = Expected("13-token-weighting");
  const std::string whole = Submit("13-token-weighting", "job-unequal.yaml");
  ExpectFirstStep(whole, e["unequal"]["loss"], e["unequal"]["supervised"]);
  // The least that plan accepts: the same bits.
  const std::string folder = Compose("13-token-weighting");
  const Ended plan = Run(folder, {"plan", "job-unequal.yaml", "-o", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto json = nlohmann::json::parse(plan.out);
  const auto& least = json.contains("minimum_bytes") ? json["minimum_bytes"] : json["minimumBytes"];
  const int64_t bytes =
      least.is_string() ? std::stoll(least.get<std::string>()) : least.get<int64_t>();
  const std::string small =
      Submit("13-token-weighting", "job-unequal.yaml",
             {"--set", absl::StrCat("resources.vram=", (bytes + 1023) / 1024, "KiB")});
  ExpectFirstStep(small, e["unequal"]["loss"], e["unequal"]["supervised"]);
  EXPECT_EQ(soupd_->Adapter(small), soupd_->Adapter(whole));

  const std::string equal = Submit("13-token-weighting", "job-equal.yaml");
  const auto steps = soupd_->Steps(equal);
  ASSERT_EQ(steps.size(), 2u);
  for (const auto& step : steps) EXPECT_NEAR(step.loss(), e["equal"]["loss"], kTolerance);
  EXPECT_NEAR(steps[1].grad_norm(), steps[0].grad_norm(), 1e-5 * steps[0].grad_norm());
}

TEST_F(CasesTest, Case21RopeScalingInEverySpelling) {
  const auto e = Expected("21-llama3-rope");
  for (const char* job : {"job-new.yaml", "job-old.yaml", "job-oldest.yaml", "job-int.yaml"})
    ExpectFirstStep(Submit("21-llama3-rope", job), e["loss"], e["supervised"]);
  EXPECT_THAT(Refused("21-llama3-rope", "job-unknown.yaml"), HasSubstr("spiral"));
  // Computed (model_spec_test holds its frequencies), never run as plain rope.
  const std::string yarn = Submit("21-llama3-rope", "job-yarn.yaml");
  ASSERT_FALSE(yarn.empty());
  EXPECT_GT(std::abs(soupd_->Steps(yarn)[0].loss() - e["faults"]["ignored"].get<double>()), 1e-2);
}

TEST_F(CasesTest, Case23AdaptersAsPeftReadsThem) {
  const std::string id = Submit("23-adapter-contract", "job-n.yaml");
  const std::string longer = Submit("23-adapter-contract", "job-n1.yaml");
  ASSERT_FALSE(id.empty() || longer.empty());
  const std::string folder = Compose("23-adapter-contract");
  ASSERT_EQ(Run(folder, {"fetch", id, "--output", "adapter"}).code, 0);
  const auto config = nlohmann::json::parse(ReadWhole(folder + "/adapter/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["r"], 8);
  EXPECT_EQ(config["lora_alpha"], 16);
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["bias"], "none");
  EXPECT_EQ(config["lora_dropout"], 0.0);
  EXPECT_EQ(config["fan_in_fan_out"], false);
  EXPECT_EQ(config["inference_mode"], true);
  EXPECT_NE(config["base_model_name_or_path"], "");
  auto targets = config["target_modules"].get<std::vector<std::string>>();
  EXPECT_THAT(targets, ::testing::UnorderedElementsAre("q_proj", "v_proj", "down_proj"));
  const std::string bytes = soupd_->Adapter(id);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  auto header = nlohmann::json::parse(bytes.substr(8, size));
  header.erase("__metadata__");
  EXPECT_EQ(header.size(), 12u);
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* module : {"self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"}) {
      const std::string name =
          absl::StrCat("base_model.model.model.layers.", layer, ".", module, ".lora_");
      ASSERT_TRUE(header.contains(name + "A.weight") && header.contains(name + "B.weight")) << name;
      EXPECT_EQ(header[name + "A.weight"]["shape"][0], 8);
      EXPECT_EQ(header[name + "B.weight"]["shape"][1], 8);
      const auto at = header[name + "B.weight"]["data_offsets"].get<std::vector<uint64_t>>();
      EXPECT_NE(bytes.substr(8 + size + at[0], at[1] - at[0]), std::string(at[1] - at[0], '\0'));
    }
  }
  for (const float w : Weights(bytes)) ASSERT_TRUE(std::isfinite(w));
  const auto steps = soupd_->Steps(longer);
  ASSERT_EQ(steps.size(), 6u);
  // A job that goes on from the adapter of 5 steps sees what the longer one saw at its sixth; one
  // that would scale it otherwise is refused.
  const std::string on =
      Submit("23-adapter-contract", "job-n.yaml", {"--set", "lora.init_from=adapter"});
  ASSERT_FALSE(on.empty());
  EXPECT_NEAR(soupd_->Steps(on)[0].loss(), steps[5].loss(), 1e-6 * steps[5].loss());
  for (const char* other : {"lora.alpha=32", "lora.rslora=false"}) {
    const Ended e = Run(folder, {"submit", "job-n.yaml", "--wait", "--set",
                                 "lora.init_from=adapter", "--set", other});
    EXPECT_NE(e.code, 0);
    EXPECT_THAT(e.err, AllOf(HasSubstr("lora.init_from"), HasSubstr("set lora.alpha: 16"),
                             HasSubstr("lora.rslora: true")));
  }
}

}  // namespace
}  // namespace soup::client
