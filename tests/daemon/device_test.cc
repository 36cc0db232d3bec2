// The device under a job: which one is taken, an illegal access in the middle of a run, and memory
// that a stranger takes first (case 31). The same source runs on a GPU: SOUP_TEST_BACKEND=cuda.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/base/machine_profile.h"
#include "tests/daemon/harness.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {
namespace {

using soup::testing::TempDir;
using soup::v1::Job;
using soup::v1::JobSpec;
using soup::v1::Node;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::set<soup::v1::JobState> kEnds = {soup::v1::SUCCEEDED, soup::v1::FAILED,
                                            soup::v1::PAUSED};

std::string Records() {
  return ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl"));
}

// A script in `dir` that runs soup-worker after these lines of sh, which may change "$@".
std::string WorkerBehind(const std::string& dir, const std::string& lines) {
  const std::string script = dir + "/worker";
  std::ofstream(script) << "#!/bin/sh\n"
                        << lines << "\nexec " << Program("soup-worker") << " \"$@\"\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  return script;
}

// ---- which device ----

TEST(DeviceTest, ACardThatIsNotThereIsToldAndSoupdStaysUp) {
  Harness h({.flags = {"--backend=cuda", "--device=99"}});
  ASSERT_TRUE(h.Start().ok());
  const Node node = h.WaitForNode([](const Node& n) {
    return n.workers(0).state().find("--backend cpu") != std::string::npos;
  });
  EXPECT_FALSE(node.workers(0).up());
  EXPECT_THAT(node.workers(0).state(),
              AnyOf(HasSubstr("no CUDA device"), HasSubstr("no CUDA backend")));
  // A job waits, says why, and can be cancelled.
  const Job job = h.Submit(h.Spec("waits", Records()));
  EXPECT_TRUE(h.WatchUntil(job.id(), absl::Seconds(60), [](const soup::v1::WatchReply& reply) {
    return reply.progress().stage() == "waiting for a worker" &&
           reply.progress().message().find("CUDA") != std::string::npos;
  }));
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  EXPECT_EQ(h.WaitFor(job.id(), {soup::v1::CANCELLED}).state(), soup::v1::CANCELLED);
}

TEST(DeviceTest, AutoTakesWhatIsThereSaysWhyAndKeepsIt) {
  Harness h({.flags = {"--backend=auto"}});
  ASSERT_TRUE(h.Start().ok());
  const pid_t worker = h.WorkerPid();
  const Node first = h.WaitForNode([](const Node& n) { return n.workers(0).up(); });
  const soup::v1::Device& device = first.devices(0);
  EXPECT_THAT(device.backend(), AnyOf("cpu", "cuda"));
  EXPECT_THAT(device.backend_reason(),
              device.backend() == "cuda" ? HasSubstr(device.name()) : HasSubstr("CUDA"));
  EXPECT_GT(device.overhead_bytes(), 0);
  EXPECT_GT(device.memory_bytes(), 0);
  // Its profile is kept where people can read it.
  int profiles = 0;
  for (const auto& entry : std::filesystem::directory_iterator(h.state_dir() + "/profile")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("machine-", 0) != 0) continue;
    const auto profile = engine::MachineProfile::FromText(ReadFileOrEmpty(entry.path().string()));
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->backend, device.backend());
    EXPECT_EQ(profile->device_name, device.name());
    ++profiles;
  }
  EXPECT_EQ(profiles, 1);
  ::kill(worker, SIGKILL);
  h.WorkerPid(worker);
  const Node next = h.WaitForNode([](const Node& n) { return n.workers(0).up(); });
  EXPECT_EQ(next.devices(0).backend(), device.backend());
  EXPECT_EQ(next.devices(0).backend_reason(), device.backend_reason());
}

// ---- the type of activations ----

soup::v1::PlanReply PlanOf(Harness& h, const JobSpec& spec, grpc::Status* status) {
  grpc::ClientContext context;
  soup::v1::PlanRequest request;
  *request.mutable_spec() = spec;
  soup::v1::PlanReply reply;
  *status = h.stub()->Plan(&context, request, &reply);
  return reply;
}

