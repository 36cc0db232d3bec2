// What must not take others down, nor lose anything: poisoned data (case 15), full disks (case 17),
// bad data, and jobs whose worker or base misbehaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/io/safetensors_reader.h"
#include "tests/daemon/harness.h"
#include "tests/support/temp_dir.h"

namespace soup::daemon {
namespace {

using soup::v1::Job;
using soup::v1::JobSpec;
using ::testing::HasSubstr;

std::string Records() {
  return ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl"));
}

void ExpectFinite(const std::string& safetensors) {
  auto file = engine::SafetensorsFile::Open(safetensors);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const engine::TensorInfo& tensor : (*file)->tensors()) {
    const auto values = (*file)->ReadF32(tensor.name);
    ASSERT_TRUE(values.ok()) << values.status();
    for (const float v : *values) ASSERT_TRUE(std::isfinite(v)) << tensor.name;
  }
}

TEST(FaultsTest, APoisonedBaseOrRecordNeverMakesAPoisonedAdapter) {
  Harness h;
  const std::string base = h.dir() + "/nan";
  std::filesystem::copy(TestData("cases/15-nan-poison/base"), base);
  ASSERT_TRUE(h.Start().ok());
  const std::string data = ReadFileOrEmpty(TestData("cases/15-nan-poison/train.jsonl"));
  JobSpec poisoned = h.Spec("poisoned", data, base);
  poisoned.mutable_data()->set_packing(false);
  poisoned.mutable_training()->set_batch_size(1);
  poisoned.mutable_training()->set_epochs(3);
  poisoned.mutable_training()->set_save_every(1);
  JobSpec neighbour =
      h.Spec("neighbour", ReadFileOrEmpty(TestData("cases/15-nan-poison/neighbour.jsonl")), base);
  neighbour.mutable_data()->set_packing(false);
  neighbour.mutable_training()->set_batch_size(7);
  neighbour.mutable_training()->set_epochs(60);
  const Job alone = h.Submit(neighbour);
  const Job first = h.WaitFor(alone.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  if (first.state() == soup::v1::FAILED) {
    // The import refuses: it names the tensor.
    EXPECT_THAT(first.message(), HasSubstr("model.embed_tokens.weight"));
    EXPECT_THAT(first.message(), HasSubstr("7"));
    return;
  }
  const Job bad = h.Submit(poisoned);
  const Job good = h.Submit(neighbour);
  const Job ended = h.WaitFor(bad.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  h.WaitFor(good.id(), {soup::v1::SUCCEEDED});
  EXPECT_TRUE(h.Adapter(alone.id()) == h.Adapter(good.id()));
  EXPECT_NEAR(h.Steps(good.id()).front().loss(), 8.4325, 2e-4);
  int skipped = 0;
  for (const auto& step : h.Steps(bad.id())) skipped += step.skipped();
  EXPECT_EQ(skipped, 3) << "one an epoch";
  if (ended.state() == soup::v1::SUCCEEDED) {
    EXPECT_FALSE(ended.warnings().empty());
    ExpectFinite(h.state_dir() + "/artifacts/" + bad.id() + "/adapter_model.safetensors");
  }
}

// Writes bf16 values over those of a tensor, from element `first` on, each `step` from the last.
void Overwrite(const std::string& safetensors, const std::string& name, int64_t first, int64_t step,
               int64_t count, uint16_t bits) {
  auto file = engine::SafetensorsFile::Open(safetensors);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const engine::TensorInfo& tensor : (*file)->tensors()) {
    if (tensor.name != name) continue;
    std::fstream out(safetensors, std::ios::in | std::ios::out | std::ios::binary);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_LT(first + i * step, tensor.elements());
      out.seekp(tensor.offset + 2 * (first + i * step));
      out.write(reinterpret_cast<const char*>(&bits), sizeof(bits));
    }
    return;
  }
  FAIL() << safetensors << " has no " << name;
}

// Weights that are finite, so that the import takes them, and in which token 7 alone overflows: no
// other token has a part in the column that the first norm makes huge.
TEST(FaultsTest, AValidationLossThatIsNotFiniteIsAWarningOfItsJob) {
  Harness h;
  const std::string base = h.dir() + "/huge";
  std::filesystem::copy(TestData("cases/15-nan-poison/base"), base);
  constexpr int64_t kVocab = 264, kHidden = 32, kColumn = 5, kToken = 7;
  const std::string weights = base + "/model.safetensors";
  Overwrite(weights, "model.embed_tokens.weight", kColumn, kHidden, kVocab, 0);
  Overwrite(weights, "model.embed_tokens.weight", kToken * kHidden + kColumn, 1, 1, 0x3f80);  // 1
  Overwrite(weights, "model.layers.0.input_layernorm.weight", kColumn, 1, 1, 0x6408);  // 1e22
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec =
      h.Spec("held", ReadFileOrEmpty(TestData("cases/15-nan-poison/neighbour.jsonl")), base);
  *spec.mutable_data()->mutable_validation_file() =
      h.Upload("poison.jsonl", ReadFileOrEmpty(TestData("cases/15-nan-poison/train.jsonl")));
  spec.mutable_training()->set_epochs(2);
  const Job job = h.Submit(spec);
  const Job ended = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  ASSERT_EQ(ended.state(), soup::v1::SUCCEEDED) << ended.message();
  int told = 0;
  for (const auto& step : h.Steps(job.id())) {
    EXPECT_FALSE(step.skipped());
    if (!step.has_validation_loss()) continue;
    EXPECT_TRUE(std::isnan(step.validation_loss()));
    ++told;
    EXPECT_THAT(
        ended.warnings(),
        Contains(HasSubstr(absl::StrCat("validation after step ", step.step(),
                                        ": the loss is not finite (validation record 8,"))));
  }
  EXPECT_EQ(told, 2) << "one an epoch";
}

// A rate that throws the weights so far that no loss is finite any more: the run says so and ends.
TEST(FaultsTest, ADivergedRunEndsAndSaysSo) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec =
      h.Spec("wild", ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl")));
  spec.mutable_training()->set_batch_size(1);
  spec.mutable_training()->set_epochs(40);
  spec.mutable_training()->set_learning_rate(10);
  spec.mutable_training()->set_weight_decay(1000);
  spec.mutable_training()->set_scheduler("constant");
  spec.mutable_training()->set_warmup_ratio(0);
  const Job job = h.Submit(spec);
  const Job ended = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(ended.state(), soup::v1::FAILED);
  EXPECT_EQ(ended.reason(), soup::v1::DATA);
  EXPECT_THAT(ended.message(), AllOf(HasSubstr("diverged"), HasSubstr("learning_rate")));
  EXPECT_LT(ended.steps_done(), ended.steps_total());
}

TEST(FaultsTest, BadDataFailsTheJobWithItsLine) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  const Job job = h.Submit(h.Spec("broken", "{\"text\": \"fine\"}\n{\"text\": \"not\n"));
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(done.state(), soup::v1::FAILED);
  EXPECT_EQ(done.reason(), soup::v1::DATA);
  EXPECT_THAT(done.message(), HasSubstr("broken.jsonl"));
  EXPECT_THAT(done.message(), HasSubstr("2"));
  ExpectWholeHistory(h, job.id(), soup::v1::FAILED);
}

