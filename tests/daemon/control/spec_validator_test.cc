#include "daemon/control/spec_validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using soup::v1::JobSpec;
using ::testing::HasSubstr;

struct BadSpec {
  const char* says;  // part of the message
  std::function<void(JobSpec&)> spoil;
};

TEST(SpecValidator, AGoodSpecPasses) {
  EXPECT_TRUE(ValidateSpec(GoodSpec("n", "/m")).ok());
  JobSpec spec = GoodSpec("quoted \" and \\ are fine, ünïcode too", "/m");
  spec.mutable_lora()->clear_targets();
  spec.mutable_lora()->add_targets("q_proj");
  spec.mutable_lora()->add_targets("down_proj");
  EXPECT_TRUE(ValidateSpec(spec).ok());
  for (const char* precision : {"", "auto", "bf16", "fp32"}) {  // empty: an older client's
    spec.mutable_training()->set_precision(precision);
    EXPECT_TRUE(ValidateSpec(spec).ok()) << precision;
  }
  EXPECT_TRUE(ValidateSpec(GoodSpec(std::string(128, 'n'), "/m")).ok());
}

// The spec's training file as a list of it twice.
soup::v1::DataSpec* TwoSources(JobSpec& spec) {
  soup::v1::DataSpec* data = spec.mutable_data();
  for (int i = 0; i < 2; ++i) {
    *data->add_sources()->mutable_file() = data->train();
    data->mutable_sources(i)->set_weight(1);
  }
  data->clear_train();
  return data;
}

TEST(SpecValidator, EveryFormatThatIsReadIsTaken) {
  for (const char* format : {"auto", "text", "prompt_completion", "messages", "alpaca", "sharegpt",
                             "input_ids", "jsonl", "json", "csv", "tsv"}) {
    JobSpec spec = GoodSpec("n", "/m");
    spec.mutable_data()->set_format(format);
    EXPECT_TRUE(ValidateSpec(spec).ok()) << format;
  }
  JobSpec spec = GoodSpec("n", "/m");
  TwoSources(spec);
  EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
}