TEST(DeviceTest, TheCpuRefusesBf16AtSubmitAndPlansFp32) {
  Harness h({.flags = {"--backend=cpu"}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("narrow", Records());
  spec.mutable_training()->set_precision("bf16");
  const absl::Status refused = h.TrySubmit(spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("training.precision is bf16"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("use auto or fp32"));
  grpc::Status status;
  PlanOf(h, spec, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const char* precision : {"", "auto", "fp32"}) {
    spec.mutable_training()->set_precision(precision);
    const soup::v1::PlanReply plan = PlanOf(h, spec, &status);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(plan.precision(), "fp32");
    EXPECT_EQ(plan.precision_reason(), "the CPU backend has no other");
  }
  // One plan, and so the same bits.
  spec.set_name("wide");
  const Job wide = h.Submit(spec);
  spec.set_name("default");
  spec.mutable_training()->set_precision("auto");
  const Job by_default = h.Submit(spec);
  for (const Job& job : {wide, by_default})
    ASSERT_EQ(h.WaitFor(job.id(), kEnds).state(), soup::v1::SUCCEEDED);
  EXPECT_TRUE(h.Adapter(wide.id()) == h.Adapter(by_default.id()));
}

// Submitted before soupd knows what it runs on: told when the job is planned.
TEST(DeviceTest, ADeviceThatTurnsOutToBeTheCpuRefusesBf16) {
  TempDir dir;
  const std::string script = dir.path() + "/worker", go = dir.path() + "/go";
  std::ofstream(script) << "#!/bin/sh\ncase \"$*\" in *--prepare*) ;; *)\n"
                        << "while [ ! -e " << go << " ]; do sleep 0.05; done;; esac\n"
                        << "exec " << Program("soup-worker") << " \"$@\"\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Harness h({.flags = {"--backend=auto", "--worker-binary=" + script},
             .state_dir = "",
             .environment = {"CUDA_VISIBLE_DEVICES="}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("narrow", Records());
  spec.mutable_training()->set_precision("bf16");
  const Job job = h.Submit(spec);
  std::ofstream(go) << "";
  const Job failed = h.WaitFor(job.id(), kEnds);
  EXPECT_EQ(failed.state(), soup::v1::FAILED);
  EXPECT_EQ(failed.reason(), soup::v1::INVALID_INPUT);
  EXPECT_THAT(failed.message(), HasSubstr("training.precision is bf16"));
}

// ---- a device that fails ----

TEST(DeviceTest, AnIllegalAccessCostsNoMoreThanTheStepInFlight) {
  TempDir dir;
  Harness h({.flags = {"--worker-binary=" +
                       WorkerWithHook(dir.path(), "--test-die=struck:12:fault-once")}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("calm", Records());
  spec.mutable_training()->set_epochs(3);
  const Job calm = h.Submit(spec);
  ASSERT_EQ(h.WaitFor(calm.id(), kEnds).state(), soup::v1::SUCCEEDED);
  spec.set_name("struck");
  const Job job = h.Submit(spec);
  const Job done = h.WaitFor(job.id(), kEnds);
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(done.attempts(), 2);
  EXPECT_TRUE(h.Adapter(calm.id()) == h.Adapter(job.id()));
  const auto expected = h.Steps(calm.id()), steps = h.Steps(job.id());
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].loss(), expected[i].loss());
  std::vector<std::string> told;
  for (const soup::v1::JobEvent& event : h.Events(job.id()))
    if (event.reason() == soup::v1::DEVICE_LOST || event.reason() == soup::v1::WORKER_LOST)
      told.push_back(event.message());
  ASSERT_EQ(told.size(), 1u);
#ifdef __SANITIZE_ADDRESS__
  EXPECT_THAT(told[0],
              HasSubstr("exit status 1"));  // the sanitizer ends the worker by its own hand
#else
  EXPECT_THAT(told[0], AnyOf(HasSubstr("signal 11"), HasSubstr("illegal memory access")));
#endif
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

TEST(DeviceTest, ADeviceLostThreeTimesPausesTheJob) {
  TempDir dir;
  Harness h(
      {.flags = {"--worker-binary=" + WorkerWithHook(dir.path(), "--test-die=struck:5:fault")}});
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(h.Spec("struck", Records()));
  const Job paused = h.WaitFor(job.id(), kEnds);
  EXPECT_EQ(paused.state(), soup::v1::PAUSED);
  EXPECT_EQ(paused.reason(), soup::v1::DEVICE_LOST);
  EXPECT_EQ(paused.steps_done(), 4) << "what was done is kept";
  ASSERT_TRUE(h.Cancel(job.id()).ok());
}

// OpenBLAS on another core type gives other bits, as another card does. While `other` is there,
// workers run on one.
TEST(DeviceTest, AJobBegunOnAnotherMachineWaitsForIt) {
  if (BackendForTests() != "cpu") GTEST_SKIP() << "plays the other machine on the CPU";
  TempDir dir;
  const std::string other = dir.path() + "/other";
  const std::string worker =
      WorkerBehind(dir.path(), "[ ! -e " + other + " ] || export OPENBLAS_CORETYPE=Nehalem");
  Harness h({.flags = {"--worker-binary=" + worker}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("calm", Records());
  spec.mutable_training()->set_epochs(40);
  const Job calm = h.Submit(spec);
  ASSERT_EQ(h.WaitFor(calm.id(), kEnds).state(), soup::v1::SUCCEEDED);
  const auto another_worker = [&h] {
    const pid_t worker = h.WorkerPid();
    ::kill(worker, SIGKILL);
    h.WorkerPid(worker);
    h.WaitForNode([](const Node& n) { return n.workers(0).up(); });
  };
  // In the midst of a run the device becomes another one.
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 3);
  std::ofstream(other) << "";
  another_worker();
  Job paused = h.WaitFor(job.id(), kEnds);
  ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
  EXPECT_EQ(paused.reason(), soup::v1::DEVICE_LOST);
  EXPECT_THAT(paused.message(), HasSubstr("Nehalem"));
  // Still so when it is resumed: not even opened.
  ASSERT_TRUE(h.Resume(job.id()).ok());
  paused = h.WaitFor(job.id(), kEnds);
  ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
  EXPECT_EQ(paused.reason(), soup::v1::DEVICE_LOST);
  EXPECT_THAT(paused.message(), HasSubstr("began on another machine"));
  std::filesystem::remove(other);
  another_worker();
  ASSERT_TRUE(h.Resume(job.id()).ok());
  const Job done = h.WaitFor(job.id(), kEnds);
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_TRUE(h.Adapter(job.id()) == h.Adapter(calm.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

// A worker with more threads goes on where one with fewer was: a container given more cores, say.
// While `other` is there, workers have three.
TEST(DeviceTest, AJobGoesOnWithAnotherNumberOfThreads) {
  if (BackendForTests() != "cpu") GTEST_SKIP() << "threads are the CPU backend's";
  TempDir dir;
  const std::string other = dir.path() + "/other";
  const std::string worker = WorkerBehind(
      dir.path(), "for flag in \"$@\"; do\n  shift\n  [ ! -e " + other +
                      " ] || case $flag in --cpu-threads=*) flag=--cpu-threads=3;; esac\n"
                      "  set -- \"$@\" \"$flag\"\ndone");
  Harness h({.flags = {"--worker-binary=" + worker}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("calm", Records());
  spec.mutable_training()->set_epochs(40);
  const Job calm = h.Submit(spec);
  ASSERT_EQ(h.WaitFor(calm.id(), kEnds).state(), soup::v1::SUCCEEDED);
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 3);
  std::ofstream(other) << "";
  const pid_t first = h.WorkerPid();
  ::kill(first, SIGKILL);
  const pid_t second = h.WorkerPid(first);
  const std::string arguments = ReadFileOrEmpty(absl::StrCat("/proc/", second, "/cmdline"));
  EXPECT_THAT(arguments, HasSubstr("--cpu-threads=3"));
  const Job done = h.WaitFor(job.id(), kEnds);
  ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_TRUE(h.Adapter(job.id()) == h.Adapter(calm.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
}

// ---- memory that others take (case 31) ----

// A worker on the CPU that plays a card; strangers come and go.
class SharedCardTest : public ::testing::Test {
 protected:
  static constexpr int64_t kPlenty = int64_t{1} << 30;

  void SetUp() override {
    Leave(kPlenty, kPlenty);
    h_ = std::make_unique<Harness>(HarnessOptions{
        .flags = {"--backend=cpu", "--device-reserve=1",
                  "--worker-binary=" + WorkerWithHook(dir_.path(), "--test-card=" + card_)}});
    ASSERT_TRUE(h_->Start().ok());
    h_->WaitForNode([](const Node& n) { return n.devices(0).free_bytes() == kPlenty; });
  }
  // What strangers leave: as the card says, and as it is.
  void Leave(int64_t told, int64_t real) {
    std::ofstream(card_ + ".new") << told << " " << real << "\n";
    std::filesystem::rename(card_ + ".new", card_);
  }
  void LeaveAndWait(int64_t bytes) {
    Leave(bytes, bytes);
    h_->WaitForNode([bytes](const Node& n) { return n.devices(0).free_bytes() == bytes; });
  }
  JobSpec Spec(const std::string& name, int rank = 8) {
    JobSpec spec = h_->Spec(name, Records());
    spec.mutable_lora()->set_r(rank);
    return spec;
  }
  soup::v1::PlanReply Plan(const JobSpec& spec) {
    grpc::Status status;
    soup::v1::PlanReply reply = PlanOf(*h_, spec, &status);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  std::string Undisturbed(const JobSpec& spec) {
    const Job calm = h_->Submit(spec);
    EXPECT_EQ(h_->WaitFor(calm.id(), kEnds).state(), soup::v1::SUCCEEDED);
    return h_->Adapter(calm.id());
  }
  // Waits until the job is back in the queue for want of memory; that event's message.
  std::string WaitForNoMemory(const std::string& id) {
    std::string message;
    EXPECT_TRUE(h_->WatchUntil(id, absl::Seconds(60), [&](const soup::v1::WatchReply& reply) {
      if (reply.event().state() != soup::v1::QUEUED ||
          reply.event().reason() != soup::v1::OUT_OF_MEMORY)
        return false;
      message = reply.event().message();
      return true;
    }));
    return message;
  }

  TempDir dir_;
  const std::string card_ = dir_.path() + "/card";
  std::unique_ptr<Harness> h_;
};

TEST_F(SharedCardTest, TakenBeforeSubmitTheJobWaitsAndStartsByItself) {
  const JobSpec spec = Spec("waits");
  const std::string expected = Undisturbed(spec);
  const soup::v1::PlanReply free = Plan(spec);
  ASSERT_TRUE(free.fits()) << free.verdict();
  const int64_t overhead = h_->GetNode().devices(0).overhead_bytes();
  const int64_t least = free.minimum_bytes() - overhead;
  LeaveAndWait(least - 1);
  const soup::v1::PlanReply taken = Plan(spec);
  EXPECT_FALSE(taken.fits());
  EXPECT_THAT(taken.verdict(), HasSubstr(absl::StrCat(free.minimum_bytes())));
  EXPECT_THAT(taken.verdict(),
              HasSubstr(absl::StrCat(overhead + least - 2)));  // and a reserve of 1
  const Job job = h_->Submit(spec);
  const std::string message = WaitForNoMemory(job.id());
  EXPECT_THAT(message, HasSubstr(absl::StrCat(free.minimum_bytes())));
  EXPECT_THAT(message, HasSubstr(absl::StrCat(overhead + least - 2)));
  // The least is enough, and takes another placement to the same bits.
  Leave(least + 1, least + 1);
  EXPECT_EQ(h_->WaitFor(job.id(), kEnds).state(), soup::v1::SUCCEEDED);
  EXPECT_TRUE(h_->Adapter(job.id()) == expected);
  ExpectWholeHistory(*h_, job.id(), soup::v1::SUCCEEDED);
}

TEST_F(SharedCardTest, TakenBetweenPlanAndAllocationTheJobIsBackInTheQueueWithBothNumbers) {
  const JobSpec spec = Spec("late", 32);
  const std::string expected = Undisturbed(spec);
  const int64_t planned = Plan(spec).arena_bytes();
  const JobSpec small = Spec("small", 1);
  const soup::v1::PlanReply needs = Plan(small);
  const int64_t real = needs.minimum_bytes() - h_->GetNode().devices(0).overhead_bytes() + 1;
  ASSERT_LT(real, planned);
  // The card says that all is there; a stranger has taken it since.
  Leave(kPlenty, real);
  const Job job = h_->Submit(spec);
  const std::string message = WaitForNoMemory(job.id());
  EXPECT_THAT(message, HasSubstr(absl::StrCat(planned, " bytes do not fit")));
  EXPECT_THAT(message, HasSubstr(absl::StrCat(real, " bytes are free")));
  const pid_t worker = h_->WorkerPid();
  // Tried again, not in a tight loop, and never failed; meanwhile another that fits runs.
  LeaveAndWait(real);
  const Job other = h_->Submit(small);
  EXPECT_EQ(h_->WaitFor(other.id(), kEnds).state(), soup::v1::SUCCEEDED);
  EXPECT_EQ(h_->Get(job.id()).state(), soup::v1::QUEUED);
  Leave(kPlenty, kPlenty);
  const Job done = h_->WaitFor(job.id(), kEnds);
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_LT(done.attempts(), 12);
  EXPECT_TRUE(h_->Adapter(job.id()) == expected);
  EXPECT_EQ(h_->WorkerPid(), worker) << "want of memory kills nobody";
}

TEST_F(SharedCardTest, TakenDuringTheRunHasNoEffect) {
  JobSpec spec = Spec("runs");
  const std::string expected = Undisturbed(spec);
  spec.mutable_training()->set_epochs(40);
  const std::string long_expected = Undisturbed(spec);
  const Job job = h_->Submit(spec);
  h_->WaitForStep(job.id(), 3);
  Leave(0, 0);
  const Job done = h_->WaitFor(job.id(), kEnds);
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(done.attempts(), 1);
  EXPECT_TRUE(h_->Adapter(job.id()) == long_expected);
  EXPECT_FALSE(h_->Adapter(job.id()) == expected);
}

}  // namespace
}  // namespace soup::daemon
