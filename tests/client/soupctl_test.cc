// The program soupctl as its users run it: exit codes, what goes to stdout and what to stderr, the
// forms of output, terminals and pipes, Ctrl-C, contexts over TLS. Against a fake soupd.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_soup.h"
#include "tests/client/subprocess.h"
#include "tests/client/test_files.h"

namespace soup::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kProgram = absl::StrCat(SOUP_BINARY_DIR, "/bin/soupctl");

struct Ended {
  int code;
  std::string out, err;
};

class SoupctlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.environment = {{"HOME", folder_.path()},
                            {"PATH", "/usr/bin:/bin"},
                            {"TERM", "xterm"},
                            {"TZ", "UTC"},
                            {"SOUP_ENDPOINT", "unix:" + (folder_ / "s")}};
    options_.folder = folder_.path();
    WriteWhole(folder_ / "train.jsonl", "{\"text\": \"hello\"}\n");
    WriteWhole(folder_ / "job.yaml",
               "name: notes\nbase: {path: /models/m}\ndata: {train: train.jsonl}\noutput: out\n");
  }

  void Serve() { soup_.ServeUnix(folder_ / "s"); }

  std::unique_ptr<Subprocess> Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), kProgram);
    return std::make_unique<Subprocess>(arguments, options_);
  }
  Ended Run(const std::vector<std::string>& arguments) {
    auto process = Start(arguments);
    const int code = process->Wait();
    return {code, process->out(), process->err()};
  }

  // A job that has SUCCEEDED, with steps and an adapter.
  void AddDoneJob(const std::string& id, const std::string& output = "") {
    soup_.AddJob(id, "notes", soup::v1::QUEUED)->mutable_spec()->set_output(output);
    soup_.AddEvent(id, soup::v1::RUNNING, "on the CPU");
    for (int i = 1; i <= 5; ++i) soup_.AddStep(id, i, 3.0 / i);
    soup_.AddEvent(id, soup::v1::SUCCEEDED);
    soup_.AddArtifact(id, "adapter_model.safetensors", "weights");
    soup_.AddArtifact(id, "adapter_config.json", "{}");
  }

  TempDir folder_;
  FakeSoup soup_;
  Subprocess::Options options_;
};

// ---- usage ----

TEST_F(SoupctlTest, UsageErrorsAreTwoAndSpeakOnStderrOnly) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"lst"},
                                                       {"list", "--no-such-flag"},
                                                       {"get"},
                                                       {"list", "-o", "xml"},
                                                       {"logs", "x", "-o", "json"},
                                                       {"cache"},
                                                       {"cache", "lss"},
                                                       {"context", "add", "x"},
                                                       {"submit"},
                                                       {"submit", "absent.yaml"},
                                                       {"list", "--state", "RUNING"},
                                                       {"wait", "x", "--timeout", "10"},
                                                       {"list", "--request-timeout", "10"},
                                                       {"submit", "job.yaml", "--wait", "--watch"},
                                                       {"completion", "tcsh"},
                                                       {"submit", "job.yaml", "--timeout", "5m"},
                                                       {"get", "x", "--endpoint", "nowhere"}};
  Serve();
  AddDoneJob("x");
  for (const auto& arguments : wrong) {
    const Ended e = Run(arguments);
    EXPECT_EQ(e.code, 2) << ::testing::PrintToString(arguments) << e.err;
    EXPECT_THAT(e.out, IsEmpty());
    EXPECT_THAT(e.err, StartsWith("soupctl: "));
  }
  EXPECT_THAT(Run({"lst"}).err, HasSubstr("unknown verb \"lst\"; did you mean \"list\"?"));
  EXPECT_THAT(Run({"cache", "lss"}).err, HasSubstr("did you mean \"ls\"?"));
  EXPECT_THAT(Run({"list", "--state", "RUNING"}).err, HasSubstr("did you mean RUNNING?"));
}

TEST_F(SoupctlTest, HelpAndVersionGoToStdout) {
  Ended e = Run({"--help"});
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.out, HasSubstr("submit"));
  EXPECT_THAT(e.err, IsEmpty());
  e = Run({"submit", "--help"});
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.out, HasSubstr("--watch"));
  e = Run({"version"});
  EXPECT_EQ(e.out, absl::StrCat("soupctl ", SOUP_VERSION, "\n"));
  Serve();
  EXPECT_EQ(nlohmann::json::parse(Run({"version", "--server", "-o", "json"}).out)["soupd"],
            SOUP_VERSION);
}