// One bit of soupd's copy turns; the client says its file was uploaded before.
TEST(FaultsTest, AnUploadThatWasDamagedOnTheDiskIsNotTrainedOn) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("damaged", Records());
  const std::string copy = h.state_dir() + "/files/" + spec.data().train().sha256();
  std::string bytes = ReadFileOrEmpty(copy);
  ASSERT_EQ(bytes, Records());
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(copy, std::ios::binary) << bytes;
  const Job failed = h.WaitFor(h.Submit(spec).id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(failed.state(), soup::v1::FAILED);
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("damaged.jsonl"), HasSubstr("submit")));
  const Job again = h.Submit(h.Spec("damaged", Records()));
  EXPECT_EQ(h.WaitFor(again.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED}).state(),
            soup::v1::SUCCEEDED);
}

// Nobody writes into the pipe: who reads it waits for ever, and with it a place among the jobs that
// are prepared.
TEST(FaultsTest, APipeAmongTheFilesOfABaseFailsTheJobByItsName) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json",
                                 "special_tokens_map.json", "chat_template.jinja"}) {
    const std::string base = h.dir() + "/base-" + name;
    std::filesystem::copy(TestData("cases/_base/bytes"), base);
    std::filesystem::remove(base + "/" + name);
    ASSERT_EQ(::mkfifo((base + "/" + name).c_str(), 0600), 0);
    const Job job = h.Submit(h.Spec("pipe", Records(), base));
    const Job ended = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
    EXPECT_EQ(ended.state(), soup::v1::FAILED) << name;
    EXPECT_THAT(ended.message(), AllOf(HasSubstr(base + "/" + name), HasSubstr("pipe")));
  }
}

