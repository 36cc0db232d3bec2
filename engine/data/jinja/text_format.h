// Python's two ways to put values into a text: "%s and %d" % (a, b) and "{} and {1:>8}".format(a,
// b). Pure; any thread. Errors: InvalidArgument (as Python raises, and what is not supported, by
// name).
#ifndef SOUP_ENGINE_DATA_JINJA_TEXT_FORMAT_H_
#define SOUP_ENGINE_DATA_JINJA_TEXT_FORMAT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/call_args.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

// `args`: a tuple of values, an object for %(name)s, or one value.
absl::StatusOr<std::string> PercentFormat(absl::string_view format, const Value& args,
                                          Budget* budget);
absl::StatusOr<std::string> BraceFormat(absl::string_view format, const CallArgs& args,
                                        Budget* budget);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_TEXT_FORMAT_H_
