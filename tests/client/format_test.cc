// The forms of output, and text of others on the way to a terminal.
#include "client/format.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/doctor.h"
#include "client/exit_codes.h"
#include "client/views.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace soup::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

soup::v1::Job SomeJob() {
  soup::v1::Job job;
  job.set_id("abc");
  job.mutable_spec()->set_name("true");  // a word that YAML takes for something else
  job.mutable_spec()->mutable_training()->set_seed(18446744073709551615u);
  job.mutable_spec()->mutable_training()->set_learning_rate(2e-4);
  job.mutable_spec()->mutable_lora()->add_targets("all-linear");
  job.set_state(soup::v1::RUNNING);
  job.set_message("line one\n\"quoted\": #x \x1b[31m");
  job.set_steps_done(12);
  job.set_steps_total(300);
  job.set_last_loss(std::nan(""));
  job.set_created_unix_ms(1'900'000'000'000);
  return job;
}

TEST(FormatTest, JsonKeepsTheProtosNamesAndEveryField) {
  const std::string json = ToJson(SomeJob());
  const auto parsed = nlohmann::json::parse(json);
  EXPECT_EQ(parsed["steps_done"], "12");
  EXPECT_EQ(parsed["state"], "RUNNING");
  EXPECT_EQ(parsed["reason"], "REASON_UNSPECIFIED");
  EXPECT_EQ(parsed["warnings"], nlohmann::json::array());
  EXPECT_EQ(parsed["spec"]["training"]["adam_beta1"], 0.0);
  soup::v1::Job again;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &again).ok());
  EXPECT_TRUE(std::isnan(again.last_loss()));
  EXPECT_EQ(again.spec().training().seed(), 18446744073709551615u);
  EXPECT_EQ(ToJsonLine(SomeJob()).find('\n'), ToJsonLine(SomeJob()).size() - 1);
}

// YAML to JSON by yaml-cpp: quoted scalars are strings, the others are JSON as they stand.
nlohmann::json FromYaml(const YAML::Node& node) {
  if (node.IsMap()) {
    auto out = nlohmann::json::object();
    for (const auto& pair : node) out[pair.first.Scalar()] = FromYaml(pair.second);
    return out;
  }
  if (node.IsSequence()) {
    auto out = nlohmann::json::array();
    for (const auto& item : node) out.push_back(FromYaml(item));
    return out;
  }
  if (node.Tag() != "!") {
    const auto parsed = nlohmann::json::parse(node.Scalar(), nullptr, false);
    if (!parsed.is_discarded()) return parsed;
  }
  return node.Scalar();
}

TEST(FormatTest, YamlIsTheSameTreeAsJson) {
  const std::string yaml = ToYaml(SomeJob());
  EXPECT_EQ(FromYaml(YAML::Load(yaml)), nlohmann::json::parse(ToJson(SomeJob()))) << yaml;
  EXPECT_THAT(yaml, HasSubstr("  name: \"true\"\n"));
  EXPECT_THAT(yaml, HasSubstr("state: RUNNING\n"));
  EXPECT_THAT(yaml, HasSubstr("warnings: []\n"));
  EXPECT_EQ(ToYaml(SomeJob()), yaml) << "stable";
}

TEST(FormatTest, TablesAlignAndHaveNoColourUnlessAsked) {
  Table table({"A", ">N", "TEXT"});
  table.Add({"x", "1", "é"});
  table.Add({"long", "100", "y"});
  EXPECT_EQ(table.Render(false),
            "A       N  TEXT\n"
            "x       1  é\n"
            "long  100  y\n");
  EXPECT_THAT(table.Render(true), HasSubstr("\x1b[1m"));
  EXPECT_EQ(*ParseOutputFormat("name"), OutputFormat::kName);
  EXPECT_EQ(ExitCodeOf(ParseOutputFormat("xml").status()), ExitCode::kUsage);
}

