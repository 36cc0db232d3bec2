#include "cache/fingerprint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "absl/synchronization/mutex.h"
#include "cache/base_key.h"
#include "engine/base/clock.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::cache {
namespace {

namespace fs = std::filesystem;
using ::soup::testing::ReadWhole;
using ::soup::testing::TempDir;
using ::soup::testing::TinyModel;
using ::soup::testing::WriteWhole;

class MapMemory final : public DigestMemory {
 public:
  std::optional<std::string> Recall(const engine::FileStamp& stamp) override {
    absl::MutexLock lock(&mu_);
    for (const auto& [known, digest] : known_) {
      if (known == stamp) return digest;
    }
    return std::nullopt;
  }
  void Remember(const engine::FileStamp& stamp, const std::string& digest) override {
    absl::MutexLock lock(&mu_);
    known_.emplace_back(stamp, digest);
  }

 private:
  absl::Mutex mu_;
  std::vector<std::pair<engine::FileStamp, std::string>> known_;
};

Fingerprint Of(const std::string& folder, DigestMemory* memory = nullptr) {
  const auto got = FingerprintCheckpoint(folder, {}, memory, {});
  EXPECT_TRUE(got.ok()) << got.status();
  return got.ok() ? *got : Fingerprint();
}

// Until the files' stamps are old enough to be trusted (fingerprint.cc says why).
void WaitUntilSettled(const std::string& folder) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  MapMemory memory;
  while (Of(folder, &memory).bytes_hashed > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
}

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() : folder_(dir_ / "model") {
    TinyModel model;
    model.shards = 3;
    model.Write(folder_);
  }
  TempDir dir_;
  const std::string folder_;
};

TEST_F(FingerprintTest, CopyHasTheSameAndAnyChangedByteAnother) {
  const Fingerprint original = Of(folder_);
  EXPECT_EQ(original.hex.size(), static_cast<size_t>(kFingerprintChars));
  EXPECT_TRUE(BaseKey::Parse(original.hex + "/nf4").ok());
  fs::copy(folder_, dir_ / "copy");
  EXPECT_EQ(Of(dir_ / "copy").hex, original.hex);
  for (const char* name : {"part-0.safetensors", "part-2.safetensors", "config.json"}) {
    const std::string path = (dir_ / "copy/") + name, whole = ReadWhole(path);
    std::string changed = whole;
    changed.back() ^= 1;
    if (std::string(name) == "config.json") changed = whole + " ";
    WriteWhole(path, changed);
    EXPECT_NE(Of(dir_ / "copy").hex, original.hex) << name;
    WriteWhole(path, whole);
  }
  EXPECT_EQ(Of(dir_ / "copy").hex, original.hex);
}

TEST_F(FingerprintTest, UnchangedFilesAreNotReadAgain) {
  WaitUntilSettled(folder_);
  MapMemory memory;
  const Fingerprint first = Of(folder_, &memory);
  EXPECT_EQ(first.bytes_hashed, first.bytes_total);
  const Fingerprint second = Of(folder_, &memory);
  EXPECT_EQ(second.bytes_hashed, 0);
  EXPECT_EQ(second.hex, first.hex);
}

TEST_F(FingerprintTest, ChangeThatKeepsSizeAndTimesIsSeen) {
  WaitUntilSettled(folder_);
  MapMemory memory;
  const Fingerprint first = Of(folder_, &memory);
  const std::string path = folder_ + "/part-1.safetensors";
  struct stat before;
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  std::string bytes = ReadWhole(path);
  bytes.back() ^= 1;
  WriteWhole(path, bytes);
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_NE(Of(folder_, &memory).hex, first.hex);
}

TEST_F(FingerprintTest, TouchedFileIsReadAgainAndIsTheSame) {
  WaitUntilSettled(folder_);
  MapMemory memory;
  const Fingerprint first = Of(folder_, &memory);
  ASSERT_EQ(utimensat(AT_FDCWD, (folder_ + "/part-1.safetensors").c_str(), nullptr, 0), 0);
  const Fingerprint again = Of(folder_, &memory);
  EXPECT_GT(again.bytes_hashed, 0);
  EXPECT_LT(again.bytes_hashed, again.bytes_total);
  EXPECT_EQ(again.hex, first.hex);
}

TEST_F(FingerprintTest, FileJustWrittenIsNotRemembered) {
  MapMemory memory;
  WriteWhole(folder_ + "/config.json", TinyModel().ConfigJson());
  const Fingerprint first = Of(folder_, &memory);
  EXPECT_EQ(first.bytes_hashed, first.bytes_total);
  EXPECT_GT(Of(folder_, &memory).bytes_hashed, 0);
}

TEST_F(FingerprintTest, CheckUnchangedNamesWhatHasChanged) {
  const Fingerprint first = Of(folder_);
  EXPECT_TRUE(CheckUnchanged(first, {}).ok());
  // Replaced by a copy: other inode.
  fs::copy(folder_ + "/part-1.safetensors", folder_ + "/new");
  fs::rename(folder_ + "/new", folder_ + "/part-1.safetensors");
  const absl::Status status = CheckUnchanged(first, {});
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("part-1.safetensors"));
}

TEST_F(FingerprintTest, ProgressReachesTheTotalAndCancelStops) {
  TaskControl control;
  int64_t last = 0, total = 0;
  control.progress = [&](absl::string_view stage, int64_t done, int64_t of) {
    EXPECT_EQ(stage, "fingerprint");
    EXPECT_GE(done, last);
    last = done;
    total = of;
  };
  const auto got = FingerprintCheckpoint(folder_, {}, nullptr, control);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, got->bytes_total);
  control.cancelled = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(FingerprintCheckpoint(folder_, {}, nullptr, control).status()));
}

}  // namespace
}  // namespace soup::cache
