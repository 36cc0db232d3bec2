// Case 29: the series of /metrics stay bounded, counters never go down, promtool is content.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/metrics_endpoint.h"
#include "daemon/control/store_listener.h"
#include "engine/base/clock.h"
#include "tests/daemon/control/fake_orchestrator.h"
#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The value of a series in the text; NaN when it is not there.
double ValueOf(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (absl::StartsWith(line, series + " ")) {
      return std::strtod(line.c_str() + series.size() + 1, nullptr);
    }
  }
  return NAN;
}

class StoreMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.state_dir = dir_.path();
    JobStoreOptions options;
    options.path = config_.DatabasePath();
    auto store = OpenJobStore(options, engine::RealClock());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    listener_ = std::make_unique<StoreListener>(store_.get(), &hub_, &metrics_, &steps_);
    ASSERT_TRUE(listener_->Attach().ok());
    fake_ = std::make_unique<FakeOrchestrator>(config_, *store_, steps_, hub_, metrics_);
  }
  void TearDown() override { store_.reset(); }

  std::string Create(const std::string& name) {
    return store_->CreateJob("u", "", GoodSpec(name, "/m"), "/m", 0)->job.id;
  }

  soup::testing::TempDir dir_{soup::testing::TempDir::kInMemory};
  Config config_;
  EventHub hub_;
  Metrics metrics_;
  StepLogs steps_{dir_ / "jobs"};
  std::unique_ptr<StoreListener> listener_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<FakeOrchestrator> fake_;
};

TEST_F(StoreMetricsTest, ThreeHundredJobsLeaveNoMoreLinesThanThree) {
  std::string last;
  int64_t lines_after_3 = 0;
  double tokens = 0;
  for (int i = 1; i <= 300; ++i) {
    last = Create(absl::StrCat("job \"quoted\\ ", i));
    fake_->RunWhole(last, 1);
    const std::string text = metrics_.Render();
    EXPECT_GE(ValueOf(text, "soupd_tokens_total"), tokens);
    tokens = ValueOf(text, "soupd_tokens_total");
    EXPECT_THAT(text, Not(HasSubstr(last)));
    EXPECT_THAT(text, Not(HasSubstr("quoted")));
    const int64_t lines = std::count(text.begin(), text.end(), '\n');
    if (i == 3) lines_after_3 = lines;
    if (i > 3) {
      EXPECT_EQ(lines, lines_after_3);
    }
  }
  const std::string text = metrics_.Render();
  EXPECT_EQ(tokens, 3000);
  EXPECT_EQ(ValueOf(text, "soupd_step_duration_seconds_count"), 300);
  EXPECT_EQ(ValueOf(text, "soupd_queue_wait_seconds_count"), 300);
  EXPECT_NEAR(ValueOf(text, "soupd_step_seconds_total"), 30, 1e-6);
  EXPECT_EQ(ValueOf(text, "soupd_jobs{state=\"SUCCEEDED\"}"), 300);
  double sum = 0;
  for (const JobState state : kAllJobStates) {
    sum += ValueOf(text, absl::StrCat("soupd_jobs{state=\"", JobStateName(state), "\"}"));
  }
  EXPECT_EQ(sum, 300);
}

TEST_F(StoreMetricsTest, AJobHasItsSeriesWhileItIsActiveOnly) {
  const std::string id = Create("n");
  const std::string loss = absl::StrCat("soupd_loss{job=\"", id, "\"}");
  fake_->StartRunning(id, 3);
  fake_->DoStep(id, 1, 2.5);
  EXPECT_EQ(ValueOf(metrics_.Render(), loss), 2.5);
  EXPECT_THAT(
      metrics_.Render(),
      HasSubstr(absl::StrCat("soupd_checkpoint_last_success_timestamp_seconds{job=\"", id)));
  fake_->DoStep(id, 2, NAN);
  EXPECT_THAT(metrics_.Render(), HasSubstr(loss + " Nan"));  // told as NaN, not as 0
  fake_->Move(id, JobTrigger::kPauseRequested, soup::v1::USER_REQUEST);
  fake_->Move(id, JobTrigger::kPaused, soup::v1::USER_REQUEST);
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr(id)));
  // A report that comes late makes no series, but counts.
  const double before = ValueOf(metrics_.Render(), "soupd_tokens_total");
  fake_->DoStep(id, 3, 1);
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr(id)));
  EXPECT_EQ(ValueOf(metrics_.Render(), "soupd_tokens_total"), before + 10);
}

TEST_F(StoreMetricsTest, CountersNeverGoDown) {
  metrics_.PassDone(
      {.seconds = -1, .stall_seconds = -1, .copy_bytes = -5, .copy_busy_seconds = NAN});
  EXPECT_EQ(ValueOf(metrics_.Render(), "soupd_step_seconds_total"), 0);
  EXPECT_EQ(ValueOf(metrics_.Render(), "soupd_copy_busy_seconds_total"), 0);
}

// Slabs go to the device; what passes keep in host memory goes there and comes back.
TEST_F(StoreMetricsTest, CopiesCountByDirection) {
  metrics_.PassDone({.seconds = 1, .copy_bytes = 5, .offload_out_bytes = 7, .offload_in_bytes = 3});
  const std::string text = metrics_.Render();
  EXPECT_EQ(ValueOf(text, "soupd_copy_bytes_total{direction=\"h2d\"}"), 8);
  EXPECT_EQ(ValueOf(text, "soupd_copy_bytes_total{direction=\"d2h\"}"), 7);
}

