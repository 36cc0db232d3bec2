// From another host's point of view: a real soupd with a TLS endpoint, and soupctl with a home of
// its own, over TCP with a token. Everything works with the token, nothing without it.
#include <signal.h>
#include <sys/stat.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/subprocess.h"
#include "tests/client/test_files.h"
#include "tests/daemon/harness.h"

namespace soup::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Ended {
  int code;
  std::string out, err;
};

class RemoteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tls_ = MakeTlsFiles(far_.path());
    WriteWhole(far_ / "tokens", "ada-secret-0123456789 ada\nbob-secret-0123456789 bob\n");
    ASSERT_EQ(chmod((far_ / "tokens").c_str(), 0600), 0);
    soupd_ = std::make_unique<daemon::Harness>(daemon::HarnessOptions{
        .flags = {"--listen-tcp=127.0.0.1:0", "--tls-cert=" + tls_.certificate,
                  "--tls-key=" + tls_.key, "--token-file=" + (far_ / "tokens")}});
    const absl::Status started = soupd_->Start();
    ASSERT_TRUE(started.ok()) << started << soupd_->log();
    // The unix socket answers a moment before the address of the other endpoint is told.
    std::string address;
    for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
      address = ReadWhole(soupd_->state_dir() + "/tcp.addr");
      if (!address.empty()) break;
      absl::SleepFor(absl::Milliseconds(20));
    }
    ASSERT_FALSE(address.empty()) << soupd_->log();
    port_ = std::string(absl::StripAsciiWhitespace(address.substr(address.rfind(':') + 1)));
    endpoint_ = "localhost:" + port_;

    // The other host: its own home and nothing else. The CA's certificate and a token were given
    // to its user.
    WriteWhole(home_ / "ca.pem", ReadWhole(tls_.ca));
    WriteWhole(home_ / "token", "ada-secret-0123456789\n");
    WriteWhole(home_ / "wrong", "eve-secret-0123456789\n");
    options_.environment = {{"HOME", home_.path()}, {"PATH", "/usr/bin:/bin"}};
    options_.folder = home_.path();
    std::string rows;
    for (int i = 0; i < 12; ++i) {
      absl::StrAppend(&rows, "{\"prompt\": \"row ", i, "?\", \"completion\": \"answer ", i,
                      "\"}\n");
    }
    WriteWhole(home_ / "train.jsonl", rows);
    WriteJob("short.yaml", "short", 6);
  }

  void WriteJob(const std::string& file, const std::string& name, int steps) {
    WriteWhole(
        home_ / file,
        absl::StrCat("name: ", name, "\nbase: {path: ", soupd_->dir(), "/base, format: bf16}",
                     "\ndata: {train: train.jsonl, max_length: 64, packing: false}\n",
                     "lora: {r: 4, alpha: 8}\n", "training: {epochs: 1000000, max_steps: ", steps,
                     ", batch_size: 2, learning_rate: 1.0e-3}\n", "output: adapters/", name, "\n"));
  }

  std::unique_ptr<Subprocess> Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), absl::StrCat(SOUP_BINARY_DIR, "/bin/soupctl"));
    return std::make_unique<Subprocess>(arguments, options_);
  }
  Ended Run(const std::vector<std::string>& arguments) {
    auto process = Start(arguments);
    const int code = process->Wait(absl::Seconds(120));
    return {code, process->out(), process->err()};
  }
  void UseContext() {
    const Ended e = Run({"context", "add", "far", "--endpoint", endpoint_, "--ca", "ca.pem",
                         "--token-file", "token", "--use"});
    ASSERT_EQ(e.code, 0) << e.err;
  }
  std::string State(const std::string& id) {
    const Ended e = Run({"get", id, "-o", "json"});
    return e.code == 0 ? nlohmann::json::parse(e.out)["state"].get<std::string>() : e.err;
  }

  testing::TempDir far_;   // soupd's host
  testing::TempDir home_;  // the other one
  TlsFiles tls_;
  std::unique_ptr<daemon::Harness> soupd_;
  std::string port_, endpoint_;
  Subprocess::Options options_;
};

