#include "engine/device/gemm_profile.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using testing::TempDir;
using Entries = GemmProfile::Entries;

TEST(GemmProfile, KeepsWhatIsThereFirst) {
  const TempDir dir;
  const std::string path = dir.path() + "/gemms";
  const GemmProfile a(path, "card A, 13.1");
  ASSERT_TRUE(a.Read().ok());
  EXPECT_TRUE(a.Read()->empty());
  const auto first = a.Merge({{"nt m1", "01"}, {"nt m2", "02"}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, (Entries{{"nt m1", "01"}, {"nt m2", "02"}}));
  // Another process timed m2 too and came later; it must take the first one's choice.
  const auto second = GemmProfile(path, "card A, 13.1").Merge({{"nt m2", "ff"}, {"nt m3", "03"}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, (Entries{{"nt m1", "01"}, {"nt m2", "02"}, {"nt m3", "03"}}));
  EXPECT_EQ(*a.Read(), *second);
}

TEST(GemmProfile, ScopesDoNotMix) {
  const TempDir dir;
  const std::string path = dir.path() + "/gemms";
  const GemmProfile old_library(path, "card, 13.1"), new_library(path, "card, 13.10");
  ASSERT_TRUE(old_library.Merge({{"nt m1", "01"}}).ok());
  EXPECT_TRUE(new_library.Read()->empty());
  ASSERT_TRUE(new_library.Merge({{"nt m1", "02"}}).ok());
  EXPECT_EQ(*old_library.Read(), (Entries{{"nt m1", "01"}}));
  EXPECT_EQ(*new_library.Read(), (Entries{{"nt m1", "02"}}));
}

TEST(GemmProfile, BrokenFilesAreTold) {
  const TempDir dir;
  const std::string path = dir.path() + "/gemms";
  for (const char* text : {"something else\n", "soup gemm algorithms 1\nscope|key\n",
                           "soup gemm algorithms 1\nscope|key|\n"}) {
    ASSERT_TRUE(RealFileSystem().WriteFileSynced(path, text).ok());
    const auto read = GemmProfile(path, "scope").Read();
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_NE(std::string(read.status().message()).find(path), std::string::npos);
    EXPECT_EQ(GemmProfile(path, "scope").Merge({{"a", "b"}}).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST(GemmProfile, ManyWritersLoseNothing) {
  const TempDir dir;
  const std::string path = dir.path() + "/gemms";
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&path, w] {
      for (int i = 0; i < 8; ++i) {
        const auto merged = GemmProfile(path, "scope")
                                .Merge({{absl::StrCat("own ", w, " ", i), "1"},
                                        {absl::StrCat("shared ", i), absl::StrCat(w + 1)}});
        EXPECT_TRUE(merged.ok()) << merged.status();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(GemmProfile(path, "scope").Read()->size(), 4u * 8u + 8u);
}

TEST(GemmProfile, WithoutAPathNothingIsKept) {
  const GemmProfile none("", "scope");
  EXPECT_EQ(*none.Merge({{"a", "1"}}), (Entries{{"a", "1"}}));
  EXPECT_TRUE(none.Read()->empty());
}

}  // namespace
}  // namespace soup::engine
