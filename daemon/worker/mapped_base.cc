#include "daemon/worker/mapped_base.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::worker {

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
    void* data =
        ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, fds[i].get(), 0);
    if (data == MAP_FAILED)
      return absl::InternalError(absl::StrCat(load.base_key(), ": segment ", i,
                                              " cannot be mapped: ", std::strerror(errno)));
    mapped->segments_.push_back({static_cast<std::byte*>(data), bytes});
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
