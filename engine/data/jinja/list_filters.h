// The filters that go over a list, a text or an object. Used by filters.cc alone. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_LIST_FILTERS_H_
#define SOUP_ENGINE_DATA_JINJA_LIST_FILTERS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/jinja/call_args.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

bool IsListFilter(absl::string_view name);
absl::StatusOr<Value> ApplyListFilter(absl::string_view name, const Value& value,
                                      const CallArgs& args, Budget* budget);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_LIST_FILTERS_H_
