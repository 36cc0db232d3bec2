// Case 25: uploads. Chunks under the message limit, whole or not at all, resumable, owned, memory
// bounded.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/control/sha256.h"
#include "tests/daemon/control/api_fixture.h"
#include "tests/daemon/control/job_spec_for_tests.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using ::testing::HasSubstr;
using namespace soup::v1;

// A large content that needs no memory: block n is 64 KiB of bytes made from n.
constexpr int64_t kBlock = 64 << 10;
std::string BlockOf(int64_t n) {
  std::string block(kBlock, static_cast<char>('a' + n % 26));
  block.replace(0, 8, absl::StrCat(10'000'000 + n));
  return block;
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class ApiUploadTest : public ApiTest {
 protected:
  void SetUp() override {
    StartServer();
    alice_ = As("alice");
    bob_ = As("bob");
  }

  StatUploadReply Stat(Soup::Stub& stub, const std::string& sha, int64_t size) {
    Call call;
    StatUploadRequest request;
    request.set_sha256(sha);
    request.set_size_bytes(size);
    StatUploadReply reply;
    const grpc::Status status = stub.StatUpload(&call, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  // One chunk a call of `more`; the status of the whole.
  grpc::Status Send(Soup::Stub& stub, const std::string& sha, int64_t size, int64_t offset,
                    const std::function<std::string()>& more) {
    Call call(120);
    UploadReply reply;
    auto writer = stub.UploadFile(&call, &reply);
    bool first = true;
    while (true) {
      UploadChunk chunk;
      if (first) {
        chunk.set_sha256(sha);
        chunk.set_size_bytes(size);
        first = false;
      }
      chunk.set_offset(offset);
      chunk.set_data(more());
      if (chunk.data().empty() || !writer->Write(chunk)) break;
      offset += static_cast<int64_t>(chunk.data().size());
    }
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status SendWhole(Soup::Stub& stub, const std::string& content, int64_t offset = 0,
                         const std::string& sha = "") {
    bool sent = false;
    return Send(stub, sha.empty() ? Sha256Hex(content) : sha, static_cast<int64_t>(content.size()),
                offset, [&] {
                  return std::exchange(sent, true) ? std::string()
                                                   : content.substr(static_cast<size_t>(offset));
                });
  }
  bool Exists(const std::string& sha) const {
    return engine::RealFileSystem().Exists(config_.FilePath(sha));
  }
  std::vector<std::string> Partials() const {
    return engine::RealFileSystem().ListDirectory(config_.FilesDir() + "/partial").value();
  }

  std::unique_ptr<Soup::Stub> alice_, bob_;
};

TEST_F(ApiUploadTest, AFileOfManyChunksArrivesWholeInBoundedMemory) {
  constexpr int64_t kBlocks = 200 * 16;  // 200 MiB
  Sha256 hash;
  for (int64_t n = 0; n < kBlocks; ++n) hash.Update(BlockOf(n));
  const std::string sha = hash.HexDigest();
  const int64_t before = ResidentBytes();
  int64_t n = 0;
  int64_t most = 0;
  const grpc::Status status = Send(*alice_, sha, kBlocks * kBlock, 0, [&]() -> std::string {
    most = std::max(most, ResidentBytes() - before);
    if (n == kBlocks) return "";
    std::string chunk;
    for (int i = 0; i < 8 && n < kBlocks; ++i) chunk += BlockOf(n++);
    return chunk;
  });
  ASSERT_TRUE(status.ok()) << status.error_message();
#ifndef __SANITIZE_ADDRESS__  // which holds back what was freed
  EXPECT_LT(most, 64 << 20);
#endif
  EXPECT_TRUE(Stat(*alice_, sha, kBlocks * kBlock).complete());
  EXPECT_EQ(engine::RealFileSystem().FileSize(config_.FilePath(sha)).value(), kBlocks * kBlock);
  struct stat st {};
  ASSERT_EQ(stat(config_.FilePath(sha).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST_F(ApiUploadTest, AClientThatGoesAwayLeavesNoFileAndIsResumed) {
  std::string content(900'000, 'x');
  content[899'999] = 'y';
  const std::string sha = Sha256Hex(content);
  const int64_t size = static_cast<int64_t>(content.size());
  {
    Call call;
    UploadReply reply;
    auto writer = alice_->UploadFile(&call, &reply);
    UploadChunk chunk;
    chunk.set_sha256(sha);
    chunk.set_size_bytes(size);
    chunk.set_data(content.substr(0, 400'000));
    ASSERT_TRUE(writer->Write(chunk));
    // Until soupd has it; then the client dies.
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    const auto arrived = [&] {
      for (const std::string& name : Partials()) {
        struct stat st {};
        if (stat((config_.FilesDir() + "/partial/" + name).c_str(), &st) == 0 &&
            st.st_size == 400'000) {
          return true;
        }
      }
      return false;
    };
    while (!arrived() && absl::Now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(arrived());
    call.TryCancel();
    writer->Finish();
  }
  EXPECT_FALSE(Exists(sha));
  // The session is let go asynchronously; then the part can be found.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (Stat(*alice_, sha, size).offset() != 400'000 && absl::Now() < deadline) {
  }
  const StatUploadReply stat = Stat(*alice_, sha, size);
  EXPECT_FALSE(stat.complete());
  ASSERT_EQ(stat.offset(), 400'000);
  EXPECT_EQ(Stat(*bob_, sha, size).offset(), 0);  // not bob's
  // A wrong offset is told, not guessed at.
  EXPECT_EQ(SendWhole(*alice_, content, 300'000).error_code(), grpc::StatusCode::ABORTED);
  ASSERT_EQ(Stat(*alice_, sha, size).offset(), 400'000);
  const grpc::Status resumed = SendWhole(*alice_, content, 400'000);
  ASSERT_TRUE(resumed.ok()) << resumed.error_message();
  EXPECT_EQ(soup::testing::ReadWhole(config_.FilePath(sha)), content);
  EXPECT_TRUE(Partials().empty());
}

TEST_F(ApiUploadTest, AFileThatChangedIsRefusedAndNothingStays) {
  const std::string content(1000, 'a');
  const std::string other_sha = Sha256Hex(std::string(1000, 'b'));
  const grpc::Status status = SendWhole(*alice_, content, 0, other_sha);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("changed"));
  EXPECT_FALSE(Exists(other_sha));
  EXPECT_TRUE(Partials().empty());
  EXPECT_EQ(Stat(*alice_, other_sha, 1000).offset(), 0);
  // A part that was changed on the way to its end is found too, when it is resumed.
  bool sent = false;
  const std::string sha = Sha256Hex(content);
  EXPECT_EQ(Send(*alice_, sha, 1000, 0,
                 [&] { return std::exchange(sent, true) ? "" : std::string(500, 'c'); })
                .error_code(),
            grpc::StatusCode::ABORTED);
  ASSERT_EQ(Stat(*alice_, sha, 1000).offset(), 500);
  EXPECT_EQ(SendWhole(*alice_, content, 500).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(SendWhole(*alice_, content).ok());
}

TEST_F(ApiUploadTest, TwoUsersAndTwoStreamsOfOneFile) {
  const std::string content(2'000'000, 'z');
  const std::string sha = Sha256Hex(content);
  std::vector<std::thread> threads;
  for (Soup::Stub* stub : {alice_.get(), alice_.get(), bob_.get(), bob_.get()}) {
    threads.emplace_back([&, stub] {
      int64_t at = 0;
      const grpc::Status status = Send(*stub, sha, 2'000'000, 0, [&] {
        const std::string part = content.substr(static_cast<size_t>(at), 100'000);
        at += 100'000;
        return at > 2'000'000 ? std::string() : part;
      });
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(soup::testing::ReadWhole(config_.FilePath(sha)), content);
  EXPECT_TRUE(Partials().empty());
  EXPECT_EQ(engine::RealFileSystem().ListDirectory(config_.FilesDir())->size(), 2u);  // and partial
}

TEST_F(ApiUploadTest, ThatSomebodyElseHasAFileCannotBeSeen) {
  const std::string content(3000, 'q');
  ASSERT_TRUE(SendWhole(*alice_, content).ok());
  const StatUploadReply stat = Stat(*bob_, Sha256Hex(content), 3000);
  EXPECT_FALSE(stat.complete());
  EXPECT_EQ(stat.offset(), 0);
  // A wrong size or bad bytes under a hash that is there: no different from one that is not.
  EXPECT_EQ(SendWhole(*bob_, std::string(3000, 'r'), 0, Sha256Hex(content)).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(Stat(*bob_, Sha256Hex(content), 3000).complete());
  EXPECT_EQ(soup::testing::ReadWhole(config_.FilePath(Sha256Hex(content))), content);
}

TEST_F(ApiUploadTest, WhatIsMalformedIsRefused) {
  const std::string content(1000, 'a');
  const std::string sha = Sha256Hex(content);
  EXPECT_EQ(SendWhole(*alice_, content, 0, "../../../etc/x").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Send(*alice_, sha, 0, 0, [] { return std::string(1, 'a'); }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(
      Send(*alice_, sha, int64_t{1} << 50, 0, [] { return std::string(1, 'a'); }).error_code(),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
  bool sent = false;
  EXPECT_EQ(Send(*alice_, sha, 10, 0,
                 [&] { return std::exchange(sent, true) ? "" : std::string(11, 'a'); })
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  sent = false;
  EXPECT_EQ(Send(*alice_, sha, 3 << 20, 0,
                 [&] { return std::exchange(sent, true) ? "" : std::string(2 << 20, 'a'); })
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Send(*alice_, sha, 1000, 0, [] { return ""; }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);  // no chunk at all
  EXPECT_FALSE(Exists(sha));
}

TEST_F(ApiUploadTest, OldPartsAreCollectedLiveOnesAreNot) {
  const std::string sha = Sha256Hex("whatever");
  bool sent = false;
  Send(*alice_, sha, 1000, 0,
       [&] { return std::exchange(sent, true) ? "" : std::string(500, 'c'); });
  const int64_t now = absl::ToUnixMillis(absl::Now());
  uploads_->CollectOld(now, 3600);
  EXPECT_EQ(Partials().size(), 1u);
  uploads_->CollectOld(now + 7200 * 1000, 3600);
  EXPECT_TRUE(Partials().empty());
}

TEST_F(ApiUploadTest, WholeFilesWithoutAJobAreCollectedAndCanComeBack) {
  const std::string content = "nobody needs it";
  const std::string sha = Sha256Hex(content);
  const int64_t size = static_cast<int64_t>(content.size());
  ASSERT_TRUE(SendWhole(*alice_, content).ok());
  const int64_t now = absl::ToUnixMillis(absl::Now());
  uploads_->CollectUnused(now, 3600);
  EXPECT_TRUE(uploads_->Stat("alice", sha, size)->complete) << "too young";
  auto record = store_->CreateJob("alice", "", GoodSpec("n", "/base", sha), "/base", 0);
  ASSERT_TRUE(record.ok()) << record.status();
  uploads_->CollectUnused(now + 7200 * 1000, 3600);
  EXPECT_TRUE(uploads_->Stat("alice", sha, size)->complete) << "a job needs it";
  ASSERT_TRUE(
      store_->Transition(record->job.id, JobTrigger::kCancelRequested, soup::v1::USER_REQUEST, "")
          .ok());
  uploads_->CollectUnused(now + 7200 * 1000, 3600);
  EXPECT_FALSE(uploads_->Stat("alice", sha, size)->complete);
  ASSERT_TRUE(SendWhole(*alice_, content).ok());
  EXPECT_TRUE(uploads_->Stat("alice", sha, size)->complete);
}

}  // namespace
}  // namespace soup::daemon