TEST_F(SoupctlTest, JobFileErrorsNameThePlaceAndSendNothing) {
  Serve();
  WriteWhole(folder_ / "bad.yaml",
             "base: {path: /m}\ndata: {train: train.jsonl}\ntraining:\n  lerning_rate: 1\n");
  const Ended e = Run({"submit", "bad.yaml"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.err, HasSubstr("bad.yaml:4:3: unknown key \"lerning_rate\" in \"training\"; did "
                               "you mean \"learning_rate\"?"));
  WriteWhole(folder_ / "nofile.yaml", "base: {path: /m}\ndata: {train: absent.jsonl}\n");
  EXPECT_THAT(Run({"submit", "nofile.yaml"}).err,
              HasSubstr("nofile.yaml:2:15: data.train: " + (folder_ / "absent.jsonl")));
  EXPECT_EQ(soup_.seen().uploads, 0);
  EXPECT_EQ(soup_.seen().submits, 0);
}

// ---- submit ----

TEST_F(SoupctlTest, SubmitPrintsTheIdAloneOnStdout) {
  Serve();
  const Ended e = Run({"submit", "job.yaml"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.out, "job-1\n");
  EXPECT_THAT(e.err, HasSubstr("uploaded train.jsonl"));
  EXPECT_THAT(e.err, HasSubstr("soupctl watch job-1"));
  EXPECT_THAT(e.err, Not(HasSubstr("\r"))) << "no bar off a terminal";
  EXPECT_THAT(e.err, Not(HasSubstr("\x1b")));
  const auto spec = soup_.GetJob("job-1").spec();
  EXPECT_EQ(spec.output(), folder_ / "out");
  EXPECT_EQ(soup_.Uploaded(spec.data().train().sha256()), "{\"text\": \"hello\"}\n");
  const Ended quiet = Run({"submit", "job.yaml", "-q", "--name", "other", "--set", "lora.r=4"});
  EXPECT_EQ(quiet.out, "job-2\n");
  EXPECT_THAT(quiet.err, IsEmpty());
  EXPECT_EQ(soup_.GetJob("job-2").spec().name(), "other");
  EXPECT_EQ(soup_.GetJob("job-2").spec().lora().r(), 4);
  EXPECT_EQ(nlohmann::json::parse(Run({"submit", "job.yaml", "-o", "json"}).out)["id"], "job-3");
}

TEST_F(SoupctlTest, SubmitReadsStandardInputWithPathsFromHere) {
  Serve();
  options_.input = "base: {path: /m}\ndata: {train: train.jsonl}\n";
  const Ended e = Run({"submit", "-"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(soup_.GetJob("job-1").spec().name(), "job");
}

TEST_F(SoupctlTest, TheSameRequestIdIsOneJob) {
  Serve();
  EXPECT_EQ(Run({"submit", "job.yaml", "--request-id", "r1"}).out, "job-1\n");
  EXPECT_EQ(Run({"submit", "job.yaml", "--request-id", "r1"}).out, "job-1\n");
}

TEST_F(SoupctlTest, AnOutputThatCannotBeWrittenIsRefusedAtSubmit) {
  Serve();
  const Ended e = Run({"submit", "job.yaml", "--set", "output=/proc/out"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.err, HasSubstr("output /proc/out is not writable: /proc: "));
  EXPECT_EQ(soup_.seen().uploads, 0) << "before anything is sent";
}

TEST_F(SoupctlTest, CtrlCInAnUploadStopsAtOnceAndTheNextGoesOn) {
  Serve();
  const std::string data = RandomBytes(20 << 20, 9);
  WriteWhole(folder_ / "train.jsonl", data);
  soup_.WithFaults([](auto& f) { f.stall_upload_after_bytes = 4 << 20; });
  auto process = Start({"submit", "job.yaml"});
  ASSERT_TRUE(soup_.AwaitStall());
  process->Signal(SIGINT);
  EXPECT_EQ(process->Wait(), 130);
  EXPECT_THAT(process->err(), HasSubstr("submit again to go on where it stopped"));
  EXPECT_EQ(soup_.seen().submits, 0);
  EXPECT_EQ(Run({"submit", "job.yaml"}).code, 0);
  EXPECT_EQ(soup_.Uploaded(soup_.GetJob("job-1").spec().data().train().sha256()), data);
  EXPECT_THAT(soup_.seen().upload_offsets, ElementsAre(0, 4 << 20));
}

TEST_F(SoupctlTest, ASocketThatIsAbsentIsSaidSo) {
  const Ended absent = Run({"list"});
  EXPECT_EQ(absent.code, 8);
  EXPECT_THAT(absent.err, HasSubstr("soupd is not running: there is no socket at unix:" +
                                    (folder_ / "s") + " (from SOUP_ENDPOINT)"));
}

TEST_F(SoupctlTest, SubmitWaitFillsTheOutput) {
  Serve();
  auto process = Start({"submit", "job.yaml", "--wait"});
  ASSERT_TRUE(soup_.AwaitWatches(1)) << process->out() << process->err();
  soup_.AddEvent("job-1", soup::v1::RUNNING);
  soup_.AddStep("job-1", 1, 2.5);
  soup_.AddArtifact("job-1", "adapter_model.safetensors", "weights");
  soup_.AddArtifact("job-1", "adapter_config.json", "{}");
  soup_.AddEvent("job-1", soup::v1::SUCCEEDED);
  EXPECT_EQ(process->Wait(), 0) << process->err();
  EXPECT_EQ(process->out(), "job-1\n");
  EXPECT_THAT(process->err(), HasSubstr("adapter in " + (folder_ / "out")));
  EXPECT_EQ(ReadWhole(folder_ / "out/adapter_model.safetensors"), "weights");
}

// ---- watch and wait ----

TEST_F(SoupctlTest, WatchPrintsALineAStepOnStdoutAndStatesOnStderr) {
  Serve();
  AddDoneJob("j1", folder_ / "out");
  const Ended e = Run({"watch", "j1"});
  EXPECT_EQ(e.code, 0) << e.err;
  const std::vector<std::string> lines = absl::StrSplit(e.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u) << e.out;
  EXPECT_THAT(lines[1], StartsWith("step 2"));
  EXPECT_THAT(lines[1], HasSubstr("loss 1.5000"));
  EXPECT_THAT(lines[1], HasSubstr("500 tok/s  stall 5.0%"));
  EXPECT_THAT(e.err, HasSubstr("RUNNING: on the CPU\n"));
  EXPECT_THAT(e.err, HasSubstr("SUCCEEDED\n"));
  EXPECT_EQ(ReadWhole(folder_ / "out/adapter_config.json"), "{}");
  const Ended third = Run({"watch", "j1", "--every", "2", "--no-fetch", "--after-step", "1"});
  EXPECT_THAT(third.out, MatchesRegex("step 2[^\n]*\nstep 4[^\n]*\n"));
}

TEST_F(SoupctlTest, WatchJsonIsAnItemALine) {
  Serve();
  AddDoneJob("j1");
  const Ended e = Run({"watch", "j1", "-o", "json", "--no-fetch"});
  EXPECT_EQ(e.code, 0);
  int steps = 0;
  for (const auto& line :
       std::vector<std::string>(absl::StrSplit(e.out, '\n', absl::SkipEmpty()))) {
    steps += nlohmann::json::parse(line).contains("step") ? 1 : 0;
  }
  EXPECT_EQ(steps, 5);
}

TEST_F(SoupctlTest, TheExitCodeIsTheJobs) {
  Serve();
  AddDoneJob("good");
  soup_.AddJob("failed", "f", soup::v1::QUEUED);
  soup_.AddEvent("failed", soup::v1::FAILED, "line 3 is no JSON");
  soup_.AddJob("cancelled", "c", soup::v1::QUEUED);
  soup_.AddEvent("cancelled", soup::v1::CANCELLED);
  soup_.AddJob("running", "r", soup::v1::RUNNING);
  EXPECT_EQ(Run({"wait", "good", "--no-fetch"}).code, 0);
  for (const char* verb : {"wait", "watch", "fetch"}) {
    const Ended failed = Run({verb, "failed"});
    EXPECT_EQ(failed.code, 3) << verb;
    EXPECT_THAT(failed.err, HasSubstr("line 3 is no JSON"));
    EXPECT_EQ(Run({verb, "cancelled"}).code, 5) << verb;
    EXPECT_EQ(Run({verb, "none"}).code, 7) << verb;
  }
  const Ended timeout = Run({"wait", "running", "--timeout", "1s"});
  EXPECT_EQ(timeout.code, 6);
  EXPECT_THAT(timeout.err, HasSubstr("it goes on"));
  const Ended early = Run({"fetch", "running"});
  EXPECT_EQ(early.code, 1);
  EXPECT_THAT(early.err, HasSubstr("has no adapter yet"));
  EXPECT_EQ(Run({"wait", "good", "--no-fetch", "-o", "name"}).out, "good\n");
  soup_.Stop();
  EXPECT_EQ(Run({"get", "good"}).code, 8);
}

TEST_F(SoupctlTest, CtrlCDetachesAndSaysHowToComeBack) {
  Serve();
  soup_.AddJob("j1", "notes", soup::v1::QUEUED);
  soup_.AddEvent("j1", soup::v1::RUNNING);
  for (int i = 1; i <= 3; ++i) soup_.AddStep("j1", i, 1.0);
  auto process = Start({"watch", "j1"});
  ASSERT_TRUE(process->AwaitOut("step 3"));
  process->Signal(SIGINT);
  EXPECT_EQ(process->Wait(), 130);
  EXPECT_THAT(process->err(), HasSubstr("soupctl watch j1 --after-step 3"));
  EXPECT_EQ(soup_.GetJob("j1").state(), soup::v1::RUNNING) << "nothing is cancelled";
}

TEST_F(SoupctlTest, WatchGoesOnAfterALostConnection) {
  Serve();
  AddDoneJob("j1");
  soup_.WithFaults([](auto& f) { f.cut_watch_after = {3}; });
  const Ended e = Run({"watch", "j1", "--no-fetch"});
  EXPECT_EQ(e.code, 0);
  const std::vector<std::string> lines = absl::StrSplit(e.out, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 5u) << e.out;
  EXPECT_THAT(e.err, HasSubstr("connection lost, trying again"));
  EXPECT_THAT(e.err, HasSubstr("connected again"));
}

TEST_F(SoupctlTest, OnATerminalThereIsOneLiveLineAndColour) {
  Serve();
  AddDoneJob("j1");
  options_.terminal = true;
  const Ended e = Run({"watch", "j1", "--no-fetch"});
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.out, HasSubstr("\r"));
  EXPECT_THAT(e.out, HasSubstr("\x1b[34mRUNNING\x1b[0m"));
  EXPECT_THAT(e.out, HasSubstr("step 5"));
  options_.environment["NO_COLOR"] = "1";
  const Ended plain = Run({"watch", "j1", "--no-fetch"});
  EXPECT_THAT(plain.out, Not(HasSubstr("\x1b[3")));
  EXPECT_THAT(Run({"list"}).out, Not(HasSubstr("\x1b[")));
  options_.environment.erase("NO_COLOR");
  EXPECT_THAT(Run({"list"}).out, HasSubstr("\x1b[32mSUCCEEDED"));
  options_.terminal = false;
  EXPECT_THAT(Run({"list"}).out, Not(HasSubstr("\x1b")));
}

// Errors, warnings and logs quote what records hold.
TEST_F(SoupctlTest, TextOfDataCannotCommandTheTerminal) {
  Serve();
  const std::string evil = "no format has the record's keys ('\x1b[31mprompt\xC2\x9B')";
  const std::string shown = "no format has the record's keys ('\\x1b[31mprompt\\x9b')";
  soup_.AddJob("j1", "n", soup::v1::FAILED);
  soup_.AddEvent("j1", soup::v1::FAILED, evil, soup::v1::DATA);
  soup::v1::Job job = soup_.GetJob("j1");
  job.add_warnings(evil);
  soup_.SetJob(job);
  const std::vector<std::vector<std::string>> calls = {{"watch", "j1"}, {"get", "j1"}, {"list"}};
  for (const auto& call : calls) {
    const Ended e = Run(call);
    EXPECT_THAT(e.out + e.err, HasSubstr(call[0] == "list" ? "no format has" : shown)) << call[0];
    EXPECT_THAT(e.out + e.err, Not(HasSubstr("\x1b"))) << call[0];
  }
  const std::string id = "j\x1b[31m2";  // its log tells it
  AddDoneJob(id);
  EXPECT_THAT(Run({"logs", id}).out, HasSubstr(id)) << "bytes as they are, off a terminal";
  soup_.WithFaults(
      [&](auto& f) { f.every_call = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, evil); });
  const Ended e = Run({"data", "preview", "job.yaml"});
  EXPECT_NE(e.code, 0);
  EXPECT_THAT(e.err, HasSubstr(shown));
  EXPECT_THAT(e.err, Not(HasSubstr("\x1b")));
  soup_.WithFaults([](auto& f) { f.every_call = grpc::Status::OK; });
  options_.terminal = true;
  const std::vector<std::vector<std::string>> logs = {{"logs", id}, {"logs", id, "--tail", "9"}};
  for (const auto& call : logs) {
    const std::string log = Run(call).out;
    EXPECT_THAT(log, HasSubstr("first line of j\\x1b[31m2"));
    EXPECT_THAT(log, HasSubstr("second\r\nthird"));
  }
}

TEST_F(SoupctlTest, AFullStdoutIsAnError) {
  Serve();
  AddDoneJob("j1");
  Subprocess shell({"/bin/sh", "-c", kProgram + " get j1 > /dev/full"}, options_);
  EXPECT_EQ(shell.Wait(), 1);
  EXPECT_THAT(shell.err(), HasSubstr("standard output could not be written"));
}

// ---- fetch ----

TEST_F(SoupctlTest, FetchPutsTheAdapterWhereAsked) {
  Serve();
  AddDoneJob("j1", folder_ / "own");
  EXPECT_EQ(Run({"fetch", "notes"}).code, 0) << "by name";
  EXPECT_EQ(ReadWhole(folder_ / "own/adapter_model.safetensors"), "weights");
  EXPECT_EQ(Run({"fetch", "j1", "--output", "here/deep"}).code, 0);
  EXPECT_EQ(ReadWhole(folder_ / "here/deep/adapter_model.safetensors"), "weights");
  EXPECT_THAT(Run({"fetch", "j1"}).err, HasSubstr("adapter already in"));
  AddDoneJob("j2");
  EXPECT_EQ(Run({"fetch", "j2"}).code, 2) << "no output, none given";
}

TEST_F(SoupctlTest, AFetchThatCannotBeWrittenLeavesNothing) {
  Serve();
  AddDoneJob("j1", folder_ / "own");
  soup_.AddArtifact("j1", "adapter_model.safetensors", RandomBytes(100'000, 1));
  // No file may grow over 8 KiB: the write in the middle fails as on a full disk.
  Subprocess shell({"/bin/bash", "-c", "trap '' XFSZ; ulimit -f 8; exec " + kProgram + " fetch j1"},
                   options_);
  EXPECT_EQ(shell.Wait(), 1) << shell.err();
  EXPECT_THAT(shell.err(), HasSubstr("write " + (folder_ / "own/adapter_model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "own")) << "made for nothing";
}

// ---- the other verbs ----

TEST_F(SoupctlTest, ListTurnsPagesFiltersAndLimits) {
  Serve();
  for (int i = 1; i <= 8; ++i) soup_.AddJob(absl::StrCat("j", i), "n", soup::v1::QUEUED);
  soup_.AddJob("k1", "other", soup::v1::PAUSED);
  EXPECT_EQ(Run({"list", "-o", "name"}).out, "k1\nj8\nj7\nj6\nj5\nj4\nj3\nj2\nj1\n");
  EXPECT_EQ(Run({"list", "-o", "name", "--name", "oth"}).out, "k1\n");
  EXPECT_EQ(Run({"list", "-o", "name", "--state", "paused"}).out, "k1\n");
  const Ended e = Run({"list", "-o", "name", "--limit", "4"});
  EXPECT_EQ(e.out, "k1\nj8\nj7\nj6\n");
  EXPECT_THAT(e.err, HasSubstr("--limit 0"));
  EXPECT_EQ(nlohmann::json::parse(Run({"list", "-o", "json"}).out)["jobs"].size(), 9u);
  EXPECT_THAT(Run({"list"}).out, StartsWith("ID "));
  EXPECT_THAT(Run({"list", "-o", "yaml"}).out, StartsWith("jobs:\n"));
}

TEST_F(SoupctlTest, GetInEveryForm) {
  Serve();
  AddDoneJob("j1");
  EXPECT_THAT(Run({"get", "j1"}).out, HasSubstr("state:     SUCCEEDED\n"));
  EXPECT_EQ(Run({"get", "notes", "-o", "name"}).out, "j1\n");
  EXPECT_EQ(nlohmann::json::parse(Run({"get", "j1", "-o", "json"}).out)["steps_done"], "5");
  EXPECT_THAT(Run({"get", "j1", "-o", "yaml"}).out, HasSubstr("state: SUCCEEDED\n"));
  const Ended none = Run({"get", "none"});
  EXPECT_EQ(none.code, 7);
  EXPECT_THAT(none.err, HasSubstr("job none: there is no job none"));
}

TEST_F(SoupctlTest, AJobFileComesBackAndIsAcceptedAgain) {
  Serve();
  ASSERT_EQ(Run({"submit", "job.yaml"}).code, 0);
  const Ended e = Run({"get", "job-1", "--job-file"});
  EXPECT_EQ(e.code, 0);
  WriteWhole(folder_ / "again.yaml", e.out);
  ASSERT_EQ(Run({"submit", "again.yaml"}).code, 0);
  EXPECT_EQ(soup_.GetJob("job-1").spec().SerializeAsString(),
            soup_.GetJob("job-2").spec().SerializeAsString());
}

TEST_F(SoupctlTest, PauseResumeAndCancelGoByNameAndHaveRequestIds) {
  Serve();
  soup_.AddJob("j1", "notes", soup::v1::RUNNING);
  const Ended e = Run({"pause", "notes"});
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.out, IsEmpty());
  EXPECT_EQ(e.err, "notes (j1) is PAUSED\n");
  EXPECT_EQ(Run({"resume", "j1", "-o", "name"}).out, "j1\n");
  EXPECT_EQ(Run({"cancel", "j1", "--wait"}).code, 0);
  EXPECT_EQ(soup_.GetJob("j1").state(), soup::v1::CANCELLED);
  EXPECT_EQ(soup_.seen().request_ids.size(), 3u);
  const Ended again = Run({"cancel", "j1"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("has ended"));
}

TEST_F(SoupctlTest, ResumeWaitsUntilTheJobRunsOrCannot) {
  Serve();
  const auto resume = [this](soup::v1::JobState then) {
    soup_.AddJob("j1", "notes", soup::v1::PAUSED);
    auto running = Start({"resume", "j1", "--wait"});
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (soup_.GetJob("j1").state() != soup::v1::QUEUED && absl::Now() < end) {
    }
    for (const soup::v1::JobState state : {soup::v1::PREPARING, then}) {
      soup::v1::Job job = soup_.GetJob("j1");
      job.set_state(state);
      soup_.SetJob(job);
    }
    const int code = running->Wait();
    EXPECT_THAT(running->err(), HasSubstr(absl::StrCat("is ", JobState_Name(then))));
    return code;
  };
  EXPECT_EQ(resume(soup::v1::RUNNING), 0);
  EXPECT_EQ(resume(soup::v1::SUCCEEDED), 0);
  EXPECT_EQ(resume(soup::v1::FAILED), 3);
  EXPECT_EQ(resume(soup::v1::PAUSED), 9);
  soup_.AddJob("j2", "other", soup::v1::PAUSED);
  const Ended late = Run({"resume", "j2", "--wait", "--timeout", "1s"});
  EXPECT_EQ(late.code, 6) << late.err;
  EXPECT_THAT(late.err, HasSubstr("still QUEUED"));
}

TEST_F(SoupctlTest, ArgumentsThatWereNotExpectedAreNamedAsTyped) {
  const Ended e = Run({"get", "j1", "one", "two", "--three"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.err, HasSubstr("these arguments were not expected: one two --three\n"));
  EXPECT_THAT(Run({"get", "j1", "one"}).err, HasSubstr("this argument was not expected: one\n"));
}

TEST_F(SoupctlTest, LogsAndMetrics) {
  Serve();
  AddDoneJob("j1");
  EXPECT_EQ(Run({"logs", "j1"}).out, "first line of j1\nsecond\nthird\n");
  EXPECT_EQ(Run({"logs", "j1", "--tail", "2"}).out, "second\nthird\n");
  EXPECT_EQ(Run({"logs", "j1", "--tail", "0"}).out, "");
  EXPECT_EQ(Run({"logs", "j1", "--tail", "9", "-f"}).out, "first line of j1\nsecond\nthird\n");
  const auto all = nlohmann::json::parse(Run({"metrics", "j1", "-o", "json"}).out);
  EXPECT_EQ(all["steps"].size(), 5u) << "pages are turned";
  EXPECT_EQ(all["more"], false);
  const auto some = nlohmann::json::parse(
      Run({"metrics", "j1", "-o", "json", "--after-step", "1", "--limit", "3"}).out);
  ASSERT_EQ(some["steps"].size(), 3u);
  EXPECT_EQ(some["steps"][0]["step"], "2");
  EXPECT_THAT(Run({"metrics", "j1"}).out, HasSubstr("STEP"));
}

TEST_F(SoupctlTest, PlanAndPreviewUploadAndShow) {
  Serve();
  soup_.mutable_plan()->set_arena_bytes(1 << 20);
  soup_.mutable_plan()->set_budget_bytes(1 << 20);
  soup_.mutable_plan()->set_placement("slots=2 resident=0 head=streamed recompute");
  soup_.mutable_plan()->set_precision("fp32");
  soup_.mutable_plan()->set_precision_reason("auto: the model has experts");
  soup_.mutable_plan()->set_predicted_step_seconds(2);
  soup_.mutable_plan()->set_next_budget_bytes(3 << 20);
  soup_.mutable_plan()->set_next_step_seconds(1.5);
  soup::v1::PlanRow* row = soup_.mutable_plan()->add_rows();
  row->set_what("boundaries");
  row->set_where("device");
  row->set_bytes(1 << 20);
  row->set_peak_bytes(1 << 21);
  Ended e = Run({"plan", "job.yaml"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_THAT(e.out, HasSubstr("fits with 2 slots"));
  EXPECT_THAT(e.out, HasSubstr("OWN PEAK"));
  EXPECT_THAT(e.out, HasSubstr("slots=2 resident=0 head=streamed recompute"));
  EXPECT_THAT(e.out, HasSubstr("fp32 activations (auto: the model has experts)"));
  EXPECT_THAT(e.out, HasSubstr("with 2.0 MiB more (3.0 MiB) a step takes 1.5s, 25.0 % less"));
  soup_.mutable_plan()->set_fits(false);
  soup_.mutable_plan()->set_verdict("does not fit: needs 3 GiB, give vram: 3GiB");
  e = Run({"plan", "job.yaml", "-o", "json"});
  EXPECT_EQ(e.code, 1);
  EXPECT_EQ(nlohmann::json::parse(e.out)["fits"], false);
  EXPECT_THAT(e.err, HasSubstr("does not fit: needs 3 GiB"));
  EXPECT_THAT(e.err, Not(HasSubstr("does not fit: does not fit")));
  e = Run({"data", "preview", "job.yaml", "--records", "7"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_THAT(e.out, HasSubstr("ask「answer」"));
  EXPECT_THAT(e.out, HasSubstr("7 records"));
  EXPECT_EQ(soup_.seen().submits, 0);
}

TEST_F(SoupctlTest, CacheVerbs) {
  Serve();
  EXPECT_EQ(Run({"cache", "ls", "-o", "name"}).out, "aa11/nf4-dq\naa22/nf4-dq\nbb33/nf4-dq\n");
  EXPECT_THAT(Run({"cache", "ls"}).out, HasSubstr("1.0 MiB"));
  Ended e = Run({"cache", "prefetch", "models/m"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.out, "cc44/nf4-dq\n");
  EXPECT_THAT(e.err, HasSubstr("quantise"));
  EXPECT_EQ(nlohmann::json::parse(Run({"cache", "prefetch", "m", "-o", "json"}).out)["source_path"],
            folder_ / "m");
  e = Run({"cache", "evict", "bb/nf4-dq"});
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.err, HasSubstr("evicted bb33/nf4-dq; 3.0 MiB freed"));
  EXPECT_EQ(Run({"cache", "evict", "aa"}).code, 2) << "not one";
  EXPECT_EQ(Run({"cache", "evict", "zz"}).code, 7);
  EXPECT_THAT(Run({"cache", "evict", "aa11"}).err, HasSubstr("in use by job-1"));
}

TEST_F(SoupctlTest, NodeTopAndDoctor) {
  Serve();
  soup_.AddJob("j1", "notes", soup::v1::RUNNING);
  AddDoneJob("j2");
  EXPECT_THAT(Run({"node"}).out, HasSubstr("host:"));
  EXPECT_EQ(nlohmann::json::parse(Run({"node", "-o", "json"}).out)["hostname"], "fake");
  EXPECT_EQ(Run({"node", "-o", "name"}).out, "fake\n");
  const Ended top = Run({"top"});
  EXPECT_EQ(top.code, 0) << "one look off a terminal";
  EXPECT_THAT(top.out, HasSubstr("j1"));
  EXPECT_THAT(top.out, Not(HasSubstr("j2"))) << "ended";
  EXPECT_THAT(top.out, Not(HasSubstr("\x1b")));
  Ended doctor = Run({"doctor"});
  EXPECT_EQ(doctor.code, 0) << doctor.out;
  EXPECT_THAT(doctor.out, HasSubstr("ok      endpoint: unix:"));
  EXPECT_THAT(doctor.out, HasSubstr("huge pages"));
  soup_.mutable_node()->set_storage_healthy(false);
  doctor = Run({"doctor", "-o", "json"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_EQ(nlohmann::json::parse(doctor.out)["checks"][0]["result"], "ok");
  soup_.Stop();
  doctor = Run({"doctor"});
  EXPECT_EQ(doctor.code, 8);
  EXPECT_THAT(doctor.out, HasSubstr("→ start soupd"));
}

TEST_F(SoupctlTest, TopIsLeftWithCtrlC) {
  Serve();
  soup_.AddJob("j1", "notes", soup::v1::RUNNING);
  options_.terminal = true;
  auto process = Start({"top", "--interval", "1s"});
  ASSERT_TRUE(process->AwaitOut("j1"));
  process->Signal(SIGINT);
  EXPECT_EQ(process->Wait(), 0);
}

TEST_F(SoupctlTest, CompletionScriptsKnowEveryVerb) {
  const Ended bash = Run({"completion", "bash"});
  EXPECT_EQ(bash.code, 0);
  const std::string script =
      absl::StrCat(bash.out,
                   "\nt() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _soupctl;"
                   " echo \"${COMPREPLY[*]}\"; }\n"
                   "t soupctl ca\nt soupctl cache ''\nt soupctl cache prefetch --f\n"
                   "t soupctl --quiet watch --aft\nt soupctl completion --end\n");
  WriteWhole(folder_ / "t.sh", script);
  Subprocess shell({"/bin/bash", folder_ / "t.sh"}, options_);
  EXPECT_EQ(shell.Wait(), 0) << shell.err();
  EXPECT_EQ(
      shell.out(),
      "cancel cache\nls prefetch evict\n--format\n--after-step --after-sequence\n--endpoint\n")
      << shell.err();
  Serve();
  soup_.AddJob("job-x", "notes", soup::v1::RUNNING);
  options_.environment["PATH"] = absl::StrCat(SOUP_BINARY_DIR, "/bin:/usr/bin:/bin");
  WriteWhole(
      folder_ / "t.sh",
      bash.out + "COMP_WORDS=(soupctl watch j); COMP_CWORD=2; _soupctl; echo ${COMPREPLY[*]}");
  Subprocess jobs({"/bin/bash", folder_ / "t.sh"}, options_);
  EXPECT_EQ(jobs.Wait(), 0);
  EXPECT_EQ(jobs.out(), "job-x\n");
  EXPECT_THAT(Run({"completion", "zsh"}).out, HasSubstr("bashcompinit"));
  EXPECT_THAT(Run({"completion", "fish"}).out,
              HasSubstr("complete -c soupctl -n '__fish_use_subcommand' -a submit -d "));
}

// ---- over TLS ----

TEST_F(SoupctlTest, OverTlsNothingWorksWithoutTheToken) {
  const TlsFiles tls = MakeTlsFiles(folder_.path());
  const int port = soup_.ServeTls(ReadWhole(tls.certificate), ReadWhole(tls.key), "secret-token");
  options_.environment.erase("SOUP_ENDPOINT");
  const std::string endpoint = absl::StrCat("localhost:", port);
  AddDoneJob("j1");
  WriteWhole(folder_ / "token", "secret-token\n");
  WriteWhole(folder_ / "wrong", "another\n");

  const std::vector<std::vector<std::string>> verbs = {{"list"},
                                                       {"get", "j1"},
                                                       {"watch", "j1"},
                                                       {"wait", "j1"},
                                                       {"logs", "j1"},
                                                       {"metrics", "j1"},
                                                       {"pause", "j1"},
                                                       {"resume", "j1"},
                                                       {"cancel", "j1"},
                                                       {"fetch", "j1"},
                                                       {"submit", "job.yaml"},
                                                       {"plan", "job.yaml"},
                                                       {"data", "preview", "job.yaml"},
                                                       {"cache", "ls"},
                                                       {"cache", "prefetch", "/models/m"},
                                                       {"cache", "evict", "aa11"},
                                                       {"node"},
                                                       {"top"},
                                                       {"doctor"}};
  for (std::vector<std::string> verb : verbs) {
    const auto bare = verb;
    verb.insert(verb.end(), {"--endpoint", endpoint, "--ca", tls.ca});
    EXPECT_EQ(Run(verb).code, 4) << bare[0] << " without a token";
    verb.insert(verb.end(), {"--token-file", folder_ / "wrong"});
    EXPECT_EQ(Run(verb).code, 4) << bare[0] << " with a wrong token";
  }
  EXPECT_EQ(soup_.seen().uploads, 0);

  Ended e = Run({"context", "add", "lab", "--endpoint", endpoint, "--ca", "ca.pem", "--token-file",
                 "token", "--use"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(Run({"list", "-o", "name"}).out, "j1\n");
  EXPECT_EQ(soup_.seen().authorization, "Bearer secret-token");
  EXPECT_EQ(Run({"submit", "job.yaml"}).code, 0);
  EXPECT_EQ(Run({"fetch", "j1", "--output", "far"}).code, 0);
  EXPECT_EQ(ReadWhole(folder_ / "far/adapter_model.safetensors"), "weights");

  e = Run({"list", "--ca", tls.other_ca});
  EXPECT_EQ(e.code, 8) << "a certificate of another CA";
  EXPECT_THAT(Run({"doctor", "--ca", tls.other_ca}).out, HasSubstr("--ca"));
  EXPECT_EQ(Run({"list", "--server-name", "soupd.test"}).code, 0);
  EXPECT_EQ(Run({"list", "--server-name", "evil.test"}).code, 8);
}

TEST_F(SoupctlTest, ContextVerbs) {
  options_.environment.erase("SOUP_ENDPOINT");
  options_.input = "typed-token\n";
  EXPECT_EQ(Run({"context", "add", "a", "--endpoint", "a.example:1", "--token", "-"}).code, 0);
  EXPECT_EQ(Run({"context", "add", "b", "--endpoint", "unix:/b", "--use"}).code, 0);
  const std::string path = folder_ / ".config/soupctl/contexts.yaml";
  EXPECT_THAT(ReadWhole(path), HasSubstr("typed-token"));
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(Run({"context", "list", "-o", "name"}).out, "a\nb\n");
  EXPECT_THAT(Run({"context", "list"}).out, Not(HasSubstr("typed-token"))) << "never shown";
  EXPECT_THAT(Run({"context", "list", "-o", "json"}).out, Not(HasSubstr("typed-token")));
  EXPECT_THAT(Run({"context", "show"}).out, HasSubstr("endpoint:  unix:/b (from context b)"));
  EXPECT_EQ(nlohmann::json::parse(
                Run({"context", "show", "--context", "a", "-o", "json"}).out)["token_from"],
            "context a");
  EXPECT_EQ(Run({"context", "use", "a"}).code, 0);
  EXPECT_THAT(Run({"context", "show"}).out, HasSubstr("a.example:1"));
  EXPECT_EQ(Run({"context", "use", "none"}).code, 7);
  EXPECT_EQ(Run({"context", "remove", "a"}).code, 0);
  EXPECT_EQ(Run({"context", "remove", "a"}).code, 7);
  EXPECT_THAT(Run({"context", "show"}).out, HasSubstr("from default"));
  EXPECT_EQ(Run({"context", "add", "x", "--endpoint", "http://x:1"}).code, 2);
  EXPECT_EQ(Run({"context", "add", "x", "--endpoint", "x:1", "--token-file", "absent"}).code, 2);
}

}  // namespace
}  // namespace soup::client
