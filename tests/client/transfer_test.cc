// Uploads and downloads against a server that breaks off, loses answers and lies.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/exit_codes.h"
#include "client/output_folder.h"
#include "client/sha256.h"
#include "client/upload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_soup.h"
#include "tests/client/test_files.h"

namespace soup::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string socket = folder_ / "s";
    soup_.ServeUnix(socket);
    auto api = Api::Create({.endpoint = "unix:" + socket}, absl::Seconds(20));
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = *std::move(api);
  }

  JobFile JobWith(const std::string& data) {
    WriteWhole(folder_ / "train.jsonl", data);
    JobFile job;
    job.spec.mutable_data()->mutable_train()->set_name("train.jsonl");
    job.files.push_back(
        {LocalFile::Slot::kTrain, -1, folder_ / "train.jsonl", "job.yaml:2:3: data.train"});
    return job;
  }

  absl::StatusOr<FetchResult> Fetch(const std::string& folder) {
    return FetchAdapter(api_.get(), "j1", folder, [](const std::string&, int64_t, int64_t) {});
  }

  TempDir folder_;
  FakeSoup soup_;
  std::unique_ptr<Api> api_;
};

// Counts, and can touch the file while it is on its way.
class Observer final : public UploadObserver {
 public:
  void Sending(const std::string&, int64_t done, int64_t) override {
    sending.push_back(done);
    if (on_sending) on_sending();
  }
  void AlreadyThere(const std::string&, int64_t) override { ++already_there; }
  void Sent(const std::string&, int64_t) override { ++sent; }
  void Retrying(const std::string&, const absl::Status&) override { ++retries; }
  std::vector<int64_t> sending;
  int already_there = 0, sent = 0, retries = 0;
  std::function<void()> on_sending;
};

TEST_F(TransferTest, UploadsInChunksUnderTheLimitOfAMessage) {
  const std::string data = RandomBytes(5 << 20, 1);
  JobFile job = JobWith(data);
  Observer observer;
  ASSERT_TRUE(UploadFiles(api_.get(), &job, &observer).ok());
  EXPECT_EQ(soup_.Uploaded(job.spec.data().train().sha256()), data);
  EXPECT_EQ(job.spec.data().train().size_bytes(), 5 << 20);
  EXPECT_LE(soup_.seen().largest_chunk, 1 << 20);
  EXPECT_GE(soup_.seen().largest_chunk, 256 << 10);
  EXPECT_EQ(observer.sending.back(), 5 << 20);
  EXPECT_EQ(observer.sent, 1);
  // The second time nothing is sent.
  const int64_t before = soup_.seen().upload_bytes;
  ASSERT_TRUE(UploadFiles(api_.get(), &job, &observer).ok());
  EXPECT_EQ(observer.already_there, 1);
  EXPECT_EQ(soup_.seen().upload_bytes, before);
}

TEST_F(TransferTest, ABrokenUploadGoesOnWhereItStopped) {
  const std::string data = RandomBytes(5 << 20, 2);
  JobFile job = JobWith(data);
  soup_.WithFaults([](auto& f) { f.cut_upload_after_bytes = 2 << 20; });
  Observer observer;
  const absl::Status status = UploadFiles(api_.get(), &job, &observer);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(observer.retries, 1);
  EXPECT_EQ(soup_.Uploaded(job.spec.data().train().sha256()), data);
  EXPECT_THAT(soup_.seen().upload_offsets, ElementsAre(0, 2 << 20));
  EXPECT_EQ(soup_.seen().upload_bytes, 5 << 20) << "no byte was sent twice";
}

TEST_F(TransferTest, ALostAnswerIsNotAnotherUpload) {
  JobFile job = JobWith(RandomBytes(100, 3));
  soup_.WithFaults([](auto& f) { f.lose_upload_replies = 1; });
  Observer observer;
  const absl::Status status = UploadFiles(api_.get(), &job, &observer);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(soup_.seen().uploads, 1);
  EXPECT_EQ(observer.sent, 1);
}

TEST_F(TransferTest, AFileThatChangesWhileItIsSentIsRefused) {
  JobFile job = JobWith(RandomBytes(3 << 20, 4));
  Observer observer;
  observer.on_sending = [&] {
    if (observer.sending.size() != 1) return;
    FILE* file = fopen((folder_ / "train.jsonl").c_str(), "r+");
    ASSERT_NE(file, nullptr);
    fseek(file, 2 << 20, SEEK_SET);
    fputs("other bytes", file);
    fclose(file);
  };
  const absl::Status status = UploadFiles(api_.get(), &job, &observer);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kError);
  EXPECT_THAT(std::string(status.message()), HasSubstr("changed while it was uploaded"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("job.yaml:2:3: data.train"));
  EXPECT_THAT(soup_.Uploaded(job.spec.data().train().sha256()), IsEmpty());
}

