// What one rendering may use. Every loop over a value, every call and every byte made is counted,
// so a template ends, whatever it says. Not thread-safe.
#ifndef SOUP_ENGINE_DATA_JINJA_BUDGET_H_
#define SOUP_ENGINE_DATA_JINJA_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace soup::engine::jinja {

class Budget {
 public:
  Budget(int64_t steps, int64_t bytes)
      : steps_(steps), bytes_(bytes), steps_left_(steps), bytes_left_(bytes) {}

  absl::Status Steps(int64_t n) {
    steps_left_ -= n;
    if (steps_left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the template takes more than ", steps_, " steps for one record"));
  }
  // Bytes of texts and lists that are made, whether they are kept or not.
  absl::Status Bytes(int64_t n) {
    bytes_left_ -= n;
    if (bytes_left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the template makes more than ", bytes_, " bytes for one record"));
  }

 private:
  int64_t steps_, bytes_;
  int64_t steps_left_, bytes_left_;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_BUDGET_H_
