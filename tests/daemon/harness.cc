#include "tests/daemon/harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/job_state.h"
#include "daemon/control/spawn.h"
#include "tests/support/test_data.h"

extern char** environ;

namespace soup::daemon {

using soup::v1::Job;
using soup::v1::JobSpec;

namespace {

constexpr absl::Duration kCall = absl::Seconds(60);
constexpr absl::string_view kBackendFlag = "--backend=";

absl::Status FromGrpc(const grpc::Status& status) {
  return status.ok() ? absl::OkStatus()
                     : absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                    status.error_message());
}

void SetDeadline(grpc::ClientContext& context, absl::Duration patience) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
}

}  // namespace

std::string ReadFileOrEmpty(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

std::string TestData(const std::string& path) { return TestDataPath(path); }

std::string Program(const std::string& name) {
  const char* there = std::getenv("SOUP_TEST_BIN");
  return absl::StrCat(there != nullptr ? there : SOUP_BINARY_DIR "/bin", "/", name);
}

std::string BackendForTests() {
  const char* given = std::getenv("SOUP_TEST_BACKEND");
  return given != nullptr ? given : "cpu";
}

std::string WorkerWithHook(const std::string& dir, const std::string& hook) {
  const std::string path = dir + "/worker-with-hook";
  const std::string worker = Program("soup-worker");
  std::ofstream(path) << "#!/bin/sh\ncase \"$*\" in *--prepare*) exec " << worker
                      << " \"$@\";; esac\nexec " << worker << " \"$@\" " << hook << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

Harness::Harness(HarnessOptions options) : options_(std::move(options)) {
  // Short: the path of a unix socket has little room.
  std::string pattern = "/tmp/soupXXXXXX";
  dir_ = ::mkdtemp(pattern.data());
  state_dir_ = options_.state_dir.empty() ? dir_ + "/s" : options_.state_dir;
  log_path_ = dir_ + "/soupd.log";
  std::filesystem::copy(TestData("cases/_base/bytes"), dir_ + "/base");
}

Harness::~Harness() {
  stub_.reset();
  channel_.reset();
  if (pid_ > 0) TerminateSoupd();
  if (::testing::Test::HasFailure()) std::cerr << "---- soupd's log\n" << log() << "----\n";
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

std::string Harness::log() const { return ReadFileOrEmpty(log_path_); }

std::string Harness::Backend() const {
  for (const std::string& flag : options_.flags) {
    if (absl::StartsWith(flag, kBackendFlag)) return flag.substr(kBackendFlag.size());
  }
  return BackendForTests();
}

absl::Status Harness::Start() { return StartWithDescriptors({}, {}); }

absl::Status Harness::StartWithDescriptors(const std::vector<int>& fds,
                                           const std::vector<std::string>& names) {
  // The shell is there for its pid, which soupd inherits by exec: LISTEN_PID must be soupd's.
  std::vector<std::string> args = {
      "sh", "-c", fds.empty() ? "exec \"$@\"" : "LISTEN_PID=$$ exec \"$@\"", "sh", "setpriv",
      "--pdeathsig", "KILL", Program("soupd"), "--state-dir=" + state_dir_, "--model-root=" + dir_,
      // One thread: tests of the whole run beside others.
      "--cpu-threads=1", "--metrics-listen=127.0.0.1:0", "--backend=" + Backend()};
  for (const std::string& flag : options_.flags) {
    if (!absl::StartsWith(flag, kBackendFlag)) args.push_back(flag);
  }
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, log_path_.c_str(), O_CREAT | O_WRONLY | O_APPEND,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  for (size_t i = 0; i < fds.size(); ++i)
    ::posix_spawn_file_actions_adddup2(&actions, fds[i], static_cast<int>(3 + i));
  std::vector<std::string> environment = options_.environment;
  if (!fds.empty()) {
    environment.push_back(absl::StrCat("LISTEN_FDS=", fds.size()));
    environment.push_back(absl::StrCat("LISTEN_FDNAMES=", absl::StrJoin(names, ":")));
  }
  std::vector<char*> envp;
  for (char** e = environ; *e != nullptr; ++e) envp.push_back(*e);
  for (std::string& e : environment) envp.push_back(e.data());
  envp.push_back(nullptr);
  const int error = ::posix_spawnp(&pid_, "sh", &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::InternalError(absl::StrCat("sh: ", std::strerror(error)));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // The limit of one attempt to connect, whatever its name says: a loaded host needs a while.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel("unix:" + state_dir_ + "/soupd.sock",
                                       grpc::InsecureChannelCredentials(), arguments);
  stub_ = soup::v1::Soup::NewStub(channel_);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  SetDeadline(context, absl::Seconds(60));
  soup::v1::Node node;
  const grpc::Status status = stub_->GetNode(&context, {}, &node);
  if (!status.ok())
    return absl::UnavailableError(absl::StrCat(status.error_message(), "\n", log()));
  return absl::OkStatus();
}

void Harness::KillSoupd() {
  if (pid_ <= 0) return;
  KillAndCollect(pid_);
  pid_ = 0;
}

int Harness::TerminateSoupd() {
  if (pid_ <= 0) return -1;
  ::kill(pid_, SIGTERM);
  return AwaitSoupd();
}

int Harness::AwaitSoupd() {
  if (pid_ <= 0) return -1;
  const ChildEnd end = CollectChild(pid_, absl::Now() + absl::Seconds(60));
  pid_ = 0;
  return end.signal != 0 ? -1 : end.exit_status;
}

pid_t Harness::WorkerPid(pid_t not_this) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline) {
    grpc::ClientContext context;
    SetDeadline(context, kCall);
    soup::v1::Node node;
    const grpc::Status status = stub_->GetNode(&context, {}, &node);
    if (!status.ok()) break;
    for (const soup::v1::WorkerInfo& worker : node.workers())
      if (worker.pid() > 0 && worker.pid() != not_this && worker.state() != "starting")
        return worker.pid();
  }
  ADD_FAILURE() << "no worker came up\n" << log();
  return 0;
}

// ---- files and specs ----

soup::v1::Node Harness::GetNode() {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::Node node;
  const grpc::Status status = stub_->GetNode(&context, {}, &node);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return node;
}

soup::v1::Node Harness::WaitForNode(const std::function<bool(const soup::v1::Node&)>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  soup::v1::Node node;
  do {
    node = GetNode();
    if (done(node)) return node;
  } while (absl::Now() < deadline && !::testing::Test::HasFatalFailure());
  ADD_FAILURE() << "the node never came to say so: " << node.DebugString();
  return node;
}

bool Harness::WaitUntilGone(const std::string& path) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (std::filesystem::exists(path)) {
    if (absl::Now() >= deadline) return false;
    GetNode();  // a turn of soupd's
  }
  return true;
}

