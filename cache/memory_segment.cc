#include "cache/memory_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cache/shortage.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace soup::cache {
namespace {

constexpr int64_t kSmallPageBytes = 4096;
// Part of the range that must be in huge pages for the tier to be called that.
constexpr double kNearlyAll = 0.95;

}  // namespace

MemorySegment::MemorySegment(MemorySegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

MemorySegment& MemorySegment::operator=(MemorySegment&& other) noexcept {
  if (this != &other) {
    Unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MemorySegment::~MemorySegment() { Unmap(); }

void MemorySegment::Unmap() {
  if (data_ != nullptr) munmap(std::exchange(data_, nullptr), static_cast<size_t>(bytes_));
}

absl::StatusOr<MemorySegment> MemorySegment::Map(engine::UniqueFd fd, int64_t bytes,
                                                 int protection) {
  MemorySegment segment;
  void* p = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED, fd.get(), 0);
  if (p == MAP_FAILED) {
    return MemoryShortage(
        absl::StrCat("cannot map a store segment of ", bytes, " bytes (errno ", errno, ")"),
        /*bases_in_use=*/false);
  }
  segment.fd_ = std::move(fd);
  segment.data_ = static_cast<uint8_t*>(p);
  segment.bytes_ = bytes;
  return segment;
}

absl::StatusOr<MemorySegment> MemorySegment::MapWritable(engine::UniqueFd fd, int64_t bytes) {
  return Map(std::move(fd), bytes, PROT_READ | PROT_WRITE);
}

absl::StatusOr<MemorySegment> MemorySegment::MapReadOnly(engine::UniqueFd fd, int64_t bytes) {
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return engine::ErrnoStatus(errno, "stat", "a store segment");
  if (st.st_size != bytes) {
    return absl::DataLossError(
        absl::StrCat("a store segment has ", st.st_size, " bytes, not ", bytes));
  }
  return Map(std::move(fd), bytes, PROT_READ);
}

void MemorySegment::AdviseHuge() {
  (void)madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
}

absl::Status MemorySegment::Prefault(int64_t offset, int64_t bytes) {
  if (madvise(data_ + offset, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL) {
    return MemoryShortage(absl::StrCat("the kernel has no memory for ", bytes,
                                       " bytes of a store segment (errno ", errno, ")"),
                          /*bases_in_use=*/false);
  }
  // An older kernel: touch every page.
  for (int64_t at = offset; at < offset + bytes; at += kSmallPageBytes) {
    *static_cast<volatile uint8_t*>(data_ + at) = 0;
  }
  return absl::OkStatus();
}

absl::Status MemorySegment::Seal(bool seal_writes) {
  if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return engine::ErrnoStatus(errno, "seal", "a store segment");
  }
  if (!seal_writes) return absl::OkStatus();
  // A kernel without this seal leaves protection to the mappings, which are read-only.
  (void)fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (mprotect(data_, static_cast<size_t>(bytes_), PROT_READ) != 0) {
    return engine::ErrnoStatus(errno, "protect", "a store segment");
  }
  return absl::OkStatus();
}

MemoryTier EvidentTier(const std::string& smaps, const std::vector<MappedRange>& ranges) {
  int64_t total = 0, hugetlb = 0, huge = 0;
  for (const MappedRange& range : ranges) total += range.bytes;
  bool inside = false;
  int64_t size = 0;
  for (absl::string_view line : absl::StrSplit(smaps, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    if (!absl::EndsWith(words[0], ":")) {  // begin-end permissions ...: a mapping's first line
      const std::vector<absl::string_view> ends = absl::StrSplit(words[0], '-');
      uint64_t begin = 0, end = 0;
      inside = ends.size() == 2 && absl::SimpleHexAtoi(ends[0], &begin) &&
               absl::SimpleHexAtoi(ends[1], &end) &&
               std::any_of(ranges.begin(), ranges.end(), [&](const MappedRange& r) {
                 return begin >= r.begin && end <= r.begin + static_cast<uint64_t>(r.bytes);
               });
      size = inside ? static_cast<int64_t>(end - begin) : 0;
      continue;
    }
    int64_t kilobytes = 0;
    if (!inside || words.size() < 2 || !absl::SimpleAtoi(words[1], &kilobytes)) continue;
    if (words[0] == "KernelPageSize:" && kilobytes * 1024 >= kHugePageBytes) hugetlb += size;
    if (words[0] == "ShmemPmdMapped:") huge += kilobytes * 1024;
  }
  if (total == 0) return MemoryTier::kPlain;
  if (hugetlb == total) return MemoryTier::kHugetlb;
  if (static_cast<double>(huge) >= kNearlyAll * static_cast<double>(total))
    return MemoryTier::kHuge;
  return MemoryTier::kPlain;
}

}  // namespace soup::cache
