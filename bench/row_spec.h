// One row of the bench: what is trained, on what memory, for how many steps; and its text form,
// "base=llama-8b batch=8 seq=512 budget=9.9GB". Settings of the command line are the same, as
// flags, and are what rows start from. Plain values; any thread.
#ifndef SOUP_BENCH_ROW_SPEC_H_
#define SOUP_BENCH_ROW_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bench/synthetic_base.h"
#include "engine/plan/job_plan.h"

namespace soup::bench {

struct RowSpec {
  std::string base = "smollm-135m";  // a named shape, or the path of a config.json
  engine::BaseFormat format = engine::BaseFormat::kNf4DoubleQuant;
  WeightValues values = WeightValues::kNormal;  // of a bf16 base
  int32_t batch = 1;                            // sequences a step
  int32_t seq = 512;                            // tokens of each, or of the longest
  int32_t shortest = 0;  // lengths are drawn evenly from here to `seq`; 0: all have `seq`
  engine::Precision precision = engine::Precision::kAuto;  // of activations
  int32_t lora_r = 8;
  std::vector<engine::Module> targets = {engine::Module::kQ, engine::Module::kK, engine::Module::kV,
                                         engine::Module::kO};
  // Arena bytes; the planner places. 0: `placement` as it stands.
  int64_t budget_bytes = 0;
  bool placed = false;  // a setting of `placement` was given
  engine::Placement placement;
  int32_t steps = 10;
  int32_t warmup = 2;  // steps before the first that counts

  std::string ToText() const;  // every setting, as ParseRow reads it
};

struct Setting {
  const char* key;   // in a row
  const char* flag;  // on the command line
  const char* help;
};
absl::Span<const Setting> Settings();

// Errors: InvalidArgument (a key or value that is not known; says what is).
absl::Status ApplySetting(absl::string_view key, absl::string_view value, RowSpec& row);
absl::StatusOr<RowSpec> ParseRow(absl::string_view text, RowSpec defaults);
// Both a budget and a placement, or neither, is an error: one of them says where things lie.
absl::Status CheckRow(const RowSpec& row);

// "9.9GB" (10^9), "3GiB" (2^30), MB, MiB, kB, KiB, B; a fraction is fine. Errors: InvalidArgument.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace soup::bench

#endif  // SOUP_BENCH_ROW_SPEC_H_