TEST(FormatTest, TextOfOthersCannotCommandTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[31mb\x07\x7f"), "a\\x1b[31mb\\x07\\x7f");
  EXPECT_EQ(Printable("é\xC2\x9Bx\nz"), "é\\x9bx z");
  EXPECT_EQ(PrintableLines("\x1b[1ma\r\n\nb\tc\n"), "\\x1b[1ma\\x0d\n\nb c\n");
  const std::string details = JobDetails(SomeJob(), false);
  EXPECT_THAT(details, Not(HasSubstr("\x1b")));
  EXPECT_THAT(details, HasSubstr("line one \"quoted\""));
  EXPECT_THAT(JobTable({SomeJob()}, 1'900'000'300'000, false), Not(HasSubstr("\x1b")));
  EXPECT_THAT(JobTable({SomeJob()}, 1'900'000'300'000, true), HasSubstr("\x1b[34mRUNNING"));
}

TEST(FormatTest, CutsAtTheWidthAndBetweenCharacters) {
  EXPECT_EQ(CutToWidth("añb", 2), "añ");
  EXPECT_EQ(CutToWidth("\x1b[31mabc\x1b[0m", 2), "\x1b[31mab");
  EXPECT_EQ(DisplayWidth("\x1b[31mñb\x1b[0m"), 2u);
  EXPECT_EQ(ProgressBar(0.5, 12), "[=====>    ]");
  EXPECT_EQ(ProgressBar(std::nan(""), 12), "[          ]");
  EXPECT_EQ(ProgressBar(7, 12), "[==========]");
}

TEST(ViewsTest, AStepOnOneLine) {
  soup::v1::StepRecord step;
  step.set_step(12);
  step.set_loss(1.23456);
  step.set_grad_norm(0.5);
  step.set_learning_rate(1.9e-4);
  step.set_tokens(2468);
  step.set_step_seconds(2);
  step.set_stall_seconds(0.1);
  EXPECT_EQ(StepLine(step, 300, 723),
            "step 12/300  loss 1.2346  grad 0.500  lr 1.90e-04  1234 tok/s  stall 5.0%  2.0s  ETA "
            "12m 03s");
  step.set_loss(std::nan(""));
  step.set_skipped(true);
  EXPECT_THAT(StepLine(step, 0, -1), HasSubstr("step 12  loss NaN  grad"));
  EXPECT_THAT(StepLine(step, 0, -1), HasSubstr("SKIPPED"));
}

// "-" is a step without validation, not one whose loss is no number.
TEST(ViewsTest, AValidationLossThatIsNotFiniteIsTold) {
  soup::v1::StepRecord step;
  step.set_step(3);
  step.set_loss(1.5);
  EXPECT_THAT(StepLine(step, 0, -1), Not(HasSubstr("val")));
  EXPECT_THAT(StepTable({step}, false), HasSubstr(" 1.5000           -  "));
  step.set_has_validation_loss(true);
  step.set_validation_loss(std::nan(""));
  EXPECT_THAT(StepLine(step, 0, -1), HasSubstr("  val NaN  "));
  EXPECT_THAT(StepTable({step}, false), HasSubstr(" 1.5000         NaN  "));
  step.set_validation_loss(std::numeric_limits<double>::infinity());
  EXPECT_THAT(StepLine(step, 0, -1), HasSubstr("  val Infinity  "));
  EXPECT_THAT(StepTable({step}, false), HasSubstr(" 1.5000    Infinity  "));
}

TEST(ViewsTest, AWarningIsToldOnce) {
  soup::v1::Job job = SomeJob();
  job.add_warnings("a.jsonl: seen");
  job.mutable_dataset()->add_warnings("a.jsonl: seen");
  job.mutable_dataset()->add_warnings("a.jsonl: other");
  const std::string details = JobDetails(job, false);
  EXPECT_THAT(details, HasSubstr("a.jsonl: other"));
  EXPECT_EQ(details.find("a.jsonl: seen"), details.rfind("a.jsonl: seen"));
  EXPECT_THAT(details, HasSubstr("a.jsonl: seen"));
}

TEST(ViewsTest, AJobWithoutAStepHasNoLoss) {
  soup::v1::Job job = SomeJob();
  job.set_last_loss(std::nan(""));
  job.set_steps_done(0);
  EXPECT_THAT(JobTable({job}, 1'900'000'300'000, false), Not(HasSubstr("NaN")));
  job.set_steps_done(3);
  EXPECT_THAT(JobTable({job}, 1'900'000'300'000, false), HasSubstr("NaN"));
}

TEST(ViewsTest, PreviewMarksWhatCounts) {
  soup::v1::PreviewDataReply reply;
  auto* record = reply.add_records();
  for (const char* text : {"ask ", "an", "swer", " end"}) {
    auto* token = record->add_tokens();
    token->set_text(text);
    token->set_supervised(text[0] == 'a' ? text[1] == 'n' : text[0] == 's');
  }
  EXPECT_THAT(PreviewText(reply, false), HasSubstr("ask 「answer」 end"));
  EXPECT_THAT(PreviewText(reply, true), HasSubstr("\x1b[32man"));
}

TEST(ViewsTest, PreviewTellsFilesLengthsAndPacking) {
  soup::v1::PreviewDataReply reply;
  auto* report = reply.mutable_report();
  report->set_records(30);
  report->set_tokens(2000);
  report->set_supervised_tokens(500);
  report->set_truncated_records(1);
  report->set_split_records(2);
  report->set_skipped_records(7);
  report->set_error_records(3);
  report->set_dropped_records(4);
  for (const char* name : {"a.jsonl", "b.csv"}) {
    auto* source = report->add_sources();
    source->set_name(name);
    source->set_kind("csv");
    source->set_weight(0.5);
    source->set_read_records(1234);
  }
  auto* record = reply.add_records();
  record->set_source("b.csv");
  record->set_line(3);
  record->set_pieces(4);
  auto* packing = reply.mutable_packing();
  packing->set_steps(10);
  packing->set_steps_total(20);
  packing->set_records(15);
  packing->set_micro_batches(12);
  packing->set_tokens(980);
  packing->set_bucket_tail_tokens(20);
  const std::string text = PreviewText(reply, false);
  EXPECT_THAT(text, HasSubstr("1 cut to max_length, 2 split, 7 not used (3 bad, 4 too long)"));
  EXPECT_THAT(text, HasSubstr("b.csv line 3: 0 tokens, 0 supervised, the first of 4 pieces"));
  EXPECT_THAT(text, HasSubstr("a.jsonl  csv   -          0.5  1234"));
  EXPECT_THAT(text, HasSubstr("15 records in 12 micro-batches of the first 10 steps; 98.0% of the "
                              "rows are tokens (padding between records 0, bucket tails 2.0%)"));
  EXPECT_THAT(text, HasSubstr("supervised: 25.0% of the tokens"));
}

TEST(DoctorTest, EachTroubleHasItsRemedy) {
  soup::v1::Node node;
  node.set_version("9.9");
  node.set_memory_total_bytes(int64_t{64} << 30);
  node.set_memory_available_bytes(int64_t{1} << 30);
  node.set_state_dir_free_bytes(1 << 20);
  node.set_storage_message("disk full");
  auto* worker = node.add_workers();
  worker->set_heartbeat_age_ms(100'000);
  auto* base = node.add_bases();
  base->set_fingerprint("0123456789abcdef");
  base->set_tier("plain");
  std::map<std::string, Check::Result> results;
  for (const Check& c : NodeChecks(node, "0.1.0")) {
    results[c.name] = c.result;
    EXPECT_EQ(c.remedy.empty(), c.result == Check::Result::kGood) << c.name;
  }
  EXPECT_EQ(results["version"], Check::Result::kWarning);
  EXPECT_EQ(results["memory"], Check::Result::kWarning);
  EXPECT_EQ(results["state directory"], Check::Result::kWarning);
  EXPECT_EQ(results["storage"], Check::Result::kBad);
  EXPECT_EQ(results["model roots"], Check::Result::kBad);
  EXPECT_EQ(results["devices"], Check::Result::kBad);
  EXPECT_EQ(results["worker "], Check::Result::kBad);
  const Check pages = HugePageCheck({}, node);
  EXPECT_EQ(pages.result, Check::Result::kWarning);
  EXPECT_THAT(pages.detail, HasSubstr("0123456789ab plain"));
  EXPECT_EQ(HugePageCheck({.known = true, .transparent_shmem = "advise"}, {}).result,
            Check::Result::kGood);
  EXPECT_EQ(HugePageCheck({.known = true, .transparent_shmem = "never"}, {}).result,
            Check::Result::kWarning);
}

}  // namespace
}  // namespace soup::client
