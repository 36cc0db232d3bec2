// A real soupd with real workers, in a folder of its own, and a client of it: for tests of the
// whole.
//
//   Harness h;
//   ASSERT_TRUE(h.Start().ok());
//   Job job = h.Submit(h.Spec("name", kJsonl)); h.WaitFor(job.id(), {SUCCEEDED});
//
// Waiting is done on Watch streams with deadlines, never by sleeping. soupd dies with the test
// (parent-death signal). Not thread-safe, except that Kill… may come from another thread.
#ifndef SOUP_TESTS_DAEMON_HARNESS_H_
#define SOUP_TESTS_DAEMON_HARNESS_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "soup/v1/soup.grpc.pb.h"

namespace soup::daemon {

struct HarnessOptions {
  std::vector<std::string> flags;        // beside state dir, model root, metrics and one CPU thread
  std::string state_dir;                 // empty: a folder of its own
  std::vector<std::string> environment;  // NAME=value, added to the test's own
};

class Harness {
 public:
  explicit Harness(HarnessOptions options = {});
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  // ---- soupd ----
  absl::Status Start();
  // As systemd starts a service for which it kept descriptors: they become 3, 4, … with these
  // names.
  absl::Status StartWithDescriptors(const std::vector<int>& fds,
                                    const std::vector<std::string>& names);
  void KillSoupd();      // SIGKILL, and collected
  int TerminateSoupd();  // SIGTERM; its exit status (-1: had to be killed)
  int AwaitSoupd();      // after a signal of one's own: its exit status, like TerminateSoupd
  pid_t soupd_pid() const { return pid_; }
  // The worker that is up; waits for one that is not `not_this`.
  pid_t WorkerPid(pid_t not_this = 0);
  soup::v1::Node GetNode();
  // An ended job's state is written first; what it no longer needs goes after. False: not in 30 s.
  bool WaitUntilGone(const std::string& path);
  // Asks until `done` says so; the test fails after a minute.
  soup::v1::Node WaitForNode(const std::function<bool(const soup::v1::Node&)>& done);

  const std::string& dir() const { return dir_; }  // model root; everything lies below it
  const std::string& state_dir() const { return state_dir_; }
  std::string log() const;  // what soupd and workers wrote
  soup::v1::Soup::Stub* stub() { return stub_.get(); }

  // ---- jobs ----
  // A job on the byte-token base (tests/cases/_base/bytes), or on `base`; data is uploaded.
  soup::v1::JobSpec Spec(const std::string& name, const std::string& jsonl,
                         const std::string& base = "");
  soup::v1::FileRef Upload(const std::string& name, const std::string& content);
  absl::StatusOr<soup::v1::Job> TrySubmit(const soup::v1::JobSpec& spec,
                                          const std::string& request_id = "");
  absl::StatusOr<soup::v1::PlanReply> TryPlan(const soup::v1::JobSpec& spec);
  soup::v1::Job Submit(const soup::v1::JobSpec& spec);  // a failure fails the test
  soup::v1::Job Get(const std::string& id);
  absl::Status Pause(const std::string& id);
  absl::Status Resume(const std::string& id);
  absl::Status Cancel(const std::string& id);

  // Waits until the job is in one of `states`; the test fails after `patience`.
  soup::v1::Job WaitFor(const std::string& id, const std::set<soup::v1::JobState>& states,
                        absl::Duration patience = absl::Seconds(90));
  // Waits until step `step` was told.
  void WaitForStep(const std::string& id, int64_t step,
                   absl::Duration patience = absl::Seconds(90));
  // Waits until `done` says so, asked after each event, step or heartbeat of the job.
  bool WatchUntil(const std::string& id, absl::Duration patience,
                  const std::function<bool(const soup::v1::WatchReply&)>& done);

  std::vector<soup::v1::StepRecord> Steps(const std::string& id);
  std::vector<soup::v1::JobEvent> Events(const std::string& id);  // of a job that has ended
  // The published adapter's bytes; empty: none.
  std::string Adapter(const std::string& id);

 private:
  std::string Backend() const;  // that soupd is told

  const HarnessOptions options_;
  std::string dir_;
  std::string state_dir_;
  std::string log_path_;
  pid_t pid_ = 0;
  int requests_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<soup::v1::Soup::Stub> stub_;
};

std::string ReadFileOrEmpty(const std::string& path);
// tests/<path> of the source tree; $SOUP_TEST_DATA says where that lies when it is not here.
std::string TestData(const std::string& path);
// bin/<name> of the build; $SOUP_TEST_BIN says where programs lie when it is not here.
std::string Program(const std::string& name);
// What jobs run on: $SOUP_TEST_BACKEND, else cpu, so that a test's numbers are the same everywhere.
std::string BackendForTests();
// A script in `dir` that stands in for soup-worker: the real one, with `hook` (a flag for tests) in
// place when it trains.
std::string WorkerWithHook(const std::string& dir, const std::string& hook);

// The checks that every finished job must stand: steps 1, 2, … each once; events 1, 2, … each once,
// in an order that the transition table allows, the last in the state `end`.
void ExpectWholeHistory(Harness& h, const std::string& id, soup::v1::JobState end);

}  // namespace soup::daemon

#endif  // SOUP_TESTS_DAEMON_HARNESS_H_
