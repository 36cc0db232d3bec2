// Session: the life of a training worker on its link. Orders are carried out one at a time, in
// order, on the thread that calls Run; a second thread beats the heart, with the engine's own
// progress. The worker ends when soupd closes the link.
//
// Bases stay mapped until they are dropped; one trainer at a time has the device. When a pass is
// for another base, jobs open on the one before are closed and told so (PREEMPTED): they go on from
// their mirrors. A job's own fault closes that job; a pass that fails closes every job. When it
// failed because the device did, the worker tells its jobs and ends: nothing on that device can be
// used by this process any more, and the next worker begins anew.
#ifndef SOUP_DAEMON_WORKER_SESSION_H_
#define SOUP_DAEMON_WORKER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/common/link.h"
#include "daemon/worker/device.h"
#include "daemon/worker/mapped_base.h"
#include "daemon/worker/translate.h"
#include "engine/train/trainer.h"
#include "soup/worker/v1/worker.pb.h"

namespace soup::worker {

// A hook of tests: the worker dies when it is to run step `step` of a job named `job_name`.
struct TestDeath {
  enum class How {
    kBefore,     // SIGKILL before the pass
    kCommitted,  // SIGKILL after its steps are committed and before they are told
    // An op on an address that is nobody's: an illegal access of the device, a segmentation fault
    // on the CPU.
    kFault,
    kFaultOnce,  // the same, unless the job was opened at this very step
  };
  std::string job_name;  // empty: never
  int64_t step = 0;
  How how = How::kBefore;

  // "NAME:STEP:before", …:committed, …:fault or …:fault-once. Errors: InvalidArgument.
  static absl::StatusOr<TestDeath> Parse(const std::string& text);
};

struct SessionOptions {
  absl::Duration heartbeat = absl::Seconds(1);
  TestDeath test_death;
};

class Session {
 public:
  // Borrows device and link.
  Session(SessionOptions options, Device* device, daemon::Link* link);
  ~Session();

  // Says Hello and serves. Returns the exit status: 0 when told to end or the link was closed.
  int Run();

 private:
  struct OpenedJob {
    std::string name;
    int32_t save_every = 0;
    int64_t steps_total = 0;
    int64_t steps_at_open = 0;
    std::string artifact_dir;
  };

  void Beat();
  // Free bytes and the arena's, of one moment. Any thread.
  void FillMemory(soup::worker::v1::WorkerHeartbeat* heartbeat) const;
  void Send(const soup::worker::v1::FromWorker& message);
  void Serve(const soup::worker::v1::ToWorker& message, std::vector<engine::UniqueFd> fds);

  void LoadBase(const soup::worker::v1::LoadBase& load, std::vector<engine::UniqueFd> fds);
  void DropBase(const std::string& base_key);
  void OpenJob(const soup::worker::v1::OpenJob& open);
  void CloseJob(const soup::worker::v1::CloseJob& close);
  void RunPass(const soup::worker::v1::RunPass& pass);
  void SaveCheckpoint(const std::string& job_id, bool ordered);
  void Finalize(const soup::worker::v1::Finalize& finalize);

  absl::Status CheckPlan(const engine::PassRequest& request,
                         const soup::worker::v1::RunPass& pass) const;
  void DieInTest(const soup::worker::v1::RunPass& pass, bool committed);
  void TellSteps(const engine::PassResult& result);
  void TellFailedPass(const soup::worker::v1::RunPass& pass, const absl::Status& status);
  // The device has failed: tells what is queued and ends the process.
  [[noreturn]] void LeaveDevice();
  // Closes the job and tells why.
  void Fault(const std::string& job_id, soup::v1::Reason reason, const std::string& message,
             int64_t step, bool ordered);
  // Makes the trainer of this base the one that has the device.
  absl::Status TakeDevice(const std::string& base_key);
  void ReleaseDevice(const std::string& why);

  const SessionOptions options_;
  Device* const device_;
  engine::Backend* const backend_;  // the device's
  daemon::Link* const link_;

  std::map<std::string, std::unique_ptr<MappedBase>> bases_;
  std::map<std::string, OpenedJob> jobs_;
  std::string device_base_;  // whose trainer it is; empty: none

  absl::Mutex mu_;  // the heart reads the trainer's progress
  std::unique_ptr<engine::Trainer> trainer_ ABSL_GUARDED_BY(mu_);
  int64_t progress_before_ ABSL_GUARDED_BY(mu_) = 0;  // of trainers that are gone
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  engine::Trainer* engine_ = nullptr;  // trainer_, for the serving thread
  std::atomic<int64_t> orders_{0};

  std::thread heart_;
};

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_SESSION_H_
