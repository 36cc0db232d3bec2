#include "engine/train/model_base.h"

#include "absl/strings/str_cat.h"
#include "engine/model/slab_contents.h"

namespace soup::engine {

absl::Status CheckModelBase(const ModelBase& base) {
  const int64_t slabs = SlabCount(base.spec);
  if (static_cast<int64_t>(base.slabs.size()) != slabs) {
    return absl::InvalidArgumentError(
        absl::StrCat("the base has ", base.slabs.size(), " slabs and its model needs ", slabs));
  }
  for (int64_t i = 0; i < slabs; ++i) {
    const int64_t bytes = SlabBytes(base.spec, base.format, i);
    if (static_cast<int64_t>(base.slabs[i].size()) < bytes) {
      return absl::InvalidArgumentError(absl::StrCat("slab ", i, " of the base has ",
                                                     base.slabs[i].size(),
                                                     " bytes and its layout needs ", bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
