// Values as Python writes them: str(), repr(), json.dumps(), strftime(). Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_PYTHON_FORMAT_H_
#define SOUP_ENGINE_DATA_JINJA_PYTHON_FORMAT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

// Errors of all: InvalidArgument (a value that has no such form, a budget).

absl::StatusOr<std::string> ToText(const Value& value, Budget* budget);  // str()
absl::StatusOr<std::string> ToRepr(const Value& value, Budget* budget);
std::string FloatText(double value);  // repr(float)

struct JsonOptions {
  std::optional<std::string> indent;  // of one level; without: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonOptions& options, Budget* budget);

// strftime of a local time.
absl::StatusOr<std::string> FormatTime(absl::string_view format, int64_t unix_seconds);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_PYTHON_FORMAT_H_