TEST(SpecValidator, EachBadValueIsRefusedByItsName) {
  const std::vector<BadSpec> bad = {
      {"name is missing", [](JobSpec& s) { s.clear_name(); }},
      {"has 129 bytes", [](JobSpec& s) { s.set_name(std::string(129, 'n')); }},
      {"control characters", [](JobSpec& s) { s.set_name("a\nb"); }},
      {"base.path is missing", [](JobSpec& s) { s.mutable_base()->clear_path(); }},
      {"base.format is \"int8\"", [](JobSpec& s) { s.mutable_base()->set_format("int8"); }},
      {"base.double_quant", [](JobSpec& s) { s.mutable_base()->set_format("bf16"); }},
      {"data.train is missing", [](JobSpec& s) { s.mutable_data()->clear_train(); }},
      {"as one file and as a list",
       [](JobSpec& s) { *s.mutable_data()->add_sources()->mutable_file() = s.data().train(); }},
      {"data.train[1].weight is 101",
       [](JobSpec& s) { TwoSources(s)->mutable_sources(1)->set_weight(101); }},
      {"data.train[0].weight is nan",
       [](JobSpec& s) { TwoSources(s)->mutable_sources(0)->set_weight(NAN); }},
      {"data.train[1].format is \"xml\"",
       [](JobSpec& s) { TwoSources(s)->mutable_sources(1)->set_format("xml"); }},
      {"data.train[1].sha256",
       [](JobSpec& s) { TwoSources(s)->mutable_sources(1)->mutable_file()->set_sha256("x"); }},
      {"every weight is 0",
       [](JobSpec& s) {
         for (auto& source : *TwoSources(s)->mutable_sources()) source.set_weight(0);
       }},
      {"data.too_long is \"cut\"", [](JobSpec& s) { s.mutable_data()->set_too_long("cut"); }},
      {"data.max_errors is -1", [](JobSpec& s) { s.mutable_data()->set_max_errors(-1); }},
      {"data.train.sha256",
       [](JobSpec& s) { s.mutable_data()->mutable_train()->set_sha256(std::string(64, 'A')); }},
      {"name \"  \" is blank", [](JobSpec& s) { s.set_name("  "); }},
      {"data.format is \"xml\"", [](JobSpec& s) { s.mutable_data()->set_format("xml"); }},
      {"data.max_length is 1", [](JobSpec& s) { s.mutable_data()->set_max_length(1); }},
      {"data.train_on", [](JobSpec& s) { s.mutable_data()->set_train_on("prompts"); }},
      {"data.validation is 0.6",
       [](JobSpec& s) { s.mutable_data()->set_validation_fraction(0.6); }},
      {"data.validation is nan",
       [](JobSpec& s) { s.mutable_data()->set_validation_fraction(NAN); }},
      {"give one of the two",
       [](JobSpec& s) {
         s.mutable_data()->set_validation_fraction(0.1);
         *s.mutable_data()->mutable_validation_file() = s.data().train();
       }},
      {"lora.r is 0", [](JobSpec& s) { s.mutable_lora()->set_r(0); }},
      {"lora.r is -1", [](JobSpec& s) { s.mutable_lora()->set_r(-1); }},
      {"lora.r is 5000", [](JobSpec& s) { s.mutable_lora()->set_r(5000); }},
      {"lora.alpha is 0", [](JobSpec& s) { s.mutable_lora()->set_alpha(0); }},
      {"lora.alpha is inf", [](JobSpec& s) { s.mutable_lora()->set_alpha(INFINITY); }},
      {"lora.dropout is 1", [](JobSpec& s) { s.mutable_lora()->set_dropout(1.0); }},
      {"lora.dropout is -0.1", [](JobSpec& s) { s.mutable_lora()->set_dropout(-0.1); }},
      {"lora.targets is empty", [](JobSpec& s) { s.mutable_lora()->clear_targets(); }},
      {"lora.targets is \"lm_head\"",
       [](JobSpec& s) { s.mutable_lora()->set_targets(0, "lm_head"); }},
      {"mixes all-linear", [](JobSpec& s) { s.mutable_lora()->add_targets("q_proj"); }},
      {"there twice",
       [](JobSpec& s) {
         s.mutable_lora()->set_targets(0, "q_proj");
         s.mutable_lora()->add_targets("q_proj");
       }},
      {"lora.init_from has one file",
       [](JobSpec& s) { *s.mutable_lora()->mutable_init_adapter() = s.data().train(); }},
      {"training.task is \"dpo\"", [](JobSpec& s) { s.mutable_training()->set_task("dpo"); }},
      {"training.epochs is 0", [](JobSpec& s) { s.mutable_training()->set_epochs(0); }},
      {"training.epochs is nan", [](JobSpec& s) { s.mutable_training()->set_epochs(NAN); }},
      {"training.batch_size is 0", [](JobSpec& s) { s.mutable_training()->set_batch_size(0); }},
      {"training.learning_rate is 0",
       [](JobSpec& s) { s.mutable_training()->set_learning_rate(0); }},
      {"training.scheduler is \"step\"",
       [](JobSpec& s) { s.mutable_training()->set_scheduler("step"); }},
      {"training.warmup_ratio is 1.5",
       [](JobSpec& s) { s.mutable_training()->set_warmup_ratio(1.5); }},
      {"training.weight_decay is -1",
       [](JobSpec& s) { s.mutable_training()->set_weight_decay(-1); }},
      {"training.max_grad_norm is -1",
       [](JobSpec& s) { s.mutable_training()->set_max_grad_norm(-1); }},
      {"training.save_every is -1", [](JobSpec& s) { s.mutable_training()->set_save_every(-1); }},
      {"training.keep_last is 0", [](JobSpec& s) { s.mutable_training()->set_keep_last(0); }},
      {"training.max_steps is -1", [](JobSpec& s) { s.mutable_training()->set_max_steps(-1); }},
      {"training.adam_beta1 is 1", [](JobSpec& s) { s.mutable_training()->set_adam_beta1(1); }},
      {"training.adam_beta2 is -1", [](JobSpec& s) { s.mutable_training()->set_adam_beta2(-1); }},
      {"training.adam_epsilon is 0", [](JobSpec& s) { s.mutable_training()->set_adam_epsilon(0); }},
      {"training.precision is \"fp16\": this soupd knows auto, bf16, fp32",
       [](JobSpec& s) { s.mutable_training()->set_precision("fp16"); }},
      {"resources.vram is -1", [](JobSpec& s) { s.mutable_resources()->set_vram_bytes(-1); }},
      {"resources.priority is \"urgent\"",
       [](JobSpec& s) { s.mutable_resources()->set_priority("urgent"); }},
      {"resources.time_limit is -1",
       [](JobSpec& s) { s.mutable_resources()->set_time_limit_seconds(-1); }},
      {"output", [](JobSpec& s) { s.set_output(std::string(5000, 'o')); }},
  };
  for (const BadSpec& b : bad) {
    JobSpec spec = GoodSpec("n", "/m");
    b.spoil(spec);
    const absl::Status status = ValidateSpec(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << b.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(b.says));
    // What is wrong and what to do: never the one without the other.
    EXPECT_THAT(std::string(status.message()), HasSubstr(":"));
  }
}