// As the kernel does where memory is short.
TEST(FaultsTest, PreparingThatIsKilledIsTriedAgainAndThenGivenUp) {
  soup::testing::TempDir dir;
  const std::string script = dir.path() + "/worker", killed = dir.path() + "/killed";
  const std::string always = dir.path() + "/always";
  std::ofstream(script) << "#!/bin/sh\ncase \"$*\" in *--prepare*)\n"
                        << "if [ -e " << always << " ] || [ ! -e " << killed
                        << " ]; then echo x >> " << killed << "; kill -9 $$; fi;; esac\n"
                        << "exec " << Program("soup-worker") << " \"$@\"\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Harness h({.flags = {"--worker-binary=" + script}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("once", Records());
  spec.mutable_training()->set_max_steps(2);
  const Job once = h.Submit(spec);
  EXPECT_EQ(h.WaitFor(once.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED}).state(),
            soup::v1::SUCCEEDED);
  EXPECT_EQ(ReadFileOrEmpty(killed), "x\n");
  std::ofstream(always) << "";
  spec.set_name("always");
  const Job given_up = h.Submit(spec);
  const Job failed = h.WaitFor(given_up.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED});
  EXPECT_EQ(failed.state(), soup::v1::FAILED);
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("Killed"), HasSubstr("memory is short")));
  EXPECT_EQ(ReadFileOrEmpty(killed), "x\nx\nx\nx\n");
}

