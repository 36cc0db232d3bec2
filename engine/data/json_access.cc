#include "engine/data/json_access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/lfs_pointer.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

const nlohmann::json& NullJson() {
  static const nlohmann::json* const null = new nlohmann::json(nullptr);
  return *null;
}

constexpr size_t kMaxDepth = 64;

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonDocument(absl::string_view text, absl::string_view file) {
  bool too_deep = false;
  try {
    const auto guard = [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      too_deep |= static_cast<size_t>(depth) > kMaxDepth;
      return !too_deep;
    };
    nlohmann::json out = nlohmann::json::parse(text.begin(), text.end(), guard);
    if (too_deep) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": values are nested deeper than ", kMaxDepth));
    }
    return out;
  } catch (const nlohmann::json::parse_error& e) {
    const size_t at = std::min(e.byte > 0 ? e.byte - 1 : 0, text.size());
    const absl::string_view before = text.substr(0, at);
    const size_t newline = before.rfind('\n');
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": not valid JSON at line ", 1 + std::count(before.begin(), before.end(), '\n'),
        " column ", newline == absl::string_view::npos ? at + 1 : at - newline,
        LfsPointerHint(text)));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be read as JSON: ", e.what()));
  }
}

absl::Status JsonNode::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

JsonNode JsonNode::Member(absl::string_view key) const {
  std::string path = absl::StrCat(path_, "/", key);
  if (json_->is_object()) {
    const auto it = json_->find(std::string(key));
    if (it != json_->end()) return JsonNode(&*it, std::move(path));
  }
  return JsonNode(&NullJson(), std::move(path));
}

std::vector<JsonNode> JsonNode::Elements() const {
  std::vector<JsonNode> out;
  if (!json_->is_array()) return out;
  out.reserve(json_->size());
  for (size_t i = 0; i < json_->size(); ++i)
    out.emplace_back(&(*json_)[i], absl::StrCat(path_, "/", i));
  return out;
}

absl::Status JsonNode::RequireObject() const {
  return json_->is_object() ? absl::OkStatus() : Error("must be an object");
}
absl::Status JsonNode::RequireArray() const {
  return json_->is_array() ? absl::OkStatus() : Error("must be an array");
}

absl::StatusOr<std::string> JsonNode::String() const {
  if (!json_->is_string()) return Error("must be a string");
  return json_->get_ref<const std::string&>();
}

absl::StatusOr<int64_t> JsonNode::Int() const {
  if (!json_->is_number_integer()) return Error("must be an integer");
  if (json_->is_number_unsigned() && json_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return Error("is too large");
  return json_->get<int64_t>();
}

absl::StatusOr<bool> JsonNode::Bool() const {
  if (!json_->is_boolean()) return Error("must be true or false");
  return json_->get<bool>();
}

absl::StatusOr<bool> JsonNode::BoolOr(bool value) const {
  if (is_null()) return value;
  return Bool();
}

absl::Status JsonNode::AllowKeys(absl::Span<const absl::string_view> known) const {
  SOUP_RETURN_IF_ERROR(RequireObject());
  for (auto it = json_->begin(); it != json_->end(); ++it) {
    if (std::find(known.begin(), known.end(), absl::string_view(it.key())) == known.end()) {
      return Error(absl::StrCat(
          "key '", it.key(), "' is not supported here (known: ", absl::StrJoin(known, ", "), ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
