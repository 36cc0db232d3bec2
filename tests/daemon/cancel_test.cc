// Cancel in every state (case 27).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "engine/io/safetensors_reader.h"
#include "engine/io/safetensors_writer.h"
#include "tests/daemon/harness.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;
using soup::v1::JobSpec;

std::string Records() {
  return ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl"));
}

JobSpec Endless(Harness& h, const std::string& name) {
  JobSpec spec = h.Spec(name, Records());
  spec.mutable_training()->set_epochs(100000);
  spec.mutable_training()->set_save_every(0);
  return spec;
}

TEST(CancelTest, WhileQueued) {
  Harness h({.flags = {"--quota-running=1"}});
  ASSERT_TRUE(h.Start().ok());
  const Job running = h.Submit(Endless(h, "long"));
  h.WaitForStep(running.id(), 1);
  const Job next = h.Submit(Endless(h, "next"));
  EXPECT_EQ(h.Get(next.id()).state(), soup::v1::QUEUED);
  // The place in the queue is told a moment after the submit is acknowledged.
  int64_t place = 0;
  for (const absl::Time until = absl::Now() + absl::Seconds(10); place == 0 && absl::Now() < until;)
    place = h.Get(next.id()).queue_position();
  EXPECT_EQ(place, 1);
  const absl::Time asked = absl::Now();
  ASSERT_TRUE(h.Cancel(next.id()).ok());
  h.WaitFor(next.id(), {soup::v1::CANCELLED}, absl::Seconds(5));
  EXPECT_LT(absl::Now() - asked, absl::Seconds(1));
  ASSERT_TRUE(h.Cancel(running.id()).ok());
  h.WaitFor(running.id(), {soup::v1::CANCELLED});
  ASSERT_EQ(h.TerminateSoupd(), 0);
  ASSERT_TRUE(h.Start().ok());
  const Job after = h.Get(next.id());
  EXPECT_EQ(after.state(), soup::v1::CANCELLED);
  EXPECT_EQ(after.reason(), soup::v1::USER_REQUEST);
  EXPECT_EQ(after.steps_done(), 0);
  ExpectWholeHistory(h, next.id(), soup::v1::CANCELLED);
}

TEST(CancelTest, WhileRunningLeavesACheckpointAndNoAdapter) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(Endless(h, "long"));
  h.WaitForStep(job.id(), 3);
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  const Job done = h.WaitFor(job.id(), {soup::v1::CANCELLED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::CANCELLED);
  EXPECT_FALSE(ReadFileOrEmpty(h.state_dir() + "/jobs/" + job.id() + "/checkpoints/step-" +
                               std::to_string(done.steps_done()) + "/state.json")
                   .empty());
  EXPECT_TRUE(h.Adapter(job.id()).empty());
  EXPECT_TRUE(h.WaitUntilGone(h.state_dir() + "/mirror/" + job.id()));
  ExpectWholeHistory(h, job.id(), soup::v1::CANCELLED);
}

TEST(CancelTest, WhilePaused) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(Endless(h, "long"));
  h.WaitForStep(job.id(), 1);
  ASSERT_TRUE(h.Pause(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::PAUSED});
  EXPECT_TRUE(std::filesystem::exists(h.state_dir() + "/mirror/" + job.id()));
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::CANCELLED});
  ExpectWholeHistory(h, job.id(), soup::v1::CANCELLED);
}

