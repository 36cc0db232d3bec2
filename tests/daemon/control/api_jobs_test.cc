// Submit, Get, List, Pause, Resume, Cancel, GetMetrics, artifacts, cache and node calls over the
// real endpoints.
#include <gmock/gmock.h>

#include <cmath>
#include <set>
#include <thread>

#include "daemon/control/sha256.h"
#include "tests/daemon/control/api_fixture.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using namespace soup::v1;

class ApiJobsTest : public ApiTest {
 protected:
  void SetUp() override {
    StartServer();
    alice_ = As("alice");
    bob_ = As("bob");
  }

  grpc::Status Get(Soup::Stub& stub, const std::string& id, Job* job) {
    Call call;
    GetRequest request;
    request.set_job_id(id);
    return stub.Get(&call, request, job);
  }
  grpc::Status Act(Soup::Stub& stub, const std::string& verb, const std::string& id, Job* job,
                   const std::string& request_id = "") {
    Call call;
    JobRequest request;
    request.set_job_id(id);
    request.set_request_id(request_id);
    if (verb == "pause") return stub.Pause(&call, request, job);
    if (verb == "resume") return stub.Resume(&call, request, job);
    return stub.Cancel(&call, request, job);
  }
  grpc::Status SubmitSpec(Soup::Stub& stub, const JobSpec& spec, Job* job,
                          const std::string& request_id = "") {
    Call call;
    SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    return stub.Submit(&call, request, job);
  }

  std::unique_ptr<Soup::Stub> alice_, bob_;
};

