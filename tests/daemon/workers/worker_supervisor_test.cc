#include "daemon/control/worker_supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <deque>
#include <filesystem>

#include "daemon/control/spawn.h"
#include "engine/base/file_system.h"

namespace soup::daemon {
namespace {

using ::soup::worker::v1::FromWorker;
using ::soup::worker::v1::Hello;
using ::soup::worker::v1::ToWorker;
using ::testing::HasSubstr;

struct Happening {
  enum Kind { kUp, kMessage, kDown } kind;
  int64_t generation = 0;
  int64_t pass_id = 0;
  int32_t pid = 0;
  bool was_up = false;
  bool clean = false;
  std::string cause;
};

// Keeps what the supervisor told, except heartbeats.
class Recorder : public WorkerListener {
 public:
  void OnWorkerUp(int64_t generation, const Hello& hello) override {
    Add({Happening::kUp, generation, 0, hello.pid()});
  }
  void OnWorkerMessage(int64_t generation, FromWorker message) override {
    if (message.has_heartbeat()) return;
    Add({Happening::kMessage, generation, message.pass_done().pass_id()});
  }
  void OnWorkerDown(int64_t generation, bool was_up, bool clean,
                    const std::string& cause) override {
    Add({Happening::kDown, generation, 0, 0, was_up, clean, cause});
  }
  Happening Next() {
    absl::MutexLock lock(&mu_);
    auto some = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !queue_.empty(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&some), absl::Seconds(30)));
    if (queue_.empty()) return {Happening::kDown, -1};
    Happening h = queue_.front();
    queue_.pop_front();
    return h;
  }

 private:
  void Add(Happening h) {
    absl::MutexLock lock(&mu_);
    queue_.push_back(std::move(h));
  }
  absl::Mutex mu_;
  std::deque<Happening> queue_ ABSL_GUARDED_BY(mu_);
};