// A base that takes a while to import: the small one with a large vocabulary.
void MakeLargeBase(const std::string& from, const std::string& to, int64_t vocab) {
  std::filesystem::create_directory(to);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy(from + "/" + name, to + "/" + name);
  std::string config = ReadFileOrEmpty(from + "/config.json");
  const std::string old = "\"vocab_size\": 264";
  const size_t at = config.find(old);
  ASSERT_NE(at, std::string::npos);
  config.replace(at, old.size(), "\"vocab_size\": " + std::to_string(vocab));
  std::ofstream(to + "/config.json") << config;
  auto file = engine::SafetensorsFile::Open(from + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  std::map<std::string, std::vector<uint8_t>> data;
  std::vector<engine::TensorToWrite> tensors;
  for (const engine::TensorInfo& tensor : (*file)->tensors()) {
    std::vector<uint8_t>& bytes = data[tensor.name];
    bytes = *(*file)->ReadBytes(tensor.name);
    engine::TensorToWrite t{tensor.name, tensor.dtype, tensor.shape, {}};
    if (tensor.name == "model.embed_tokens.weight") {
      t.shape[0] = vocab;
      const std::vector<uint8_t> small = bytes;
      bytes.resize(static_cast<size_t>(vocab) * 32 * 2);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = small[i % small.size()];
    }
    t.data = engine::AsBytes(bytes);
    tensors.push_back(std::move(t));
  }
  const absl::Status written =
      engine::WriteSafetensors(engine::RealFileSystem(), to + "/model.safetensors", tensors);
  ASSERT_TRUE(written.ok()) << written;
}

TEST(CancelTest, WhilePreparingABigBaseThatAnotherJobWaitsForToo) {
  Harness h;
  MakeLargeBase(h.dir() + "/base", h.dir() + "/big", 2 << 20);
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("cancelled", Records(), h.dir() + "/big");
  spec.mutable_training()->set_max_steps(1);
  spec.mutable_training()->set_warmup_ratio(0);  // a first step that moves something
  spec.mutable_training()->set_batch_size(1);
  const Job job = h.Submit(spec);
  spec.set_name("waits");
  const Job other = h.Submit(spec);
  // In the middle of fingerprint, import or load, whichever progress is seen first.
  const bool preparing = h.WatchUntil(job.id(), absl::Seconds(60), [](const auto& reply) {
    return reply.item_case() == soup::v1::WatchReply::kProgress &&
           (reply.progress().stage() == "fingerprint" || reply.progress().stage() == "import" ||
            reply.progress().stage() == "load");
  });
  EXPECT_TRUE(preparing);
  const absl::Time asked = absl::Now();
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::CANCELLED}, absl::Seconds(20));
  EXPECT_LT(absl::Now() - asked, absl::Seconds(2));
  ExpectWholeHistory(h, job.id(), soup::v1::CANCELLED);
  const Job done = h.WaitFor(other.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
}

TEST(CancelTest, AtRandomMomentsTheEndIsCancelledOrAWholeSuccess) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  for (int64_t after = 0; after < 12; ++after) {
    JobSpec spec = h.Spec("short-" + std::to_string(after), Records());
    spec.mutable_training()->set_max_steps(std::max<int64_t>(1, after / 2));
    spec.mutable_training()->set_warmup_ratio(0);
    const Job job = h.Submit(spec);
    // Early ones while queued or preparing, late ones in the last step or while finalising.
    if (after % 2 == 1) h.WaitForStep(job.id(), spec.training().max_steps());
    const absl::Status cancelled = h.Cancel(job.id());
    const Job done =
        h.WaitFor(job.id(), {soup::v1::CANCELLED, soup::v1::SUCCEEDED, soup::v1::FAILED});
    EXPECT_NE(done.state(), soup::v1::FAILED) << done.message();
    EXPECT_EQ(h.Adapter(job.id()).empty(), done.state() == soup::v1::CANCELLED);
    if (!cancelled.ok()) {
      EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << cancelled;
    }
    ExpectWholeHistory(h, job.id(), done.state());
  }
}

TEST(CancelTest, AWatcherThatLeavesCancelsNothing) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(Endless(h, "long"));
  h.WaitForStep(job.id(), 1);  // its stream is cancelled after that
  h.WaitForStep(job.id(), h.Get(job.id()).steps_done() + 1);
  EXPECT_EQ(h.Get(job.id()).state(), soup::v1::RUNNING);
  ASSERT_TRUE(h.Cancel(job.id()).ok());
  h.WaitFor(job.id(), {soup::v1::CANCELLED});
}

}  // namespace
}  // namespace soup::daemon
