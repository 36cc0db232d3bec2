// The methods of texts, lists and dicts that a sandboxed template may call (none changes a value).
// Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_METHODS_H_
#define SOUP_ENGINE_DATA_JINJA_METHODS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/call_args.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

// Python's attributes come before a dict's keys: `m.items` is the method even when m has such a
// key.
bool IsMethod(const Value& self, absl::string_view name);
// Errors: InvalidArgument (not supported, arguments, a budget).
absl::StatusOr<Value> CallMethod(const Value& self, const std::string& name, const CallArgs& args,
                                 Budget* budget);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_METHODS_H_
