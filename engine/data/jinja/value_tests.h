// The tests of `x is name`. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_VALUE_TESTS_H_
#define SOUP_ENGINE_DATA_JINJA_VALUE_TESTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/call_args.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

bool IsTest(absl::string_view name);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value, const CallArgs& args,
                               Budget* budget);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_VALUE_TESTS_H_
