// The program soupd as the system sees it: systemd's notifications, one soupd a state directory,
// memory and series over many jobs (case 29).
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/control/metrics_endpoint.h"
#include "tests/daemon/harness.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using soup::testing::ReadWhole;
using ::testing::HasSubstr;
using ::testing::Not;

// The receiving end of $NOTIFY_SOCKET.
class NotifySocket {
 public:
  NotifySocket() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path().data(), path().size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval limit{30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~NotifySocket() { close(fd_); }
  std::string path() const { return dir_ / "notify"; }
  // Reads until a message says `text`; how many did, `times` wanted. False after 30 s of silence.
  bool Await(const std::string& text, int times = 1) {
    while (times > 0) {
      char buffer[4096];
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return false;
      if (std::string(buffer, static_cast<size_t>(n)).find(text) != std::string::npos) --times;
    }
    return true;
  }

 private:
  soup::testing::TempDir dir_;
  int fd_;
};

std::string Scrape(const Harness& h) {
  std::string address = ReadWhole(h.state_dir() + "/metrics.addr");
  while (!address.empty() && address.back() == '\n') address.pop_back();
  const auto at = ParseHostPort(address, "metrics.addr");
  if (!at.ok()) return "";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(at->port));
  inet_pton(AF_INET, at->host.c_str(), &to.sin_addr);
  std::string answer;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    ssize_t n = 0;
    while ((n = read(fd, buffer, sizeof buffer)) > 0) answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

int64_t ResidentKib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  int64_t kib = 0;
  while (status >> word) {
    if (word == "VmRSS:") status >> kib;
  }
  return kib;
}

TEST(SoupdProcess, TellsSystemdThatItIsReadyAliveAndStopping) {
  NotifySocket notify;
  HarnessOptions options;
  options.environment = {"NOTIFY_SOCKET=" + notify.path(), "WATCHDOG_USEC=600000"};
  Harness h(options);
  ASSERT_TRUE(h.Start().ok());
  EXPECT_TRUE(notify.Await("READY=1"));
  EXPECT_TRUE(notify.Await("WATCHDOG=1", 3));
  EXPECT_EQ(ReadWhole(h.state_dir() + "/lock"), absl::StrCat(h.soupd_pid(), "\n"));
  EXPECT_EQ(h.TerminateSoupd(), 0);
  EXPECT_TRUE(notify.Await("STOPPING=1"));
  EXPECT_EQ(access((h.state_dir() + "/metrics.addr").c_str(), F_OK), -1);
  EXPECT_EQ(access((h.state_dir() + "/soupd.sock").c_str(), F_OK), -1);
}

// A signal for the process may be given to any thread that does not block it, and the threads that
// a linear algebra library starts before main block none: without care the default action, death.
TEST(SoupdProcess, ASignalThatAnyThreadTakesStopsItInOrder) {
  for (int nth = 0;; ++nth) {
    Harness h;
    ASSERT_TRUE(h.Start().ok());
    std::vector<pid_t> open;  // threads that would take SIGTERM
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", h.soupd_pid(), "/task"))) {
      std::ifstream status(entry.path() / "status");
      std::string word;
      uint64_t blocked = 0;
      while (status >> word) {
        if (word == "SigBlk:") status >> std::hex >> blocked;
      }
      if ((blocked >> (SIGTERM - 1) & 1) == 0)
        open.push_back(std::stoi(entry.path().filename().string()));
    }
    if (nth >= static_cast<int>(open.size())) {
      if (nth == 0) GTEST_SKIP() << "no thread here but those that block it";
      break;
    }
    std::sort(open.begin(), open.end());
    ASSERT_EQ(syscall(SYS_tgkill, h.soupd_pid(), open[static_cast<size_t>(nth)], SIGTERM), 0);
    EXPECT_EQ(h.AwaitSoupd(), 0) << "thread " << open[static_cast<size_t>(nth)];
    EXPECT_THAT(h.log(), HasSubstr("signal 15: stopping"));
    EXPECT_EQ(access((h.state_dir() + "/metrics.addr").c_str(), F_OK), -1);
  }
}

TEST(SoupdProcess, ASecondSoupdOnTheStateDirectoryIsRefused) {
  Harness first;
  ASSERT_TRUE(first.Start().ok());
  const std::string out = first.dir() + "/second.log";
  const int status =
      std::system(absl::StrCat(SOUP_BINARY_DIR "/bin/soupd --state-dir=", first.state_dir(),
                               " --metrics-listen=off > ", out, " 2>&1")
                      .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(ReadWhole(out), HasSubstr(absl::StrCat("another soupd (pid ", first.soupd_pid())));
}

// Once an ended job's series are gone, which is soon after its state is told.
std::string ScrapeWithout(const Harness& h, const std::string& job) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  std::string answer = Scrape(h);
  while (absl::StrContains(answer, job) && absl::Now() < deadline) answer = Scrape(h);
  return answer;
}

TEST(SoupdProcess, ManyJobsLeaveNeitherSeriesNorMemory) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const auto run = [&](int from, int to) {
    std::string last;
    for (int i = from; i <= to; ++i) {
      auto spec =
          h.Spec(absl::StrCat("series-", i), "{\"prompt\": \"a\", \"completion\": \"bcdefg\"}\n");
      last = h.Submit(spec).id();
    }
    h.WaitFor(last, {soup::v1::SUCCEEDED});
    return last;
  };
  const std::string after_3 = ScrapeWithout(h, run(1, 3));
  run(4, 30);
  [[maybe_unused]] const int64_t rss_30 = ResidentKib(h.soupd_pid());
  const std::string last = run(31, 90);
  const std::string after_90 = ScrapeWithout(h, last);
  EXPECT_GT(std::count(after_3.begin(), after_3.end(), '\n'), 50);
  EXPECT_EQ(std::count(after_90.begin(), after_90.end(), '\n'),
            std::count(after_3.begin(), after_3.end(), '\n'));
  EXPECT_THAT(after_90, Not(HasSubstr(last)));
  EXPECT_THAT(after_90, HasSubstr("soupd_jobs{state=\"SUCCEEDED\"} 90"));
#ifndef __SANITIZE_ADDRESS__  // which holds back what was freed
  EXPECT_LT(static_cast<double>(ResidentKib(h.soupd_pid())), 1.05 * static_cast<double>(rss_30));
#endif
}

}  // namespace
}  // namespace soup::daemon