soup::v1::FileRef Harness::Upload(const std::string& name, const std::string& content) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  ::SHA256(reinterpret_cast<const unsigned char*>(content.data()), content.size(), digest);
  soup::v1::FileRef ref;
  ref.set_name(name);
  ref.set_size_bytes(static_cast<int64_t>(content.size()));
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof digest);
  const auto hex = absl::BytesToHexString(bytes);
  ref.set_sha256(std::string(hex.data(), hex.size()));
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::UploadReply reply;
  auto writer = stub_->UploadFile(&context, &reply);
  constexpr size_t kChunk = 512 << 10;
  for (size_t at = 0; at == 0 || at < content.size(); at += kChunk) {
    soup::v1::UploadChunk chunk;
    if (at == 0) {
      chunk.set_sha256(ref.sha256());
      chunk.set_size_bytes(ref.size_bytes());
    }
    chunk.set_offset(static_cast<int64_t>(at));
    chunk.set_data(content.substr(at, kChunk));
    if (!writer->Write(chunk)) break;
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return ref;
}

JobSpec Harness::Spec(const std::string& name, const std::string& jsonl, const std::string& base) {
  JobSpec spec;
  spec.set_name(name);
  spec.mutable_base()->set_path(base.empty() ? dir_ + "/base" : base);
  spec.mutable_base()->set_format("bf16");
  *spec.mutable_data()->mutable_train() = Upload(name + ".jsonl", jsonl);
  spec.mutable_data()->set_format("auto");
  spec.mutable_data()->set_max_length(512);
  spec.mutable_data()->set_packing(true);
  spec.mutable_data()->set_train_on("responses");
  spec.mutable_lora()->set_r(4);
  spec.mutable_lora()->set_alpha(8);
  spec.mutable_lora()->add_targets("all-linear");
  soup::v1::TrainingSpec* training = spec.mutable_training();
  training->set_task("sft");
  training->set_epochs(2);
  training->set_batch_size(4);
  training->set_learning_rate(2e-3);
  training->set_scheduler("cosine");
  training->set_warmup_ratio(0.03);
  training->set_max_grad_norm(1);
  training->set_seed(42);
  training->set_save_every(5);
  training->set_keep_last(2);
  training->set_adam_beta1(0.9);
  training->set_adam_beta2(0.999);
  training->set_adam_epsilon(1e-8);
  // What models of real size run there; this one is so tiny that auto would not.
  if (Backend() == "cuda") training->set_precision("bf16");
  spec.mutable_resources()->set_priority("normal");
  spec.set_output("out");
  return spec;
}

