#include "cache/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cache/memory_segment.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::cache {
namespace {

using ::soup::testing::TempDir;
using ::soup::testing::WriteWhole;
using ::testing::HasSubstr;

// A made-up host: /proc and /sys under a folder.
class HostTree {
 public:
  HostTree() { Put("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:   1000 kB\n"); }
  void Put(const std::string& path, const std::string& text) {
    const std::string full = dir_.path() + path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    WriteWhole(full, text);
  }
  AvailableMemory Read() {
    const auto got = ReadAvailableMemory(dir_.path());
    EXPECT_TRUE(got.ok()) << got.status();
    return got.ok() ? *got : AvailableMemory();
  }

 private:
  TempDir dir_;
};

constexpr char kMounts1[] =
    "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
constexpr char kMounts2[] = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

TEST(AvailableMemory, MemAvailableWithoutCgroups) {
  HostTree host;
  EXPECT_EQ(host.Read().bytes, 1000 * 1024);
  EXPECT_EQ(host.Read().total_bytes, 2000 * 1024);
  EXPECT_EQ(host.Read().bound_by, "MemAvailable");
}

TEST(AvailableMemory, Version2TightestGroupOnTheWayUp) {
  HostTree host;
  host.Put("/proc/self/mountinfo", kMounts2);
  host.Put("/proc/self/cgroup", "0::/a/b\n");
  host.Put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  host.Put("/sys/fs/cgroup/a/b/memory.current", "5000\n");
  EXPECT_EQ(host.Read().bound_by, "MemAvailable");
  host.Put("/sys/fs/cgroup/a/memory.max", "100000\n");
  host.Put("/sys/fs/cgroup/a/memory.current", "60000\n");
  EXPECT_EQ(host.Read().bytes, 40000);
  EXPECT_EQ(host.Read().total_bytes, 100000) << "whatever is used of it";
  EXPECT_THAT(host.Read().bound_by, HasSubstr("cgroup /a (memory.max 100000)"));
  host.Put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 9000\nactive_file 1000\n");
  EXPECT_EQ(host.Read().bytes, 50000) << "page cache can be given back";
  host.Put("/sys/fs/cgroup/a/b/memory.high", "20000\n");
  EXPECT_EQ(host.Read().bytes, 15000);
  host.Put("/sys/fs/cgroup/a/b/memory.max", "4000\n");
  EXPECT_EQ(host.Read().bytes, 0) << "over its limit";
}

TEST(AvailableMemory, Version1) {
  HostTree host;
  host.Put("/proc/self/mountinfo", kMounts1);
  host.Put("/proc/self/cgroup", "4:memory:/x\n3:cpu:/y\n0::/\n");
  host.Put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  host.Put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(host.Read().bound_by, "MemAvailable");
  EXPECT_EQ(host.Read().total_bytes, 2000 * 1024) << "no limit that could bind";
  host.Put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8000\n");
  EXPECT_EQ(host.Read().bytes, 3000);
  EXPECT_EQ(host.Read().total_bytes, 8000);
}

TEST(AvailableMemory, ContainerThatSeesItsGroupAsTheMountsRoot) {
  HostTree host;
  host.Put("/proc/self/mountinfo",
           "30 25 0:26 /docker/c /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  host.Put("/proc/self/cgroup", "4:memory:/docker/c\n");
  host.Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");
  host.Put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(host.Read().bytes, 7000);
}

TEST(AvailableMemory, ThisHostAnswers) {
  const auto got = RealHostMemory().Available();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_GT(got->bytes, 0);
}

TEST(EvidentTier, ReadsWhatTheKernelSays) {
  const auto smaps = [](int page_kb, int pmd_kb) {
    return absl::StrCat("7f0000000000-7f0000400000 rw-s 00000000 00:01 9 /memfd:soup (deleted)\n",
                        "Size:               4096 kB\nKernelPageSize:    ", page_kb,
                        " kB\nRss:                4096 kB\nShmemPmdMapped:    ", pmd_kb,
                        " kB\nVmFlags: rd wr\n",
                        "7f0000400000-7f0000500000 rw-p 00000000 00:00 0 [heap]\n"
                        "KernelPageSize:       4 kB\nShmemPmdMapped:        0 kB\n");
  };
  const std::vector<MappedRange> range = {{0x7f0000000000, 4 << 20}};
  EXPECT_EQ(EvidentTier(smaps(4, 0), range), MemoryTier::kPlain);
  EXPECT_EQ(EvidentTier(smaps(4, 2048), range), MemoryTier::kPlain) << "half is not nearly all";
  EXPECT_EQ(EvidentTier(smaps(4, 4096), range), MemoryTier::kHuge);
  EXPECT_EQ(EvidentTier(smaps(2048, 0), range), MemoryTier::kHugetlb);
  EXPECT_EQ(EvidentTier("", range), MemoryTier::kPlain);
}

}  // namespace
}  // namespace soup::cache
