// Python's operations on template values. Errors: InvalidArgument (types that do not go together,
// integers beyond 64 bits, a budget). Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_VALUE_OPS_H_
#define SOUP_ENGINE_DATA_JINJA_VALUE_OPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/budget.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

bool Truth(const Value& v);
absl::StatusOr<bool> Equal(const Value& a, const Value& b, Budget* budget);
// < 0, 0, > 0. Numbers with numbers, texts with texts, lists with lists.
absl::StatusOr<int> Order(const Value& a, const Value& b, Budget* budget);
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget* budget);
absl::StatusOr<int64_t> Length(const Value& v, Budget* budget);
// What a loop goes over: items, keys, characters; nothing for an undefined value.
absl::StatusOr<std::vector<Value>> Elements(const Value& v, Budget* budget);
// v[key]: undefined when it is not there.
absl::StatusOr<Value> Item(const Value& v, const Value& key, Budget* budget);
// v[start:stop:step]; none where a part is left out.
absl::StatusOr<Value> Slice(const Value& v, const Value& start, const Value& stop,
                            const Value& step, Budget* budget);
// + - * / // % **
absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a, const Value& b,
                                 Budget* budget);
absl::StatusOr<Value> Negate(const Value& v);

bool IsHashable(const Value& v);  // may be a key in Python

absl::Status UndefinedError(const Value& v);  // "'x' is undefined"
absl::Status TypeError(absl::string_view what, const Value& v);

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_VALUE_OPS_H_