TEST_F(StoreMetricsTest, PromtoolIsContentAndEveryNameIsThere) {
  const std::string id = Create("n");
  fake_->StartRunning(id, 3);
  fake_->DoStep(id, 1, NAN);
  metrics_.SetDeviceMemory(0, 10, 9);
  metrics_.SetDeviceOverhead(0, 3);
  metrics_.SetLinkRate(0, 1e9);
  metrics_.SetPinned(1, 2);
  metrics_.WorkerRestarted();
  metrics_.CacheHit();
  const std::string text = metrics_.Render();
  for (const char* name : {"step_duration_seconds",
                           "stall_seconds_total",
                           "step_seconds_total",
                           "copy_bytes_total",
                           "copy_busy_seconds_total",
                           "device_memory_peak_bytes",
                           "device_memory_planned_bytes",
                           "device_memory_overhead_bytes",
                           "pinned_bytes",
                           "pinned_limit_bytes",
                           "tokens_total",
                           "supervised_tokens_total",
                           "padding_tokens_total",
                           "bucket_tail_tokens_total",
                           "loss",
                           "jobs",
                           "queue_wait_seconds",
                           "shard_cache_hits_total",
                           "shard_cache_misses_total",
                           "shard_cache_evictions_total",
                           "shard_cache_corruptions_total",
                           "worker_restarts_total",
                           "checkpoint_last_success_timestamp_seconds",
                           "build_info"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("# TYPE soupd_", name, " ")));
  }
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) GTEST_SKIP() << "no promtool here";
  soup::testing::WriteWhole(dir_ / "metrics.txt", text);
  const std::string command =
      absl::StrCat("promtool check metrics < ", dir_ / "metrics.txt", " > ", dir_ / "out", " 2>&1");
  EXPECT_EQ(std::system(command.c_str()), 0) << soup::testing::ReadWhole(dir_ / "out");
  EXPECT_EQ(soup::testing::ReadWhole(dir_ / "out"), "");
  // The checker itself can fail.
  soup::testing::WriteWhole(dir_ / "metrics.txt", text + "bad-name 1\n");
  EXPECT_NE(std::system(command.c_str()), 0);
}

// Connects, sends, and reads what is answered.
std::string Ask(const std::string& address, const std::string& request) {
  const auto at = ParseHostPort(address, "x");
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(at->port));
  inet_pton(AF_INET, at->host.c_str(), &to.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof buffer)) > 0) answer.append(buffer, static_cast<size_t>(n));
  close(fd);
  return answer;
}
std::string HttpGet(const std::string& address, const std::string& path) {
  return Ask(address, absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n"));
}

TEST_F(StoreMetricsTest, TheEndpointServesMetricsAndHealthAndNothingElse) {
  absl::Status health;
  const auto endpoint =
      MetricsEndpoint::Start("127.0.0.1:0", metrics_, [&health] { return health; });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string& address = (*endpoint)->address();
  EXPECT_THAT(address, Not(::testing::EndsWith(":0")));
  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("soupd_build_info"));
  EXPECT_THAT(HttpGet(address, "/healthz"), HasSubstr("200 OK"));
  health = absl::ResourceExhaustedError("the disk is full");
  EXPECT_THAT(HttpGet(address, "/healthz"), HasSubstr("503"));
  EXPECT_THAT(HttpGet(address, "/healthz"), HasSubstr("the disk is full"));
  const std::string before = metrics_.Render();
  for (const char* path : {"/", "/metrics/x", "/etc/passwd", "/../../etc/passwd", "/healthzz"}) {
    EXPECT_THAT(HttpGet(address, path), HasSubstr("404")) << path;
  }
  EXPECT_EQ(metrics_.Render(), before);  // unknown paths make no series
  // Other methods, and what is no HTTP at all: nothing ends the process.
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "MKCOL",
                             "REPORT", "LOCK", "CONNECT"}) {
    for (const char* path : {"/metrics", "/nope"}) {
      const std::string answer =
          Ask(address, absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: a\r\n\r\n"));
      EXPECT_THAT(answer, HasSubstr("HTTP/1.1 405")) << method << " " << path;
      EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD"));
    }
  }
  const std::string head = Ask(address, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(head, Not(HasSubstr("soupd_build_info")));
  EXPECT_THAT(Ask(address, "HEAD /nope HTTP/1.1\r\nHost: a\r\n\r\n"), HasSubstr("404"));
  for (const std::string& odd :
       {std::string("GET /metrics HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                    "Sec-WebSocket-Version: 13\r\n\r\n"),
        std::string("TRACE / HTTP/1.1\r\n\r\n"), std::string("OPTIONS * HTTP/1.1\r\n\r\n"),
        std::string("FOO / HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET /%s%n HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x02\r\n\r\n"),
        "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n"}) {
    Ask(address, odd);
    EXPECT_THAT(HttpGet(address, "/healthz"), HasSubstr("the disk is full")) << odd.substr(0, 60);
  }
  EXPECT_EQ(metrics_.Render(), before);
  const auto taken = MetricsEndpoint::Start(address, metrics_, [] { return absl::OkStatus(); });
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("--metrics-listen"));
}

// Peers that connect and say nothing.
TEST_F(StoreMetricsTest, SilentConnectionsDoNotKeepOthersOut) {
  const auto endpoint =
      MetricsEndpoint::Start("127.0.0.1:0", metrics_, [] { return absl::OkStatus(); });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const auto at = ParseHostPort((*endpoint)->address(), "x");
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(at->port));
  inet_pton(AF_INET, at->host.c_str(), &to.sin_addr);
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  const absl::Time begin = absl::Now();
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/metrics"), HasSubstr("soupd_build_info"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  for (const int fd : silent) close(fd);
}

}  // namespace
}  // namespace soup::daemon