TEST_F(RemoteTest, SubmitWithLocalDataWatchAndFetch) {
  UseContext();
  const Ended e = Run({"submit", "short.yaml", "--watch"});
  ASSERT_EQ(e.code, 0) << e.err << soupd_->log();
  const std::vector<std::string> lines = absl::StrSplit(e.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 7u) << e.out << "the id and six steps";
  EXPECT_THAT(lines[6], HasSubstr("step 6/6"));
  EXPECT_THAT(Names(home_ / "adapters/short"),
              ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  const std::string& id = lines[0];
  EXPECT_EQ(ReadWhole(home_ / "adapters/short/adapter_model.safetensors"), soupd_->Adapter(id));
  EXPECT_EQ(Run({"fetch", "short", "--output", "again"}).code, 0);
  EXPECT_EQ(ReadWhole(home_ / "again/adapter_model.safetensors"), soupd_->Adapter(id));
  EXPECT_THAT(Run({"logs", id}).out, HasSubstr("SUCCEEDED"));
  EXPECT_EQ(nlohmann::json::parse(Run({"metrics", id, "-o", "json"}).out)["steps"].size(), 6u);
  EXPECT_EQ(nlohmann::json::parse(Run({"node", "-o", "json"}).out)["user"], "ada");
  EXPECT_EQ(Run({"doctor"}).code, 0) << Run({"doctor"}).out;
  EXPECT_EQ(Run({"plan", "short.yaml"}).code, 0);
  EXPECT_EQ(Run({"data", "preview", "short.yaml"}).code, 0);
}

TEST_F(RemoteTest, PauseResumeAndGoOn) {
  UseContext();
  WriteJob("long.yaml", "long", 10000);
  const Ended submitted = Run({"submit", "long.yaml"});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  const std::string id(absl::StripAsciiWhitespace(submitted.out));
  auto watch = Start({"watch", id, "--every", "1000"});
  soupd_->WaitForStep(id, 3);
  ASSERT_EQ(Run({"pause", id, "--wait"}).code, 0);
  ASSERT_EQ(State(id), "PAUSED");
  ASSERT_EQ(Run({"resume", id}).code, 0);
  EXPECT_EQ(watch->Wait(absl::Seconds(120)), 0) << watch->err() << soupd_->log();
  EXPECT_THAT(watch->err(), HasSubstr("PAUSED"));
  EXPECT_THAT(watch->err(), HasSubstr("soupctl resume " + id));
  EXPECT_THAT(watch->out(), HasSubstr("step 10000/10000"));
  EXPECT_EQ(ReadWhole(home_ / "adapters/long/adapter_model.safetensors"), soupd_->Adapter(id));
}

TEST_F(RemoteTest, CancelEndsTheWaitsAndPublishesNothing) {
  UseContext();
  WriteJob("endless.yaml", "endless", 1000000);
  const std::string id(absl::StripAsciiWhitespace(Run({"submit", "endless.yaml"}).out));
  auto wait = Start({"wait", id});
  auto detached = Start({"watch", id});
  ASSERT_TRUE(detached->AwaitOut("step 2"));
  detached->Signal(SIGINT);
  EXPECT_EQ(detached->Wait(), 130);
  EXPECT_THAT(detached->err(), HasSubstr("soupctl watch " + id));
  EXPECT_EQ(State(id), "RUNNING") << "a client that goes cancels nothing";
  ASSERT_EQ(Run({"cancel", "endless", "--wait"}).code, 0);
  EXPECT_EQ(State(id), "CANCELLED");
  EXPECT_EQ(wait->Wait(), 5) << wait->err();
  EXPECT_EQ(Run({"fetch", id}).code, 5);
  EXPECT_THAT(Names(home_ / "adapters"), IsEmpty());
}

TEST_F(RemoteTest, AWatchSurvivesTheDeathOfSoupd) {
  UseContext();
  WriteJob("long.yaml", "long", 6000);
  const std::string id(absl::StripAsciiWhitespace(Run({"submit", "long.yaml"}).out));
  auto watch = Start({"watch", id, "-o", "json", "--no-fetch"});
  ASSERT_TRUE(watch->AwaitOut("\"step\":\"20\""));
  soupd_->KillSoupd();
  ASSERT_TRUE(watch->AwaitErr("connection lost"));
  // The endpoint's port must be the same again.
  daemon::HarnessOptions again{
      .flags = {"--listen-tcp=127.0.0.1:" + port_, "--tls-cert=" + tls_.certificate,
                "--tls-key=" + tls_.key, "--token-file=" + (far_ / "tokens"),
                "--model-root=" + soupd_->dir()},
      .state_dir = soupd_->state_dir()};
  daemon::Harness second(again);
  const absl::Status started = second.Start();
  ASSERT_TRUE(started.ok()) << started << second.log();
  // gRPC's own pause between two look-ups of a name is 30 s; ours must not be.
  ASSERT_TRUE(watch->AwaitErr("connected again", absl::Seconds(20))) << watch->err();
  ASSERT_EQ(watch->Wait(absl::Seconds(120)), 0) << watch->err() << second.log();
  int64_t steps = 0, events = 0;
  for (const auto& line :
       std::vector<std::string>(absl::StrSplit(watch->out(), '\n', absl::SkipEmpty()))) {
    const auto item = nlohmann::json::parse(line);
    int64_t number = 0;
    if (item.contains("step")) {
      ASSERT_TRUE(absl::SimpleAtoi(item["step"]["step"].get<std::string>(), &number));
      ASSERT_EQ(number, ++steps) << "no gap, no repeat";
    } else if (item.contains("event")) {
      ASSERT_TRUE(absl::SimpleAtoi(item["event"]["sequence"].get<std::string>(), &number));
      ASSERT_EQ(number, ++events);
    }
  }
  EXPECT_EQ(steps, 6000);
}

TEST_F(RemoteTest, NothingWorksWithoutTheToken) {
  UseContext();
  ASSERT_EQ(Run({"submit", "short.yaml", "--wait"}).code, 0);
  Run({"context", "remove", "far"});
  const std::vector<std::vector<std::string>> verbs = {
      {"submit", "short.yaml"},
      {"plan", "short.yaml"},
      {"data", "preview", "short.yaml"},
      {"get", "short"},
      {"list"},
      {"watch", "short"},
      {"wait", "short"},
      {"logs", "short"},
      {"metrics", "short"},
      {"pause", "short"},
      {"resume", "short"},
      {"cancel", "short"},
      {"fetch", "short", "--output", "stolen"},
      {"top"},
      {"node"},
      {"doctor"},
      {"cache", "ls"},
      {"cache", "prefetch", soupd_->dir() + "/base"},
      {"cache", "evict", "a"},
      {"version", "--server"}};
  for (std::vector<std::string> verb : verbs) {
    const std::string name = verb[0];
    verb.insert(verb.end(), {"--endpoint", endpoint_, "--ca", "ca.pem"});
    const Ended without = Run(verb);
    EXPECT_EQ(without.code, 4) << name << without.err;
    EXPECT_THAT(without.err, Not(HasSubstr("secret")));
    verb.insert(verb.end(), {"--token-file", "wrong"});
    const Ended wrong = Run(verb);
    EXPECT_EQ(wrong.code, 4) << name << wrong.err;
    EXPECT_THAT(wrong.err, Not(HasSubstr("secret")));
  }
  EXPECT_THAT(Names(home_ / "stolen"), IsEmpty());

  // Another user's token shows nothing of ada's.
  WriteWhole(home_ / "bob", "bob-secret-0123456789\n");
  const std::vector<std::string> as_bob = {"--endpoint", endpoint_,      "--ca",
                                           "ca.pem",     "--token-file", "bob"};
  for (std::vector<std::string> verb : std::vector<std::vector<std::string>>{
           {"get", "short"}, {"cancel", "short"}, {"fetch", "short", "--output", "stolen"}}) {
    verb.insert(verb.end(), as_bob.begin(), as_bob.end());
    EXPECT_EQ(Run(verb).code, 7) << verb[0];
  }
  std::vector<std::string> list = {"list", "-o", "name"};
  list.insert(list.end(), as_bob.begin(), as_bob.end());
  EXPECT_EQ(Run(list).out, "");

  // Without TLS there is no talk at all.
  auto stub =
      soup::v1::Soup::NewStub(grpc::CreateChannel(endpoint_, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer ada-secret-0123456789");
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  soup::v1::Node node;
  EXPECT_FALSE(stub->GetNode(&context, {}, &node).ok());
}

}  // namespace
}  // namespace soup::client