TEST_F(ApiJobsTest, SubmitIsIdempotentAndTellsTheOrchestrator) {
  const std::string sha = Upload(*alice_);
  Job first, again, other;
  ASSERT_TRUE(SubmitSpec(*alice_, Spec("n", sha), &first, "r1").ok());
  EXPECT_EQ(first.state(), QUEUED);
  EXPECT_EQ(first.user(), "alice");
  EXPECT_EQ(first.queue_position(), 1);
  EXPECT_TRUE(std::isnan(first.last_loss()));
  EXPECT_THAT(fake_->told(), Contains("submitted " + first.id()));
  ASSERT_TRUE(SubmitSpec(*alice_, Spec("n", sha), &again, "r1").ok());
  EXPECT_EQ(first.id(), again.id());
  EXPECT_EQ(SubmitSpec(*alice_, Spec("m", sha), &other, "r1").error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(SubmitSpec(*alice_, Spec("m", sha), &other, std::string(129, 'r')).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ApiJobsTest, ARepeatedSubmitIsAnsweredAsItsFirstWhateverBecameOfItsParts) {
  const std::string sha = Upload(*alice_);
  Job first, again;
  ASSERT_TRUE(SubmitSpec(*alice_, Spec("n", sha), &first, "r1").ok());
  fake_->submit_answer = absl::InvalidArgumentError("base: a file is gone");
  ASSERT_TRUE(SubmitSpec(*alice_, Spec("n", sha), &again, "r1").ok());
  EXPECT_EQ(first.id(), again.id());
  EXPECT_EQ(SubmitSpec(*alice_, Spec("n", sha), &again, "r2").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ApiJobsTest, SubmitsAtTheSameTimeUnderOneRequestIdMakeOneJob) {
  const std::string sha = Upload(*alice_);
  std::vector<std::thread> threads;
  absl::Mutex mutex;
  std::set<std::string> ids;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      Job job;
      ASSERT_TRUE(SubmitSpec(*alice_, Spec("n", sha), &job, "same").ok());
      absl::MutexLock lock(&mutex);
      ids.insert(job.id());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ((*store_->CountByState())[QUEUED], 1);
}

TEST_F(ApiJobsTest, SubmitRefusesWhatIsWrongAndNamesIt) {
  const std::string sha = Upload(*alice_);
  Job job;
  JobSpec spec = Spec("n", sha);
  spec.mutable_lora()->set_r(0);
  grpc::Status status = SubmitSpec(*alice_, spec, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("lora.r is 0"));
  status = SubmitSpec(*bob_, Spec("n", sha), &job);  // alice's file, not bob's
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("data.train"));
  spec = Spec("n", sha);
  spec.mutable_data()->mutable_train()->set_size_bytes(1);
  status = SubmitSpec(*alice_, spec, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("data.train.size_bytes is 1"));
  spec = Spec("n", sha);
  spec.mutable_base()->set_path("/etc");
  EXPECT_EQ(SubmitSpec(*alice_, spec, &job).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  fake_->submit_answer = absl::ResourceExhaustedError("1 GiB is too little; 2 GiB would do");
  status = SubmitSpec(*alice_, Spec("n", sha), &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("2 GiB would do"));
  EXPECT_TRUE(store_->CountByState()->empty());
}

TEST_F(ApiJobsTest, OwnersSeeTheirOwnAdminsAll) {
  const Job job = Submit(*alice_, "mine");
  const auto unix_admin = Unix();  // the test's uid is soupd's own
  const auto remote_admin = As("root-remote");
  Job got;
  EXPECT_TRUE(Get(*alice_, job.id(), &got).ok());
  EXPECT_TRUE(Get(*alice_, "mine", &got).ok());
  EXPECT_EQ(got.id(), job.id());
  EXPECT_TRUE(Get(*unix_admin, job.id(), &got).ok());
  EXPECT_TRUE(Get(*remote_admin, "mine", &got).ok());
  for (const std::string& name : {job.id(), std::string("mine"), std::string("j-nothing")}) {
    const grpc::Status status = Get(*bob_, name, &got);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
  for (const char* verb : {"pause", "resume", "cancel"}) {
    EXPECT_EQ(Act(*bob_, verb, job.id(), &got).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(store_->GetJob(job.id())->state, QUEUED);
  Call call1, call2, call3;
  ListReply list;
  ASSERT_TRUE(bob_->List(&call1, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
  ListRequest all;
  all.set_all_users(true);
  EXPECT_EQ(bob_->List(&call2, all, &list).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(remote_admin->List(&call3, all, &list).ok());
  EXPECT_EQ(list.jobs_size(), 1);
}

TEST_F(ApiJobsTest, PauseResumeCancelAreIdempotentAndJudged) {
  const Job job = Submit(*alice_, "n");
  Job got;
  ASSERT_TRUE(Act(*alice_, "pause", job.id(), &got, "p").ok());
  EXPECT_EQ(got.state(), PAUSED);
  ASSERT_TRUE(Act(*alice_, "pause", job.id(), &got).ok());
  ASSERT_TRUE(Act(*alice_, "resume", job.id(), &got).ok());
  EXPECT_EQ(got.state(), QUEUED);
  ASSERT_TRUE(Act(*alice_, "pause", job.id(), &got, "p").ok());  // late repeat: nothing happens
  EXPECT_EQ(got.state(), QUEUED);
  fake_->StartRunning(job.id(), 5);
  ASSERT_TRUE(Act(*alice_, "cancel", "n", &got).ok());
  EXPECT_EQ(got.state(), CANCELLING);
  EXPECT_EQ(got.reason(), USER_REQUEST);
  EXPECT_THAT(fake_->told(), Contains("cancel " + job.id()));
  EXPECT_EQ(Act(*alice_, "resume", job.id(), &got).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  fake_->Move(job.id(), JobTrigger::kCancelled, USER_REQUEST);
  ASSERT_TRUE(Act(*alice_, "cancel", job.id(), &got).ok());
  EXPECT_EQ(got.state(), CANCELLED);
  EXPECT_EQ(Act(*alice_, "pause", job.id(), &got).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

// Case 25: neither 5000 jobs nor a text of 5 MiB break a list or a get by the size of a message.
TEST_F(ApiJobsTest, ManyJobsAndLongTextsFitMessages) {
  const std::string sha = Upload(*alice_);
  JobSpec spec = Spec(std::string(128, 'n'), sha);
  spec.set_output(std::string(4000, 'o'));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) {
        ASSERT_TRUE(store_->CreateJob("alice", "", spec, BasePath(), 0).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto failed = store_->CreateJob("alice", "", spec, BasePath(), 0);
  fake_->Move(failed->job.id, JobTrigger::kFailed, DATA, std::string(5 << 20, 'x'));
  std::set<std::string> seen;
  ListRequest request;
  request.set_page_size(1000);
  do {
    Call call;
    ListReply reply;
    const grpc::Status status = alice_->List(&call, request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LT(reply.ByteSizeLong(), 4u << 20);
    for (const Job& job : reply.jobs()) EXPECT_TRUE(seen.insert(job.id()).second);
    request.set_page_token(reply.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen.size(), 2001u);
  Job got;
  ASSERT_TRUE(Get(*alice_, failed->job.id, &got).ok());
  EXPECT_EQ(got.state(), FAILED);
  request.set_page_size(-1);
  Call call;
  ListReply reply;
  EXPECT_EQ(alice_->List(&call, request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ApiJobsTest, MetricsHistoryPages) {
  const Job job = Submit(*alice_, "n");
  fake_->StartRunning(job.id(), 30);
  for (int n = 1; n <= 30; ++n) fake_->DoStep(job.id(), n, n == 30 ? NAN : 1.0 / n);
  GetMetricsRequest request;
  request.set_job_id(job.id());
  request.set_after_step(5);
  request.set_limit(20);
  GetMetricsReply reply;
  Call call1, call2, call3;
  ASSERT_TRUE(alice_->GetMetrics(&call1, request, &reply).ok());
  ASSERT_EQ(reply.steps_size(), 20);
  EXPECT_EQ(reply.steps(0).step(), 6);
  EXPECT_TRUE(reply.more());
  request.set_after_step(25);
  ASSERT_TRUE(alice_->GetMetrics(&call2, request, &reply).ok());
  EXPECT_EQ(reply.steps_size(), 5);
  EXPECT_FALSE(reply.more());
  EXPECT_EQ(bob_->GetMetrics(&call3, request, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  Job got;
  ASSERT_TRUE(Get(*alice_, job.id(), &got).ok());
  EXPECT_EQ(got.steps_done(), 30);
  EXPECT_EQ(got.steps_total(), 30);
  EXPECT_TRUE(std::isnan(got.last_loss()));
}

TEST_F(ApiJobsTest, ArtifactsAreVisibleWhenTheJobSucceededAndWhole) {
  const Job job = Submit(*alice_, "n");
  fake_->StartRunning(job.id(), 1);
  const std::string weights(700'000, 'w');
  ListArtifactsRequest list;
  list.set_job_id(job.id());
  ListArtifactsReply reply;
  Call early;
  EXPECT_EQ(alice_->ListArtifacts(&early, list, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  fake_->Finish(job.id(), weights);
  Call call1, call2;
  ASSERT_TRUE(alice_->ListArtifacts(&call1, list, &reply).ok());
  ASSERT_EQ(reply.artifacts_size(), 2);
  EXPECT_EQ(reply.artifacts(1).name(), "adapter_model.safetensors");
  EXPECT_EQ(reply.artifacts(1).sha256(), Sha256Hex(weights));
  EXPECT_EQ(bob_->ListArtifacts(&call2, list, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  FetchArtifactRequest fetch;
  fetch.set_job_id(job.id());
  fetch.set_name("adapter_model.safetensors");
  fetch.set_offset(100);
  Call call3;
  auto reader = alice_->FetchArtifact(&call3, fetch);
  std::string got;
  const auto chunks = ReadAll(*reader);
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(chunks[0].size_bytes(), 700'000);
  EXPECT_EQ(chunks[0].sha256(), Sha256Hex(weights));
  for (const ArtifactChunk& chunk : chunks) got += chunk.data();
  EXPECT_EQ(got, weights.substr(100));
  for (const char* name : {"../../soupd.db", "", ".", "none", "/etc/passwd"}) {
    Call call;
    fetch.set_name(name);
    fetch.set_offset(0);
    auto bad = alice_->FetchArtifact(&call, fetch);
    EXPECT_TRUE(ReadAll(*bad).empty());
    EXPECT_EQ(bad->Finish().error_code(), grpc::StatusCode::NOT_FOUND) << name;
  }
}

TEST_F(ApiJobsTest, LogsAreReadFromAnOffset) {
  const Job job = Submit(*alice_, "n");
  GetLogsRequest request;
  request.set_job_id(job.id());
  const auto read = [&](Soup::Stub& stub, grpc::Status* status) {
    Call call;
    auto reader = stub.GetLogs(&call, request);
    std::string text;
    for (const LogChunk& chunk : ReadAll(*reader)) text += chunk.data();
    *status = reader->Finish();
    return text;
  };
  grpc::Status status;
  EXPECT_EQ(read(*alice_, &status), "");
  EXPECT_TRUE(status.ok());
  ASSERT_TRUE(engine::RealFileSystem().CreateDirectories(config_.JobDir(job.id())).ok());
  const std::string log = std::string(600'000, 'a') + "end";
  soup::testing::WriteWhole(config_.JobLogPath(job.id()), log);
  request.set_offset(3);
  EXPECT_EQ(read(*alice_, &status), log.substr(3));
  read(*bob_, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ApiJobsTest, PlanPreviewAndNodeAnswer) {
  const std::string sha = Upload(*alice_);
  PlanRequest plan;
  *plan.mutable_spec() = Spec("n", sha);
  PlanReply planned;
  Call call1, call2, call3;
  ASSERT_TRUE(alice_->Plan(&call1, plan, &planned).ok());
  EXPECT_EQ(planned.verdict(), "fits " + BasePath());
  PreviewDataRequest preview;
  *preview.mutable_spec() = Spec("n", sha);
  preview.set_records(100);  // 10 MB of text: cut, with a note
  PreviewDataReply previewed;
  const grpc::Status status = alice_->PreviewData(&call2, preview, &previewed);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_LT(previewed.ByteSizeLong(), 4u << 20);
  EXPECT_GT(previewed.records_size(), 10);
  ASSERT_EQ(previewed.report().warnings_size(), 1);
  Node node;
  ASSERT_TRUE(bob_->GetNode(&call3, {}, &node).ok());
  EXPECT_EQ(node.user(), "bob");
  EXPECT_FALSE(node.admin());
  EXPECT_TRUE(node.storage_healthy());
  EXPECT_GT(node.memory_total_bytes(), 0);
  EXPECT_GT(node.state_dir_free_bytes(), 0);
  EXPECT_EQ(node.devices(0).name(), "fake");
}

TEST_F(ApiJobsTest, CacheCalls) {
  Call call1, call2, call3, call4, call5, call6;
  ListCacheReply list;
  ASSERT_TRUE(alice_->ListCache(&call1, {}, &list).ok());
  EXPECT_EQ(list.entries_size(), 1);
  EvictCacheRequest evict;
  evict.set_fingerprint("f00");
  EvictCacheReply evicted;
  EXPECT_EQ(alice_->EvictCache(&call2, evict, &evicted).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(As("root-remote")->EvictCache(&call3, evict, &evicted).ok());
  EXPECT_EQ(evicted.freed_bytes(), 123);
  PrefetchCacheRequest prefetch;
  prefetch.set_request_id("x");
  prefetch.mutable_base()->set_path(BasePath());
  prefetch.mutable_base()->set_format("bf16");
  auto reader = alice_->PrefetchCache(&call4, prefetch);
  const auto replies = ReadAll(*reader);
  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_GE(replies.size(), 1u);
  EXPECT_EQ(replies.back().done().fingerprint(), "f00");
  prefetch.mutable_base()->set_format("nf4");
  auto other = alice_->PrefetchCache(&call5, prefetch);
  ReadAll(*other);
  EXPECT_EQ(other->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // A client that goes away ends the import.
  fake_->prefetch_hang = true;
  prefetch.set_request_id("");
  auto hanging = alice_->PrefetchCache(&call6, prefetch);
  PrefetchReply progress;
  ASSERT_TRUE(hanging->Read(&progress));
  call6.TryCancel();
  hanging->Finish();
  EXPECT_TRUE(fake_->AwaitCancelSeen(absl::Seconds(10)));
}

TEST_F(ApiJobsTest, MutationsAreRefusedWhileDraining) {
  const std::string sha = Upload(*alice_);
  api_->draining = true;
  Job job;
  EXPECT_EQ(SubmitSpec(*alice_, Spec("n", sha), &job).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace soup::daemon
