// Case 25: files far over a message's limit, a client that dies half way, two clients at once, one
// very long row. With a real soupd, whose memory is measured.
#include <signal.h>

#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/subprocess.h"
#include "tests/client/test_files.h"
#include "tests/daemon/harness.h"

namespace soup::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// Peak resident memory of a process.
int64_t PeakBytes(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string key;
    int64_t kib = 0;
    fields >> key >> kib;
    if (key == "VmHWM:") return kib * 1024;
  }
  return -1;
}

// Rows of prompt and completion, `bytes` in all or a little more.
void WriteRows(const std::string& path, int64_t bytes) {
  std::ofstream out(path, std::ios::binary);
  const std::string completion(900, 'x');
  int64_t written = 0;
  for (int i = 0; written < bytes; ++i) {
    const std::string row =
        absl::StrCat("{\"prompt\": \"row ", i, "\", \"completion\": \"", completion, "\"}\n");
    out << row;
    written += static_cast<int64_t>(row.size());
  }
}

class BigUploadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status started = soupd_.Start();
    ASSERT_TRUE(started.ok()) << started << soupd_.log();
    soupd_.WorkerPid();
    options_.environment = {{"HOME", home_.path()},
                            {"PATH", "/usr/bin:/bin"},
                            {"TERM", "xterm"},
                            {"SOUP_ENDPOINT", "unix:" + soupd_.state_dir() + "/soupd.sock"}};
    options_.folder = home_.path();
    WriteWhole(home_ / "job.yaml",
               absl::StrCat("base: {path: ", soupd_.dir(), "/base, format: bf16}\n",
                            "data: {train: big.jsonl, max_length: 64, packing: false}\n",
                            "lora: {r: 4, alpha: 8}\ntraining: {batch_size: 32}\noutput: out\n"));
  }

  std::unique_ptr<Subprocess> Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), absl::StrCat(SOUP_BINARY_DIR, "/bin/soupctl"));
    return std::make_unique<Subprocess>(arguments, options_);
  }
  int Run(const std::vector<std::string>& arguments) {
    return Start(arguments)->Wait(absl::Seconds(120));
  }
  // Names of whole files that soupd holds.
  std::vector<std::string> Held() {
    std::vector<std::string> names = Names(soupd_.state_dir() + "/files");
    names.erase(std::remove(names.begin(), names.end(), "partial"), names.end());
    return names;
  }

  daemon::Harness soupd_;
  testing::TempDir home_;
  Subprocess::Options options_;
};

TEST_F(BigUploadTest, AClientKilledHalfWayLeavesNoFileAndTwoMoreAtOnceLeaveOne) {
  WriteRows(home_ / "big.jsonl", 200 * kMiB);
  const std::string sha256 = HashFile(home_ / "big.jsonl", nullptr)->sha256;
  const int64_t peak_before = PeakBytes(soupd_.soupd_pid());
  ASSERT_GT(peak_before, 0);

  options_.terminal = true;  // for the bar, which tells how far it is
  auto killed = Start({"submit", "job.yaml"});
  ASSERT_TRUE(killed->AwaitOut(" 80.0 MiB of 200 MiB")) << killed->out();
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->Wait(), -SIGKILL);
  options_.terminal = false;
  EXPECT_THAT(Held(), ::testing::IsEmpty()) << "half a file is no file";

  auto first = Start({"submit", "job.yaml", "--name", "first"});
  auto second = Start({"submit", "job.yaml", "--name", "second"});
  EXPECT_EQ(first->Wait(absl::Seconds(120)), 0) << first->err();
  EXPECT_EQ(second->Wait(absl::Seconds(120)), 0) << second->err();
  EXPECT_THAT(Held(), ElementsAre(sha256)) << "one copy";
  EXPECT_EQ(HashFile(soupd_.state_dir() + "/files/" + sha256, nullptr)->sha256, sha256);
#ifndef __SANITIZE_ADDRESS__  // which holds back what was freed
  EXPECT_LT(PeakBytes(soupd_.soupd_pid()) - peak_before, 64 * kMiB);
#endif
  EXPECT_EQ(Run({"cancel", "first", "--wait"}), 0);
  EXPECT_EQ(Run({"cancel", "second", "--wait"}), 0);
}

TEST_F(BigUploadTest, OneRowOfTwelveMebibytesIsRefusedByItsLineAndSize) {
  WriteWhole(home_ / "big.jsonl", absl::StrCat("{\"prompt\": \"p\", \"completion\": \"",
                                               std::string(12 * kMiB, 'a'), "\"}\n"));
  auto submit = Start({"submit", "job.yaml", "--wait"});
  EXPECT_EQ(submit->Wait(absl::Seconds(120)), 3);
  EXPECT_THAT(submit->err(), HasSubstr("big.jsonl line 1 is 12582945 bytes long"));
}

TEST_F(BigUploadTest, FiveMebibytesAreTrained) {
  WriteRows(home_ / "big.jsonl", 5 * kMiB);
  auto submit = Start({"submit", "job.yaml", "--wait", "--set", "training.max_steps=2"});
  EXPECT_EQ(submit->Wait(absl::Seconds(120)), 0) << submit->err() << soupd_.log();
  EXPECT_THAT(Names(home_ / "out"),
              ElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

}  // namespace
}  // namespace soup::client
