#include "cache/host_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"

namespace soup::cache {
namespace {

class KernelMemory final : public HostMemory {
 public:
  absl::StatusOr<AvailableMemory> Available() override { return ReadAvailableMemory(""); }

  absl::StatusOr<engine::UniqueFd> CreateSegment(const std::string& name, int64_t bytes,
                                                 MemoryTier tier) override {
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (tier == MemoryTier::kHugetlb) flags |= MFD_HUGETLB | MFD_HUGE_2MB;
    engine::UniqueFd fd(memfd_create(name.c_str(), flags));
    if (!fd.valid()) return engine::ErrnoStatus(errno, "memfd_create", name, bytes);
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
      return engine::ErrnoStatus(errno, "size memfd", name, bytes);
    }
    // Takes the pages now: without them a later touch would be a SIGBUS.
    if (tier == MemoryTier::kHugetlb && fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("hugetlb pages for ", bytes, " bytes"));
    }
    return fd;
  }
};

}  // namespace

const char* MemoryTierName(MemoryTier tier) {
  switch (tier) {
    case MemoryTier::kHugetlb:
      return "hugetlb";
    case MemoryTier::kHuge:
      return "huge";
    case MemoryTier::kPlain:
      return "plain";
    case MemoryTier::kPageable:
      return "pageable";
  }
  return "?";
}

HostMemory& RealHostMemory() {
  static KernelMemory* memory = new KernelMemory;
  return *memory;
}

}  // namespace soup::cache