// ---- calls ----

absl::StatusOr<Job> Harness::TrySubmit(const JobSpec& spec, const std::string& request_id) {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::SubmitRequest request;
  request.set_request_id(request_id.empty() ? absl::StrCat("test-", ::getpid(), "-", ++requests_)
                                            : request_id);
  *request.mutable_spec() = spec;
  Job job;
  const grpc::Status status = stub_->Submit(&context, request, &job);
  if (!status.ok()) return FromGrpc(status);
  return job;
}

absl::StatusOr<soup::v1::PlanReply> Harness::TryPlan(const JobSpec& spec) {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::PlanRequest request;
  *request.mutable_spec() = spec;
  soup::v1::PlanReply reply;
  const grpc::Status status = stub_->Plan(&context, request, &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

Job Harness::Submit(const JobSpec& spec) {
  auto job = TrySubmit(spec);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

Job Harness::Get(const std::string& id) {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::GetRequest request;
  request.set_job_id(id);
  Job job;
  const grpc::Status status = stub_->Get(&context, request, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return job;
}

absl::Status Harness::Pause(const std::string& id) {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::JobRequest request;
  request.set_request_id(absl::StrCat("pause-", ::getpid(), "-", ++requests_));
  request.set_job_id(id);
  Job job;
  return FromGrpc(stub_->Pause(&context, request, &job));
}

absl::Status Harness::Resume(const std::string& id) {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::JobRequest request;
  request.set_request_id(absl::StrCat("resume-", ::getpid(), "-", ++requests_));
  request.set_job_id(id);
  Job job;
  return FromGrpc(stub_->Resume(&context, request, &job));
}

absl::Status Harness::Cancel(const std::string& id) {
  grpc::ClientContext context;
  SetDeadline(context, kCall);
  soup::v1::JobRequest request;
  request.set_request_id(absl::StrCat("cancel-", ::getpid(), "-", ++requests_));
  request.set_job_id(id);
  Job job;
  return FromGrpc(stub_->Cancel(&context, request, &job));
}

// ---- waiting ----

bool Harness::WatchUntil(const std::string& id, absl::Duration patience,
                         const std::function<bool(const soup::v1::WatchReply&)>& done) {
  grpc::ClientContext context;
  SetDeadline(context, patience);
  soup::v1::WatchRequest request;
  request.set_job_id(id);
  auto reader = stub_->Watch(&context, request);
  soup::v1::WatchReply reply;
  bool found = false;
  while (!found && reader->Read(&reply)) found = done(reply);
  context.TryCancel();
  reader->Finish();
  return found;
}

Job Harness::WaitFor(const std::string& id, const std::set<soup::v1::JobState>& states,
                     absl::Duration patience) {
  Job job;
  auto there = [&] {
    job = Get(id);
    return states.count(job.state()) > 0;
  };
  if (there()) return job;
  const bool found = WatchUntil(id, patience, [&](const soup::v1::WatchReply& reply) {
    return reply.item_case() == soup::v1::WatchReply::kEvent && there();
  });
  if (!found && !there())
    ADD_FAILURE() << id << " is " << soup::v1::JobState_Name(job.state()) << " ("
                  << soup::v1::Reason_Name(job.reason()) << ": " << job.message() << ") after step "
                  << job.steps_done();
  return job;
}

void Harness::WaitForStep(const std::string& id, int64_t step, absl::Duration patience) {
  const bool found = WatchUntil(id, patience, [&](const soup::v1::WatchReply& reply) {
    return reply.item_case() == soup::v1::WatchReply::kStep && reply.step().step() >= step;
  });
  const Job job = found ? Job() : Get(id);
  EXPECT_TRUE(found) << id << " is " << soup::v1::JobState_Name(job.state()) << " ("
                     << job.message() << ") after step " << job.steps_done();
}

std::vector<soup::v1::StepRecord> Harness::Steps(const std::string& id) {
  std::vector<soup::v1::StepRecord> steps;
  for (;;) {
    grpc::ClientContext context;
    SetDeadline(context, kCall);
    soup::v1::GetMetricsRequest request;
    request.set_job_id(id);
    request.set_after_step(steps.empty() ? 0 : steps.back().step());
    soup::v1::GetMetricsReply reply;
    const grpc::Status status = stub_->GetMetrics(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    steps.insert(steps.end(), reply.steps().begin(), reply.steps().end());
    if (!status.ok() || !reply.more()) return steps;
  }
}

std::vector<soup::v1::JobEvent> Harness::Events(const std::string& id) {
  std::vector<soup::v1::JobEvent> events;
  WatchUntil(id, kCall, [&](const soup::v1::WatchReply& reply) {
    if (reply.item_case() == soup::v1::WatchReply::kEvent) events.push_back(reply.event());
    return false;  // the stream ends by itself
  });
  return events;
}

std::string Harness::Adapter(const std::string& id) {
  return ReadFileOrEmpty(state_dir_ + "/artifacts/" + id + "/adapter_model.safetensors");
}

void ExpectWholeHistory(Harness& h, const std::string& id, soup::v1::JobState end) {
  const std::vector<soup::v1::StepRecord> steps = h.Steps(id);
  for (size_t i = 0; i < steps.size(); ++i)
    ASSERT_EQ(steps[i].step(), static_cast<int64_t>(i) + 1) << "a step is missing or told twice";
  const std::vector<soup::v1::JobEvent> events = h.Events(id);
  ASSERT_FALSE(events.empty());
  for (size_t i = 0; i < events.size(); ++i) {
    ASSERT_EQ(events[i].sequence(), static_cast<int64_t>(i) + 1);
    if (i == 0) continue;
    bool allowed = false;
    for (JobTrigger trigger : kAllJobTriggers)
      allowed = allowed || NextState(events[i - 1].state(), trigger) == events[i].state();
    EXPECT_TRUE(allowed) << JobStateName(events[i - 1].state()) << " -> "
                         << JobStateName(events[i].state());
  }
  EXPECT_EQ(events.back().state(), end);
}

}  // namespace soup::daemon
