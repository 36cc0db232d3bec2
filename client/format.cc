#include "client/format.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/exit_codes.h"
#include "engine/base/log.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace soup::client {
namespace {

using Json = nlohmann::ordered_json;

std::string PrintJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indented;
  std::string out;
  const auto status = google::protobuf::util::MessageToJsonString(message, &out, options);
  // Fails only for messages of types that soup.v1 does not use (Any, out-of-range Timestamp).
  SOUP_CHECK(status.ok());
  if (out.empty() || out.back() != '\n') out += '\n';
  return out;
}

// Whether YAML reads `text`, unquoted, as that same string.
bool IsPlainString(const std::string& text) {
  static const char* const kWords[] = {"null", "true", "false", "yes", "no", "on",
                                       "off",  "nan",  "y",     "n",   "~"};
  if (text.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(text[0]))) return false;
  const std::string lower = absl::AsciiStrToLower(text);
  if (std::find(std::begin(kWords), std::end(kWords), lower) != std::end(kWords)) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
           c == '/';
  });
}

void Emit(const Json& json, YAML::Emitter* out) {
  switch (json.type()) {
    case Json::value_t::object:
      if (json.empty()) *out << YAML::Flow;
      *out << YAML::BeginMap;
      for (const auto& [key, value] : json.items()) {
        *out << YAML::Key << key << YAML::Value;
        Emit(value, out);
      }
      *out << YAML::EndMap;
      return;
    case Json::value_t::array:
      if (json.empty()) *out << YAML::Flow;
      *out << YAML::BeginSeq;
      for (const Json& item : json) Emit(item, out);
      *out << YAML::EndSeq;
      return;
    case Json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!IsPlainString(text)) *out << YAML::DoubleQuoted;
      *out << text;
      return;
    }
    default:
      *out << json.dump();
  }
}

}  // namespace

absl::StatusOr<OutputFormat> ParseOutputFormat(const std::string& text) {
  if (text == "table") return OutputFormat::kTable;
  if (text == "json") return OutputFormat::kJson;
  if (text == "yaml") return OutputFormat::kYaml;
  if (text == "name") return OutputFormat::kName;
  return UsageError(absl::StrCat("-o ", text, ": the forms are table, json, yaml and name"));
}

std::string ToJson(const google::protobuf::Message& message) { return PrintJson(message, true); }

std::string ToJsonLine(const google::protobuf::Message& message) {
  return PrintJson(message, false);
}

std::string ToYaml(const google::protobuf::Message& message) {
  return JsonToYaml(PrintJson(message, false));
}

std::string JsonToYaml(const std::string& json) {
  YAML::Emitter out;
  Emit(Json::parse(json), &out);
  return absl::StrCat(out.c_str(), "\n");
}

Table::Table(std::vector<std::string> headers) {
  for (std::string& header : headers) {
    const bool right = !header.empty() && header[0] == '>';
    right_.push_back(right);
    if (right) header.erase(0, 1);
  }
  rows_.push_back(std::move(headers));
}

void Table::Add(std::vector<std::string> cells) {
  SOUP_CHECK(cells.size() == right_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render(bool color) const {
  std::vector<size_t> widths(right_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string& cell = rows_[r][i];
      const std::string pad(widths[i] - DisplayWidth(cell), ' ');
      const bool last = i + 1 == widths.size();
      if (right_[i]) out += pad;
      absl::StrAppend(&out, r == 0 && color ? Colored(Color::kBold, cell) : cell);
      if (!right_[i] && !last) out += pad;
      if (!last) out += "  ";
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();  // empty cells at the end
    out += '\n';
  }
  return out;
}

}  // namespace soup::client
