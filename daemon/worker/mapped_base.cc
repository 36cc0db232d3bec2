#include "daemon/worker/mapped_base.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::worker {

std::byte* MapSegment(int fd, int64_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t size = static_cast<size_t>(bytes);
  const size_t reserved = size + kHugePage;
  void* const range =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(range);
  const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  std::byte* const aligned = begin + ((at + kHugePage - 1) / kHugePage * kHugePage - at);
  if (::mmap(aligned, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(range, reserved);
    errno = error;
    return nullptr;
  }
  // What is before and behind; hugetlb mappings end at whole pages.
  std::byte* const end = aligned + (size + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) ::munmap(begin, static_cast<size_t>(aligned - begin));
  if (begin + reserved > end) ::munmap(end, static_cast<size_t>(begin + reserved - end));
  return aligned;
}

absl::StatusOr<std::unique_ptr<MappedBase>> MappedBase::Map(const soup::worker::v1::LoadBase& load,
                                                            std::vector<engine::UniqueFd> fds) {
  if (static_cast<int>(fds.size()) != load.segment_bytes_size())
    return absl::InvalidArgumentError(absl::StrCat(load.base_key(), ": ", load.segment_bytes_size(),
                                                   " segments were announced, ", fds.size(),
                                                   " descriptors came"));
  std::unique_ptr<MappedBase> mapped(new MappedBase());
  SOUP_ASSIGN_OR_RETURN(mapped->base_.spec, engine::ParseModelSpec(load.config_json()));
  SOUP_ASSIGN_OR_RETURN(mapped->base_.format, engine::ParseBaseFormat(load.format()));
  for (size_t i = 0; i < fds.size(); ++i) {
    const int64_t bytes = load.segment_bytes(static_cast<int>(i));
    struct stat st {};
    // A segment that is shorter than said would be a SIGBUS in the middle of a pass.
    if (::fstat(fds[i].get(), &st) != 0 || bytes <= 0 || st.st_size < bytes)
      return absl::InvalidArgumentError(absl::StrCat(load.base_key(), ": segment ", i, " has ",
                                                     st.st_size, " bytes, not ", bytes));
    std::byte* data = MapSegment(fds[i].get(), bytes);
    if (data == nullptr)
      return absl::InternalError(absl::StrCat(load.base_key(), ": segment ", i,
                                              " cannot be mapped: ", std::strerror(errno)));
    mapped->segments_.push_back({data, bytes});
  }
  for (const soup::worker::v1::SlabRef& slab : load.slabs()) {
    if (slab.segment() < 0 || slab.segment() >= static_cast<int>(mapped->segments_.size()) ||
        slab.offset() < 0 || slab.bytes() < 0 ||
        slab.offset() > mapped->segments_[slab.segment()].bytes - slab.bytes())
      return absl::InvalidArgumentError(absl::StrCat(
          load.base_key(), ": slab ", mapped->base_.slabs.size(), " does not lie in its segment"));
    mapped->base_.slabs.emplace_back(mapped->segments_[slab.segment()].data + slab.offset(),
                                     static_cast<size_t>(slab.bytes()));
  }
  SOUP_RETURN_IF_ERROR(engine::CheckModelBase(mapped->base_));
  return mapped;
}

MappedBase::~MappedBase() {
  for (const Segment& s : segments_) ::munmap(s.data, static_cast<size_t>(s.bytes));
}

std::vector<int32_t> MappedBase::BadSlabs(const soup::worker::v1::LoadBase& load) const {
  std::vector<int32_t> bad;
  for (size_t i = 0; i < base_.slabs.size(); ++i) {
    if (XXH3_64bits(base_.slabs[i].data(), base_.slabs[i].size()) !=
        load.slabs(static_cast<int>(i)).xxh3())
      bad.push_back(static_cast<int32_t>(i));
  }
  return bad;
}

}  // namespace soup::worker
