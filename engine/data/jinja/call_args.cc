#include "engine/data/jinja/call_args.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/value_ops.h"

namespace soup::engine::jinja {

absl::StatusOr<BoundArgs> BoundArgs::Bind(absl::string_view function,
                                          std::initializer_list<absl::string_view> parameters,
                                          const CallArgs& args) {
  BoundArgs out;
  out.function_ = std::string(function);
  if (args.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", function, "' takes at most ",
                                                   parameters.size(), " arguments, ",
                                                   args.positional.size(), " are given"));
  }
  for (size_t i = 0; i < args.positional.size(); ++i)
    out.values_.emplace_back(std::string(*(parameters.begin() + i)), args.positional[i]);
  for (const auto& [name, value] : args.named) {
    if (std::find(parameters.begin(), parameters.end(), absl::string_view(name)) ==
        parameters.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", function, "' has no parameter '", name, "' that is supported"));
    }
    if (out.Find(name) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "' of '", function, "' is given twice"));
    }
    out.values_.emplace_back(name, value);
  }
  return out;
}

const Value* BoundArgs::Find(absl::string_view parameter) const {
  for (const auto& [name, value] : values_)
    if (absl::string_view(name) == parameter) return &value;
  return nullptr;
}

absl::StatusOr<Value> BoundArgs::Required(absl::string_view parameter) const {
  const Value* value = Find(parameter);
  if (value != nullptr) return *value;
  return absl::InvalidArgumentError(
      absl::StrCat("'", function_, "' needs its argument '", parameter, "'"));
}

absl::StatusOr<std::string> BoundArgs::Text(absl::string_view parameter) const {
  SOUP_ASSIGN_OR_RETURN(const Value value, Required(parameter));
  if (value.is_string()) return value.AsString();
  return TypeError(absl::StrCat("argument '", parameter, "' of '", function_, "'"), value);
}

absl::StatusOr<std::string> BoundArgs::TextOr(absl::string_view parameter,
                                              std::string otherwise) const {
  const Value* value = Find(parameter);
  if (value == nullptr || value->is_none()) return otherwise;
  return Text(parameter);
}

absl::StatusOr<int64_t> BoundArgs::IntOr(absl::string_view parameter, int64_t otherwise) const {
  const Value* value = Find(parameter);
  if (value == nullptr || value->is_none()) return otherwise;
  if (value->is_int()) return value->AsInt();
  if (value->is_bool()) return static_cast<int64_t>(value->AsBool());
  return TypeError(absl::StrCat("argument '", parameter, "' of '", function_, "'"), *value);
}

bool BoundArgs::FlagOr(absl::string_view parameter, bool otherwise) const {
  const Value* value = Find(parameter);
  return value == nullptr ? otherwise : Truth(*value);
}

}  // namespace soup::engine::jinja