TEST(SpecValidator, AFieldOfANewerClientIsNotIgnored) {
  JobSpec spec = GoodSpec("n", "/m");
  auto* training = spec.mutable_training();
  training->GetReflection()->MutableUnknownFields(training)->AddVarint(900, 1);
  const absl::Status status = ValidateSpec(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job.training, number 900"));
}

class BasePathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = dir_ / "models";
    for (const char* folder :
         {"/models", "/models/base", "/models/hub", "/outside", "/outside/base", "/models-evil"}) {
      ASSERT_EQ(mkdir((dir_.path() + folder).c_str(), 0700), 0);
    }
    for (const char* folder : {"/models/base", "/outside/base", "/models-evil"}) {
      soup::testing::WriteWhole(dir_.path() + folder + "/config.json", "{}");
    }
  }
  absl::StatusOr<std::string> Resolve(const std::string& path) {
    return ResolveBasePath(path, {root_});
  }
  soup::testing::TempDir dir_{soup::testing::TempDir::kInMemory};
  std::string root_;
};

TEST_F(BasePathTest, AFolderUnderARootIsFoundAndLinksInsideAreFollowed) {
  EXPECT_EQ(Resolve(root_ + "/base").value(), root_ + "/base");
  EXPECT_EQ(Resolve(root_ + "/hub/../base/").value(), root_ + "/base");
  ASSERT_EQ(symlink((root_ + "/base").c_str(), (root_ + "/hub/snapshot").c_str()), 0);
  EXPECT_EQ(Resolve(root_ + "/hub/snapshot").value(), root_ + "/base");
}

TEST_F(BasePathTest, WhatLeadsOutIsRefused) {
  ASSERT_EQ(symlink((dir_ / "outside/base").c_str(), (root_ + "/link").c_str()), 0);
  for (const std::string& path :
       {root_ + "/link", dir_ / "outside/base", root_ + "/../outside/base", dir_ / "models-evil",
        dir_ / "nothing-here"}) {
    const auto resolved = Resolve(path);
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kPermissionDenied) << path;
    EXPECT_THAT(std::string(resolved.status().message()), HasSubstr(root_)) << path;
  }
  // Whether something outside exists cannot be told from the answer.
  EXPECT_EQ(Resolve(dir_ / "outside/none").status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(BasePathTest, WhatIsNoModelIsRefusedWithTheRemedy) {
  EXPECT_EQ(Resolve(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Resolve("base").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve(root_ + "/hub").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Resolve(root_ + "/hub").status().message()), HasSubstr("config.json"));
  EXPECT_EQ(Resolve(root_ + "/base/config.json").status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto none = ResolveBasePath(root_ + "/base", {});
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("--model-root"));
}

}  // namespace
}  // namespace soup::daemon