TEST_F(TransferTest, AFileThatShrinksWhileItIsSentIsRefused) {
  JobFile job = JobWith(RandomBytes(3 << 20, 5));
  Observer observer;
  observer.on_sending = [&] { ASSERT_EQ(truncate((folder_ / "train.jsonl").c_str(), 1 << 20), 0); };
  const absl::Status status = UploadFiles(api_.get(), &job, &observer);
  EXPECT_THAT(std::string(status.message()), HasSubstr("changed while it was uploaded"));
}

TEST_F(TransferTest, LocalFilesAreCheckedBeforeAnythingIsSent) {
  JobFile job = JobWith("");
  EXPECT_THAT(std::string(CheckLocalFiles(job).message()),
              HasSubstr("job.yaml:2:3: data.train: " + (folder_ / "train.jsonl is empty")));
  job.files[0].path = folder_ / "absent";
  EXPECT_THAT(std::string(CheckLocalFiles(job).message()), HasSubstr("No such file"));
  EXPECT_EQ(ExitCodeOf(CheckLocalFiles(job)), ExitCode::kUsage);
  job.files[0].path = folder_.path();
  EXPECT_THAT(std::string(CheckLocalFiles(job).message()), HasSubstr("is a folder"));
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  job.files[0].path = folder_ / "fifo";
  EXPECT_THAT(std::string(CheckLocalFiles(job).message()), HasSubstr("is no regular file"));
  EXPECT_EQ(soup_.seen().uploads, 0);
}

TEST_F(TransferTest, SubmitIsRepeatedUnderTheSameRequestId) {
  JobFile job = JobWith("data");
  UploadObserver observer;
  ASSERT_TRUE(UploadFiles(api_.get(), &job, &observer).ok());
  soup_.WithFaults([](auto& f) { f.submit_unavailable_after = 2; });
  const auto submitted = api_->Submit(job.spec, NewRequestId());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  EXPECT_EQ(soup_.seen().submits, 3);
  EXPECT_EQ(soup_.seen().request_ids.size(), 1u);
  EXPECT_EQ(submitted->id(), "job-1");
}

TEST_F(TransferTest, RetriesAreBounded) {
  soup_.WithFaults([](auto& f) { f.get_unavailable = 1000; });
  const auto job = api_->Get("j1");
  EXPECT_EQ(ExitCodeOf(job.status()), ExitCode::kUnavailable);
  int left = 0;
  soup_.WithFaults([&](auto& f) { left = f.get_unavailable; });
  EXPECT_EQ(left, 1000 - 4);
}

