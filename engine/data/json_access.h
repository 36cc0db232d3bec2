// Reads a parsed JSON document with errors that name the file and the path in it, as in
// "tokenizer.json: /pre_tokenizer/pretokenizers/1/type: 'Metaspace' is not supported".
// A JsonNode is a view: the document must outlive it. Any thread.
#ifndef SOUP_ENGINE_DATA_JSON_ACCESS_H_
#define SOUP_ENGINE_DATA_JSON_ACCESS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace soup::engine {

// Parses a whole document. Errors: InvalidArgument (file, line, column).
absl::StatusOr<nlohmann::json> ParseJsonDocument(absl::string_view text, absl::string_view file);

class JsonNode {
 public:
  JsonNode(const nlohmann::json* json, std::string path) : json_(json), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return json_->is_null(); }

  // InvalidArgument "<path>: <what>".
  absl::Status Error(absl::string_view what) const;

  // A member, or a null node when absent (or when this is no object).
  JsonNode Member(absl::string_view key) const;
  std::vector<JsonNode> Elements() const;  // of an array; empty otherwise

  absl::Status RequireObject() const;
  absl::Status RequireArray() const;
  absl::StatusOr<std::string> String() const;
  absl::StatusOr<int64_t> Int() const;
  absl::StatusOr<bool> Bool() const;
  // Absent or null: the default.
  absl::StatusOr<bool> BoolOr(bool value) const;

  // Every key must be one of these: what is not understood is refused, never passed over.
  absl::Status AllowKeys(absl::Span<const absl::string_view> known) const;

 private:
  const nlohmann::json* json_;
  std::string path_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_JSON_ACCESS_H_
