// The arguments of a call, and what a function makes of them. Plain values; not thread-safe.
#ifndef SOUP_ENGINE_DATA_JINJA_CALL_ARGS_H_
#define SOUP_ENGINE_DATA_JINJA_CALL_ARGS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by the names of a function's parameters, in order.
class BoundArgs {
 public:
  // Errors: InvalidArgument (too many, unknown or told twice), naming `function`.
  static absl::StatusOr<BoundArgs> Bind(absl::string_view function,
                                        std::initializer_list<absl::string_view> parameters,
                                        const CallArgs& args);

  const Value* Find(absl::string_view parameter) const;  // null: not given
  // Errors: InvalidArgument: missing or of another kind.
  absl::StatusOr<Value> Required(absl::string_view parameter) const;
  absl::StatusOr<std::string> Text(absl::string_view parameter) const;
  absl::StatusOr<std::string> TextOr(absl::string_view parameter, std::string otherwise) const;
  absl::StatusOr<int64_t> IntOr(absl::string_view parameter, int64_t otherwise) const;
  bool FlagOr(absl::string_view parameter, bool otherwise) const;  // by truth

 private:
  std::string function_;
  std::vector<std::pair<std::string, Value>> values_;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_CALL_ARGS_H_
