#include "engine/train/adapter_state.h"

#include <xxhash.h>

namespace soup::engine {

uint64_t PlanHash(absl::string_view numeric_plan_text) {
  return XXH3_64bits(numeric_plan_text.data(), numeric_plan_text.size());
}

}  // namespace soup::engine
