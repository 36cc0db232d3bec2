// The filters of `x | name`. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_FILTERS_H_
#define SOUP_ENGINE_DATA_JINJA_FILTERS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/call_args.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

bool IsFilter(absl::string_view name);
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value, const CallArgs& args,
                                  Budget* budget);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_FILTERS_H_
