// Typed, ranged look-ups in a config.json (or an object inside it), with messages that name the
// key, the value and what is accepted.
//
// null counts as absent, as in Hugging Face configs. Errors: InvalidArgument. Immutable: any
// thread.
#ifndef SOUP_ENGINE_MODEL_CONFIG_READER_H_
#define SOUP_ENGINE_MODEL_CONFIG_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

class ConfigReader {
 public:
  static absl::StatusOr<ConfigReader> Parse(absl::string_view json);
  ConfigReader(const ConfigReader&);
  ConfigReader(ConfigReader&&) noexcept;
  ~ConfigReader();

  bool Has(absl::string_view key) const;
  bool IsNull(absl::string_view key) const;  // there, and null: not the same as absent to some keys
  std::vector<std::string> Keys() const;
  // The value as JSON, cut to a length fit for a message; "absent".
  std::string Shown(absl::string_view key) const;

  absl::StatusOr<int64_t> RequiredInt(absl::string_view key, int64_t least, int64_t most) const;
  absl::StatusOr<int64_t> Int(absl::string_view key, int64_t least, int64_t most,
                              int64_t otherwise) const;
  // Finite, > above, <= most.
  absl::StatusOr<double> RequiredNumber(absl::string_view key, double above, double most) const;
  absl::StatusOr<double> Number(absl::string_view key, double above, double most,
                                double otherwise) const;
  bool IsOff(absl::string_view key) const;  // absent, false, 0, or empty
  absl::StatusOr<bool> Bool(absl::string_view key, bool otherwise) const;
  absl::StatusOr<std::string> RequiredString(absl::string_view key) const;
  absl::StatusOr<std::string> String(absl::string_view key, absl::string_view otherwise) const;
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;  // absent: empty
  // Lists of finite numbers, each >= least and <= most; absent: empty.
  absl::StatusOr<std::vector<double>> Numbers(absl::string_view key, double least,
                                              double most) const;
  // An id, or the first of a list; -1: absent, or not below vocab.
  absl::StatusOr<int64_t> TokenId(absl::string_view key, int64_t vocab) const;
  // An object inside; nullopt when absent.
  absl::StatusOr<std::optional<ConfigReader>> Object(absl::string_view key) const;

 private:
  struct Rep;
  explicit ConfigReader(std::unique_ptr<Rep> rep);
  absl::Status Wrong(absl::string_view key, absl::string_view wanted) const;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_CONFIG_READER_H_
