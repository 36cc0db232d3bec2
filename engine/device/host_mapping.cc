#include "engine/device/host_mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/available_memory.h"

namespace soup::engine {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr unsigned kMostThreads = 16;

// The first touch of a page is what takes time, and the kernel takes it page by page a thread.
void Populate(std::byte* data, int64_t bytes) {
  const int64_t pages = (bytes + kHugePage - 1) / kHugePage;
  const int64_t threads =
      std::min<int64_t>(pages, std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads));
  std::vector<std::thread> workers;
  for (int64_t i = 0; i < threads; ++i) {
    const int64_t begin = pages * i / threads * kHugePage;
    const int64_t end = std::min(bytes, pages * (i + 1) / threads * kHugePage);
    workers.emplace_back([data, begin, end] {
      for (int64_t at = begin; at < end; at += 4096) data[at] = std::byte{0};
    });
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

absl::StatusOr<HostMapping> HostMapping::Create(int64_t bytes, bool populate) {
  if (bytes < 0) return absl::InvalidArgumentError("host memory of negative size");
  // Anonymous memory of any size is granted, and the out-of-memory killer comes later.
  const absl::StatusOr<AvailableMemory> available = ReadAvailableMemory("");
  if (available.ok() && bytes > available->bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        bytes, " bytes of host memory are needed and ", available->bytes, " are available (",
        available->bound_by, "): end other programs, or keep less in host memory"));
  }
  HostMapping mapping;
  const int64_t rounded =
      std::max<int64_t>(bytes + kHugePage - 1, kHugePage) / kHugePage * kHugePage;
  void* data = mmap(nullptr, static_cast<size_t>(rounded), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no host memory of ", bytes, " bytes: ", std::strerror(errno)));
  }
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.mapped_ = rounded;
  madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);  // Advice only.
  if (populate) Populate(mapping.data_, bytes);
  return mapping;
}

HostMapping::~HostMapping() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_));
}

}  // namespace soup::engine