// Descriptors that ran out, in soupd and in the process that prepares: others give them back.
TEST(FaultsTest, AJobThatFindsNoDescriptorsWaitsForThem) {
  soup::testing::TempDir dir;
  const std::string script = dir.path() + "/worker", tried = dir.path() + "/tried";
  std::ofstream(script) << "#!/bin/sh\ncase \"$*\" in *--prepare*)\n"
                        << "if [ ! -e " << tried << " ]; then echo > " << tried
                        << "; ulimit -n 6; fi;; esac\n"
                        << "exec " << Program("soup-worker") << " \"$@\"\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Harness h({.flags = {"--worker-binary=" + script}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("in-child", Records());
  spec.mutable_training()->set_epochs(30);
  const auto waits = [](const soup::v1::WatchReply& reply) {
    return reply.event().state() == soup::v1::QUEUED &&
           reply.event().message().find("Too many open files") != std::string::npos;
  };
  const Job in_child = h.Submit(spec);
  EXPECT_TRUE(h.WatchUntil(in_child.id(), absl::Seconds(30), waits));
  spec.set_name("in-soupd");
  const Job in_soupd = h.Submit(spec);
  h.WaitForStep(in_soupd.id(), 2);
  ASSERT_TRUE(h.Pause(in_soupd.id()).ok());
  h.WaitFor(in_soupd.id(), {soup::v1::PAUSED});
  rlimit before{};
  ASSERT_EQ(::prlimit(h.soupd_pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::prlimit(h.soupd_pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  ASSERT_TRUE(h.Resume(in_soupd.id()).ok());
  EXPECT_TRUE(h.WatchUntil(in_soupd.id(), absl::Seconds(30), waits));
  ASSERT_EQ(::prlimit(h.soupd_pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  for (const Job& job : {in_soupd, in_child}) {
    const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
    EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
    ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
  }
}

TEST(FaultsTest, AStoppedWorkerIsReplaced) {
  Harness h({.flags = {"--worker-timeout=3"}});
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("stopped", Records());
  spec.mutable_training()->set_epochs(60);
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 5);
  ::kill(h.WorkerPid(), SIGSTOP);
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_GT(done.attempts(), 1);
}

// A tmpfs of a given size; gone with the object. Needs root.
class SmallDisk {
 public:
  SmallDisk(std::string path, int kib) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    const std::string options = "size=" + std::to_string(kib) + "k,mode=0700";
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill() {
    std::ofstream out(path_ + "/ballast", std::ios::binary);
    const std::string page(4096, 'x');
    while (out.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  void Free() { std::filesystem::remove(path_ + "/ballast"); }

 private:
  const std::string path_;
  bool mounted_ = false;
};

TEST(FaultsTest, AFullDiskPausesTheJobAndNothingIsLost) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounts a tmpfs: needs root";
  std::string pattern = "/tmp/diskXXXXXX";
  const std::string top = ::mkdtemp(pattern.data());
  {
    SmallDisk disk(top + "/s", 6 << 10);
    if (!disk.mounted()) GTEST_SKIP() << "no tmpfs can be mounted here";
    Harness h({.flags = {"--cache-dir=" + top + "/cache"}, .state_dir = top + "/s"});
    ASSERT_TRUE(h.Start().ok());
    JobSpec spec = h.Spec("full", Records());
    spec.mutable_lora()->set_r(16);
    spec.mutable_training()->set_epochs(60);
    spec.mutable_training()->set_save_every(1);
    const Job calm = h.Submit(spec);
    h.WaitFor(calm.id(), {soup::v1::SUCCEEDED});
    const std::string expected = h.Adapter(calm.id());
    spec.set_name("filled");
    const Job job = h.Submit(spec);
    h.WaitForStep(job.id(), 20);
    disk.Fill();
    const Job paused =
        h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::SUCCEEDED, soup::v1::FAILED});
    ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
    EXPECT_EQ(paused.reason(), soup::v1::STORAGE);
    EXPECT_THAT(paused.message(), HasSubstr(job.id()));
    EXPECT_THAT(paused.message(), HasSubstr("free"));
    EXPECT_FALSE(h.Steps(job.id()).empty()) << "what is known is still told";
    const auto sick = [](const soup::v1::Node& node) { return !node.storage_healthy(); };
    EXPECT_THAT(h.GetNode().storage_message(), HasSubstr(top + "/s"));
    // Killed and started with the disk full.
    h.KillSoupd();
    disk.Fill();
    ASSERT_TRUE(h.Start().ok());
    EXPECT_EQ(h.Get(job.id()).state(), soup::v1::PAUSED);
    EXPECT_THAT(h.WaitForNode(sick).storage_message(), HasSubstr(top + "/s"));
    disk.Free();
    h.WaitForNode([](const soup::v1::Node& node) { return node.storage_healthy(); });
    ASSERT_TRUE(h.Resume(job.id()).ok());
    const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
    ASSERT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
    EXPECT_TRUE(h.Adapter(job.id()) == expected);
    ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
  }
  std::filesystem::remove_all(top);
}

// The cache is in the state directory unless it is told otherwise.
TEST(FaultsTest, SoupdStartsWhereStateAndCacheAreOnOneFullDisk) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounts a tmpfs: needs root";
  std::string pattern = "/tmp/diskXXXXXX";
  const std::string top = ::mkdtemp(pattern.data());
  {
    SmallDisk disk(top + "/s", 16 << 10);
    if (!disk.mounted()) GTEST_SKIP() << "no tmpfs can be mounted here";
    Harness h({.state_dir = top + "/s"});
    ASSERT_TRUE(h.Start().ok());
    JobSpec spec = h.Spec("before", Records());
    spec.mutable_training()->set_max_steps(2);
    const Job before = h.Submit(spec);
    h.WaitFor(before.id(), {soup::v1::SUCCEEDED});
    h.KillSoupd();
    disk.Fill();
    ASSERT_TRUE(h.Start().ok());
    EXPECT_FALSE(h.WaitForNode([](const soup::v1::Node& node) { return !node.storage_healthy(); })
                     .storage_message()
                     .empty());
    disk.Free();
    h.WaitForNode([](const soup::v1::Node& node) { return node.storage_healthy(); });
    spec.set_name("after");
    const Job after = h.Submit(spec);
    h.WaitFor(after.id(), {soup::v1::SUCCEEDED});
    EXPECT_TRUE(h.Adapter(before.id()) == h.Adapter(after.id()));
    EXPECT_THAT(ReadFileOrEmpty(h.state_dir() + "/jobs/" + after.id() + "/log.txt"),
                HasSubstr("read from the shard cache"));
  }
  std::filesystem::remove_all(top);
}

void LimitFiles(pid_t pid, rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  ASSERT_EQ(::prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0);
}

// The kernel's signal for it would end the process.
TEST(FaultsTest, ALimitOnFilesSizesIsAsAFullDisk) {
  Harness h;
  ASSERT_TRUE(h.Start().ok());
  JobSpec spec = h.Spec("limited", Records());
  spec.mutable_training()->set_epochs(20);
  spec.mutable_training()->set_save_every(1);
  const Job job = h.Submit(spec);
  h.WaitForStep(job.id(), 5);
  const pid_t worker = h.WorkerPid();
  LimitFiles(worker, 1 << 10);
  const Job paused = h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::SUCCEEDED, soup::v1::FAILED});
  ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
  EXPECT_EQ(paused.reason(), soup::v1::STORAGE);
  EXPECT_THAT(paused.message(), AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f")));
  EXPECT_EQ(h.WorkerPid(), worker) << "the worker lives";
  LimitFiles(worker, RLIM_INFINITY);

  const pid_t soupd = h.soupd_pid();
  LimitFiles(soupd, 1 << 10);
  spec.set_name("refused");
  const absl::Status refused = h.TrySubmit(spec).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_FALSE(h.GetNode().storage_healthy());
  LimitFiles(soupd, RLIM_INFINITY);
  ASSERT_TRUE(h.Resume(job.id()).ok());
  const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
  EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
  EXPECT_EQ(h.soupd_pid(), soupd);
}

TEST(FaultsTest, AFullCacheDiskPausesTheImportAndIsUsableAgainWithoutARestart) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounts a tmpfs: needs root";
  std::string pattern = "/tmp/diskXXXXXX";
  const std::string top = ::mkdtemp(pattern.data());
  {
    SmallDisk disk(top + "/cache", 2 << 10);
    if (!disk.mounted()) GTEST_SKIP() << "no tmpfs can be mounted here";
    Harness h({.flags = {"--cache-dir=" + top + "/cache"}, .state_dir = ""});
    ASSERT_TRUE(h.Start().ok());
    disk.Fill();
    const Job job = h.Submit(h.Spec("import", Records()));
    const Job paused =
        h.WaitFor(job.id(), {soup::v1::PAUSED, soup::v1::SUCCEEDED, soup::v1::FAILED});
    ASSERT_EQ(paused.state(), soup::v1::PAUSED) << paused.message();
    EXPECT_EQ(paused.reason(), soup::v1::STORAGE);
    EXPECT_THAT(paused.message(), HasSubstr(top + "/cache"));
    disk.Free();
    ASSERT_TRUE(h.Resume(job.id()).ok());
    const Job done = h.WaitFor(job.id(), {soup::v1::SUCCEEDED, soup::v1::FAILED, soup::v1::PAUSED});
    EXPECT_EQ(done.state(), soup::v1::SUCCEEDED) << done.message();
    ExpectWholeHistory(h, job.id(), soup::v1::SUCCEEDED);
  }
  std::filesystem::remove_all(top);
}

}  // namespace
}  // namespace soup::daemon
