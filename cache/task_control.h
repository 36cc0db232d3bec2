// What a long task of the cache is given by its caller: when to stop, whom to tell, how many
// threads to use. Both functions are called from several threads, one call at a time, and must not
// block.
#ifndef SOUP_CACHE_TASK_CONTROL_H_
#define SOUP_CACHE_TASK_CONTROL_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace soup::cache {

struct TaskControl {
  // True: stop soon (within a second) with Cancelled. Empty: never.
  std::function<bool()> cancelled;
  // Bytes of the stage: "fingerprint", "import", "load". `done` never goes back within a stage.
  std::function<void(absl::string_view stage, int64_t done, int64_t total)> progress;
  int threads = 0;  // 0: every core

  absl::Status CheckCancelled() const {
    if (cancelled && cancelled()) return absl::CancelledError("cancelled");
    return absl::OkStatus();
  }
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_TASK_CONTROL_H_