class WorkerSupervisorTest : public ::testing::Test {
 protected:
  WorkerSupervisorTest() {
    std::string pattern = ::testing::TempDir() + "supervisorXXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  ~WorkerSupervisorTest() override { std::filesystem::remove_all(dir_); }

  WorkerOptions Options(const std::string& mode = "") {
    WorkerOptions o;
    o.binary = SOUP_BINARY_DIR "/tests/fake_worker";
    if (!mode.empty()) o.args = {"--mode=" + mode};
    o.mark_path = dir_ + "/worker.mark";
    o.backoff_min = absl::Milliseconds(1);
    o.backoff_max = absl::Milliseconds(20);
    return o;
  }
  static ToWorker Pass(int64_t id) {
    ToWorker m;
    m.mutable_run_pass()->set_pass_id(id);
    return m;
  }
  // Sends `pass` to the first worker and expects its end, and a second worker in its place.
  void ExpectReplaced(WorkerOptions options, int64_t pass, const std::string& cause) {
    Recorder recorder;
    WorkerSupervisor supervisor(options, &recorder);
    supervisor.Start();
    ASSERT_EQ(recorder.Next().kind, Happening::kUp);
    supervisor.SetBusy(true);
    ASSERT_TRUE(supervisor.Send(1, Pass(pass)).ok());
    const Happening down = recorder.Next();
    EXPECT_EQ(down.kind, Happening::kDown);
    EXPECT_FALSE(down.clean);
    EXPECT_TRUE(down.was_up);
    EXPECT_THAT(down.cause, HasSubstr(cause));
    const Happening up = recorder.Next();
    EXPECT_EQ(up.kind, Happening::kUp);
    EXPECT_EQ(up.generation, 2);
    EXPECT_TRUE(absl::IsUnavailable(supervisor.Send(1, Pass(100)))) << "meant for the first one";
    ASSERT_TRUE(supervisor.Send(2, Pass(100)).ok());
    EXPECT_EQ(recorder.Next().pass_id, 100);
    EXPECT_EQ(supervisor.info().restarts, 1);
  }
  std::string dir_;
};

TEST_F(WorkerSupervisorTest, StopsInOrder) {
  Recorder recorder;
  WorkerSupervisor supervisor(Options(), &recorder);
  supervisor.Start();
  const Happening up = recorder.Next();
  EXPECT_EQ(up.kind, Happening::kUp);
  ASSERT_TRUE(supervisor.Send(1, Pass(10)).ok());
  EXPECT_EQ(recorder.Next().pass_id, 10);
  supervisor.Stop(absl::Now() + absl::Seconds(20));
  const Happening down = recorder.Next();
  EXPECT_TRUE(down.clean) << down.cause;
  EXPECT_FALSE(MarkOf(up.pid).has_value());
}

TEST_F(WorkerSupervisorTest, ReplacesAWorkerThatExits) {
  ExpectReplaced(Options(), 1, "exit status 3");
}

TEST_F(WorkerSupervisorTest, KillsAWorkerThatMakesNoProgress) {
  WorkerOptions o = Options();
  o.stall_timeout = absl::Milliseconds(300);
  ExpectReplaced(o, 2, "no progress for 300ms");
}

TEST_F(WorkerSupervisorTest, AnIdleWorkerNeedsNoProgress) {
  WorkerOptions o = Options();
  o.stall_timeout = absl::Milliseconds(50);
  Recorder recorder;
  WorkerSupervisor supervisor(o, &recorder);
  supervisor.Start();
  ASSERT_EQ(recorder.Next().kind, Happening::kUp);
  // Not busy: it may stand still as long as its heart beats. Pass 2 makes it stand still; 50 more
  // passes take longer than the limit would allow.
  ASSERT_TRUE(supervisor.Send(1, Pass(2)).ok());
  const absl::Time until = absl::Now() + absl::Milliseconds(300);
  int64_t id = 100;
  while (absl::Now() < until) {
    ASSERT_TRUE(supervisor.Send(1, Pass(++id)).ok());
    ASSERT_EQ(recorder.Next().pass_id, id);
  }
}

TEST_F(WorkerSupervisorTest, KillsASilentWorker) {
  WorkerOptions o = Options();
  o.heartbeat_timeout = absl::Seconds(1);
  ExpectReplaced(o, 3, "no heartbeat for 1s");
}

TEST_F(WorkerSupervisorTest, KillsAStoppedWorker) {
  WorkerOptions o = Options();
  o.heartbeat_timeout = absl::Seconds(1);
  ExpectReplaced(o, 5, "no heartbeat for 1s");
}

TEST_F(WorkerSupervisorTest, ABrokenFrameEndsTheWorker) {
  ExpectReplaced(Options(), 4, "in the middle of a message");
}

TEST_F(WorkerSupervisorTest, AMuteWorkerIsKilledAndTheNextTried) {
  WorkerOptions o = Options("mute");
  o.hello_timeout = absl::Milliseconds(100);
  Recorder recorder;
  WorkerSupervisor supervisor(o, &recorder);
  supervisor.Start();
  for (int i = 1; i <= 3; ++i) {
    const Happening down = recorder.Next();
    EXPECT_EQ(down.generation, i);
    EXPECT_FALSE(down.was_up);
    EXPECT_THAT(down.cause, HasSubstr("did not come up"));
  }
}

TEST_F(WorkerSupervisorTest, AStubbornWorkerIsKilledAtTheDeadline) {
  Recorder recorder;
  WorkerSupervisor supervisor(Options("stubborn"), &recorder);
  supervisor.Start();
  const Happening up = recorder.Next();
  supervisor.Stop(absl::Now() + absl::Milliseconds(200));
  const Happening down = recorder.Next();
  EXPECT_FALSE(down.clean);
  EXPECT_THAT(down.cause, HasSubstr("did not stop in time"));
  EXPECT_FALSE(MarkOf(up.pid).has_value());
}

TEST_F(WorkerSupervisorTest, AMissingProgramIsToldAndTriedAgain) {
  WorkerOptions o = Options();
  o.binary = dir_ + "/not-there";
  Recorder recorder;
  WorkerSupervisor supervisor(o, &recorder);
  supervisor.Start();
  EXPECT_THAT(recorder.Next().cause, HasSubstr("not-there"));
  EXPECT_EQ(recorder.Next().generation, 2);
}

TEST_F(WorkerSupervisorTest, WaitsForTheWorkerOfAnEarlierSoupd) {
  auto pair = Link::MakePair();
  ASSERT_TRUE(pair.ok());
  auto pid = SpawnChild(SOUP_BINARY_DIR "/tests/fake_worker", {}, pair->second.get());
  ASSERT_TRUE(pid.ok()) << pid.status();
  auto mark = MarkOf(*pid);
  ASSERT_TRUE(mark.has_value());
  EXPECT_EQ(ProcessMark::FromText(mark->ToText()), mark);
  // Another process with that pid is not waited for.
  ProcessMark other = *mark;
  other.start_ticks += 1;
  EXPECT_TRUE(AwaitGone(other, absl::InfiniteDuration(), absl::Now()).ok());
  // It is killed after the patience. (It stays a zombie of ours, which counts as gone.)
  EXPECT_TRUE(AwaitGone(*mark, absl::Milliseconds(1), absl::Now() + absl::Seconds(20)).ok());
  EXPECT_EQ(KillAndCollect(*pid).signal, SIGKILL);
  EXPECT_FALSE(MarkOf(*pid).has_value());
}

TEST_F(WorkerSupervisorTest, AChildHasOnlyItsOwnDescriptors) {
  auto pair = Link::MakePair();
  ASSERT_TRUE(pair.ok());
  auto pid = SpawnChild(SOUP_BINARY_DIR "/tests/fake_worker", {}, pair->second.get());
  ASSERT_TRUE(pid.ok()) << pid.status();
  Link link(std::move(pair->first));
  ASSERT_TRUE(link.Receive(absl::Now() + absl::Seconds(20)).ok());  // Hello: exec is over
  std::vector<std::string> open;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(*pid) + "/fd"))
    open.push_back(entry.path().filename());
  EXPECT_THAT(open, ::testing::UnorderedElementsAre("0", "1", "2", "3"));
  KillAndCollect(*pid);
}

}  // namespace
}  // namespace soup::daemon
