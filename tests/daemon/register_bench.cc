// How long a worker takes to pin a store that soupd holds, by tier of its pages: the time between a
// base's turn and its first copy. An 8B NF4 store is 5.6 GB, in 33 slabs.
//
//   register_bench [GIGABYTES [DEVICE]]
//
// As in the product, one process holds the memory (filled with noise, by every core) and another,
// new one maps and pins it, for each tier that can be had: hugetlb needs `sysctl vm.nr_hugepages`,
// huge needs `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/host_memory.h"
#include "cache/memory_segment.h"
#include "daemon/worker/mapped_base.h"
#include "engine/base/file_system.h"
#include "engine/device/cuda_backend.h"

extern char** environ;

namespace soup {
namespace {

constexpr int64_t kSlabs = 33;

// Fills with xorshift noise: pages of zeros may be shared, or compressed.
void Fill(cache::MemorySegment& segment) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      const int64_t words = segment.bytes() / 8;
      uint64_t x = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(t + 1);
      auto* data = reinterpret_cast<uint64_t*>(segment.data());
      for (int64_t i = words * t / threads; i < words * (t + 1) / threads; ++i) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        data[i] = x;
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
}

int Child(int fd, int64_t bytes, int device, const char* tier) {
  auto cuda = engine::MakeCudaBackend({.device = device});
  if (!cuda.ok()) {
    std::fprintf(stderr, "%s\n", std::string(cuda.status().message()).c_str());
    return 1;
  }
  const absl::Time start = absl::Now();
  const std::byte* data = worker::MapSegment(fd, bytes);
  if (data == nullptr) return 1;
  const int64_t slab = bytes / kSlabs / cache::kHugePageBytes * cache::kHugePageBytes;
  for (int64_t i = 0; i < kSlabs; ++i) cuda->backend->RegisterHostMemory(data + i * slab, slab);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  auto arena = cuda->backend->CreateArena(slab);
  engine::ArenaLayout layout;
  layout.bytes = slab;
  layout.buffers.push_back({"slab", "slab", 0, slab, 0, 0});
  if (!arena.ok() || !(*arena)->Bind(layout).ok()) return 1;
  auto target = (*arena)->Take("slab");
  if (!target.ok()) return 1;
  const double busy = cuda->backend->counters().copy_busy_seconds;
  for (int64_t i = 0; i < kSlabs; ++i) {
    if (!cuda->backend
             ->CopyToDeviceAsync(target->data(), data + i * slab, slab,
                                 cuda->backend->copy_stream())
             .ok())
      return 1;
  }
  if (!cuda->backend->Synchronize(absl::Minutes(1)).ok()) return 1;
  const engine::BackendCounters counters = cuda->backend->counters();
  std::printf("%-8s %6.2f GB  mapped and pinned in %6.3f s  copied at %5.1f GB/s%s\n", tier,
              static_cast<double>(slab * kSlabs) * 1e-9, seconds,
              static_cast<double>(slab * kSlabs) * 1e-9 / (counters.copy_busy_seconds - busy),
              counters.pageable_bytes > 0 ? "  (NOT pinned)" : "");
  return 0;
}

int Parent(const char* self, int64_t bytes, int device) {
  for (const cache::MemoryTier asked :
       {cache::MemoryTier::kHugetlb, cache::MemoryTier::kHuge, cache::MemoryTier::kPlain}) {
    auto fd = cache::RealHostMemory().CreateSegment(
        "register_bench", bytes,
        asked == cache::MemoryTier::kHuge ? cache::MemoryTier::kPlain : asked);
    if (!fd.ok()) {
      std::printf("%-8s cannot be had: %s\n", cache::MemoryTierName(asked),
                  std::string(fd.status().message()).c_str());
      continue;
    }
    const int number = fd->get();
    auto segment = cache::MemorySegment::MapWritable(*std::move(fd), bytes);
    if (!segment.ok()) return 1;
    if (asked == cache::MemoryTier::kHuge) segment->AdviseHuge();
    Fill(*segment);
    const auto smaps = engine::RealFileSystem().ReadFile("/proc/self/smaps");
    const cache::MemoryTier tier = cache::EvidentTier(
        smaps.value_or(""), {{reinterpret_cast<uint64_t>(segment->data()), bytes}});
    if (tier != asked) {
      std::printf("%-8s asked for, %s had\n", cache::MemoryTierName(asked),
                  cache::MemoryTierName(tier));
    }
    ::fcntl(number, F_SETFD, 0);  // for the child
    std::vector<std::string> args = {self,
                                     "--child",
                                     absl::StrCat(number),
                                     absl::StrCat(bytes),
                                     absl::StrCat(device),
                                     cache::MemoryTierName(tier)};
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    std::fflush(stdout);
    pid_t pid = 0;
    int status = 0;
    if (::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) != 0 ||
        ::waitpid(pid, &status, 0) != pid || status != 0) {
      std::fprintf(stderr, "the pinning process failed\n");
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace soup

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--child") == 0) {
    return soup::Child(std::atoi(argv[2]), std::atoll(argv[3]), std::atoi(argv[4]), argv[5]);
  }
  const double gigabytes = argc > 1 ? std::atof(argv[1]) : 5.6;
  const int64_t page = soup::cache::kHugePageBytes;
  const int64_t bytes =
      (static_cast<int64_t>(gigabytes * 1e9) + soup::kSlabs * page - 1) / page * page;
  return soup::Parent(argv[0], bytes, argc > 2 ? std::atoi(argv[2]) : 0);
}
