// The forms of output: table (for people), json and yaml (protobuf's JSON with the proto's field
// names, every field present, so scripts can rely on the shape), name (ids, one a line).
// Pure functions; thread-safe.
#ifndef SOUP_CLIENT_FORMAT_H_
#define SOUP_CLIENT_FORMAT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/terminal.h"
#include "google/protobuf/message.h"

namespace soup::client {

enum class OutputFormat { kTable, kJson, kYaml, kName };

// UsageError names what is allowed.
absl::StatusOr<OutputFormat> ParseOutputFormat(const std::string& text);

// Indented, with a line break at the end. 64-bit numbers are strings, as protobuf's JSON has them.
std::string ToJson(const google::protobuf::Message& message);
// On one line, with a line break: for streams.
std::string ToJsonLine(const google::protobuf::Message& message);
// The same tree as ToJson in block YAML; strings that YAML would take for something else are
// quoted.
std::string ToYaml(const google::protobuf::Message& message);
// Any JSON text in block YAML. The text must be valid JSON.
std::string JsonToYaml(const std::string& json);

// Columns as wide as their widest cell, two blanks between; the last column is not padded.
class Table {
 public:
  // A header that begins with '>' is aligned to the right.
  explicit Table(std::vector<std::string> headers);
  void Add(std::vector<std::string> cells);
  // Headers in bold with `color`.
  std::string Render(bool color) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace soup::client

#endif  // SOUP_CLIENT_FORMAT_H_
