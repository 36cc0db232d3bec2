// ModelBase: a frozen base as the engine sees it: what it is, how it is stored, and where its slabs
// lie in host memory. Borrows the slabs (the mapped store, or a test's vectors): they must outlive
// every trainer made from it and must not change. Plain value; any thread.
#ifndef SOUP_ENGINE_TRAIN_MODEL_BASE_H_
#define SOUP_ENGINE_TRAIN_MODEL_BASE_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

struct ModelBase {
  ModelSpec spec;
  BaseFormat format = BaseFormat::kBf16;
  // Slabs 0 .. layers-1, then the globals slab (engine/model/layer_layout.h).
  std::vector<absl::Span<const std::byte>> slabs;

  absl::Span<const std::byte> globals() const { return slabs.back(); }
};

// Errors: InvalidArgument (a slab missing or shorter than its layout; names it).
absl::Status CheckModelBase(const ModelBase& base);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_MODEL_BASE_H_