TEST_F(TransferTest, FetchFillsTheFolderWithWholeFiles) {
  const std::string weights = RandomBytes(50'000, 6);
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", weights);
  soup_.AddArtifact("j1", "adapter_config.json", "{}");
  const std::string out = folder_ / "deep/out";
  auto result = Fetch(out);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->files, 2);
  EXPECT_EQ(result->downloaded, 50'002);
  EXPECT_EQ(ReadWhole(out + "/adapter_model.safetensors"), weights);
  EXPECT_EQ(ReadWhole(out + "/adapter_config.json"), "{}");
  EXPECT_THAT(Names(out), ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  result = Fetch(out);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->downloaded, 0) << "what is there already is not fetched again";
}

TEST_F(TransferTest, ABrokenFetchGoesOnWhereItStopped) {
  const std::string weights = RandomBytes(50'000, 7);
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", weights);
  soup_.WithFaults([](auto& f) { f.cut_fetch_after_bytes = 20'000; });
  const auto result = Fetch(folder_ / "out");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(soup_.seen().fetch_offsets, ElementsAre(0, 20'000));
  EXPECT_EQ(ReadWhole(folder_ / "out/adapter_model.safetensors"), weights);
}

TEST_F(TransferTest, BytesWithAnotherHashLeaveNothing) {
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", RandomBytes(5000, 8));
  soup_.WithFaults([](auto& f) { f.corrupt_fetch = true; });
  const auto result = Fetch(folder_ / "out");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("SHA-256"));
  EXPECT_THAT(Names(folder_ / "out"), IsEmpty());
}

TEST_F(TransferTest, AFullDiskIsSaidWithBothNumbersBeforeAnythingIsWritten) {
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", "huge");
  const auto result = Fetch(folder_ / "out");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()),
              ::testing::MatchesRegex("output .*/out: 1152921504606846976 bytes needed, [0-9]+ "
                                      "bytes free.*"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TransferTest, AFetchThatFailsLeavesOnlyTheFoldersThatWereThere) {
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", "huge");
  const std::string mine = folder_ / "mine";
  ASSERT_EQ(mkdir(mine.c_str(), 0755), 0);
  EXPECT_FALSE(Fetch(mine).ok());
  EXPECT_FALSE(Fetch(mine + "/a/b/").ok());
  EXPECT_TRUE(std::filesystem::exists(mine));
  EXPECT_THAT(Names(mine), IsEmpty());
}

TEST_F(TransferTest, AnotherAdapterIsReplacedAndOtherFilesStay) {
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", "new weights");
  soup_.AddArtifact("j1", "adapter_config.json", "new config");
  const std::string out = folder_ / "out";
  ASSERT_EQ(mkdir(out.c_str(), 0755), 0);
  WriteWhole(out + "/adapter_model.safetensors", "old weights");
  WriteWhole(out + "/adapter_config.json", "old config");
  WriteWhole(out + "/README.md", "mine");
  WriteWhole(out + "/.soupctl-x.abc.partial", "left by a run that was killed");
  const auto result = Fetch(out);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->replaced);
  EXPECT_EQ(ReadWhole(out + "/adapter_model.safetensors"), "new weights");
  EXPECT_EQ(ReadWhole(out + "/adapter_config.json"), "new config");
  EXPECT_THAT(Names(out),
              ElementsAre("README.md", "adapter_config.json", "adapter_model.safetensors"));
}

TEST_F(TransferTest, AFailedFetchLeavesTheOldAdapter) {
  soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
  soup_.AddArtifact("j1", "adapter_model.safetensors", "new weights");
  soup_.AddArtifact("j1", "adapter_config.json", "new config");
  soup_.WithFaults([](auto& f) { f.corrupt_fetch = true; });
  const std::string out = folder_ / "out";
  ASSERT_EQ(mkdir(out.c_str(), 0755), 0);
  WriteWhole(out + "/adapter_model.safetensors", "old weights");
  WriteWhole(out + "/adapter_config.json", "old config");
  EXPECT_FALSE(Fetch(out).ok());
  EXPECT_EQ(ReadWhole(out + "/adapter_model.safetensors"), "old weights");
  EXPECT_EQ(ReadWhole(out + "/adapter_config.json"), "old config");
  EXPECT_EQ(Names(out).size(), 2u);
}

TEST_F(TransferTest, ANameThatLeavesTheFolderIsRefused) {
  for (const char* name : {"../evil", "a/b", ".hidden", ".."}) {
    soup_.AddJob("j1", "n", soup::v1::SUCCEEDED);
    soup_.AddArtifact("j1", name, "x");
    const auto result = Fetch(folder_ / "out");
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << name;
    EXPECT_THAT(Names(folder_ / "out"), IsEmpty());
  }
}

TEST(OutputFolderTest, WhatCannotBeWrittenIsSaidWithThePartInTheWay) {
  TempDir folder;
  EXPECT_TRUE(CheckOutputFolder(folder.path()).ok());
  EXPECT_TRUE(CheckOutputFolder(folder / "a/b/c").ok());
  EXPECT_THAT(Names(folder.path()), IsEmpty()) << "the probe is taken back";
  WriteWhole(folder / "file", "x");
  EXPECT_THAT(std::string(CheckOutputFolder(folder / "file").message()),
              HasSubstr("Not a directory"));
  EXPECT_THAT(std::string(CheckOutputFolder(folder / "file/sub").message()),
              HasSubstr("Not a directory"));
  ASSERT_EQ(symlink("/nowhere/at/all", (folder / "link").c_str()), 0);
  EXPECT_THAT(std::string(CheckOutputFolder(folder / "link").message()), HasSubstr("(a link)"));
  // /proc takes no files, not even from root.
  const absl::Status proc = CheckOutputFolder("/proc/soup/out");
  EXPECT_THAT(std::string(proc.message()),
              HasSubstr("output /proc/soup/out is not writable: /proc: "));
  EXPECT_EQ(ExitCodeOf(proc), ExitCode::kError);
}

TEST(Sha256Test, KnownDigest) {
  Sha256 hash;
  hash.Update("ab");
  hash.Update("c");
  EXPECT_EQ(hash.HexDigest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace soup::client
