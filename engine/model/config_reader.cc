#include "engine/model/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/lfs_pointer.h"

namespace soup::engine {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = 4 << 20;
constexpr int kMaxDepth = 8;  // deeper values are dropped: no key that is read lies there
constexpr size_t kShownBytes = 120;

}  // namespace

struct ConfigReader::Rep {
  Json object;
  std::string where;  // "config.json: " or "config.json: rope_scaling."
  // Null: absent.
  const Json* Find(absl::string_view key) const {
    const auto it = object.find(std::string(key));
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
};

ConfigReader::ConfigReader(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
ConfigReader::ConfigReader(const ConfigReader& other) : rep_(std::make_unique<Rep>(*other.rep_)) {}
ConfigReader::ConfigReader(ConfigReader&&) noexcept = default;
ConfigReader::~ConfigReader() = default;

absl::StatusOr<ConfigReader> ConfigReader::Parse(absl::string_view json) {
  if (json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json has ", json.size(), " bytes; at most ", kMaxConfigBytes, " are accepted"));
  }
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kMaxDepth; };
  auto rep = std::make_unique<Rep>();
  rep->object = Json::parse(json.begin(), json.end(), shallow, /*allow_exceptions=*/false);
  rep->where = "config.json: ";
  if (!rep->object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json is not a JSON object: is the download complete?", LfsPointerHint(json)));
  }
  return ConfigReader(std::move(rep));
}

bool ConfigReader::Has(absl::string_view key) const { return rep_->Find(key) != nullptr; }

bool ConfigReader::IsNull(absl::string_view key) const {
  const auto it = rep_->object.find(std::string(key));
  return it != rep_->object.end() && it->is_null();
}

std::vector<std::string> ConfigReader::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : rep_->object.items()) keys.push_back(key);
  return keys;
}

std::string ConfigReader::Shown(absl::string_view key) const {
  const Json* v = rep_->Find(key);
  if (v == nullptr) return "absent";
  std::string text = v->dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

absl::Status ConfigReader::Wrong(absl::string_view key, absl::string_view wanted) const {
  return absl::InvalidArgumentError(
      absl::StrCat(rep_->where, key, " is ", Shown(key), "; it must be ", wanted));
}

absl::StatusOr<int64_t> ConfigReader::RequiredInt(absl::string_view key, int64_t least,
                                                  int64_t most) const {
  const Json* v = rep_->Find(key);
  const bool whole = v != nullptr && v->is_number_integer() &&
                     !(v->is_number_unsigned() && v->get<uint64_t>() > INT64_MAX);
  if (!whole || v->get<int64_t>() < least || v->get<int64_t>() > most) {
    return Wrong(key, absl::StrCat("a whole number from ", least, " to ", most));
  }
  return v->get<int64_t>();
}

absl::StatusOr<int64_t> ConfigReader::Int(absl::string_view key, int64_t least, int64_t most,
                                          int64_t otherwise) const {
  if (!Has(key)) return otherwise;
  return RequiredInt(key, least, most);
}

absl::StatusOr<double> ConfigReader::RequiredNumber(absl::string_view key, double above,
                                                    double most) const {
  const Json* v = rep_->Find(key);
  const double d = v != nullptr && v->is_number() ? v->get<double>() : NAN;
  if (!(d > above && d <= most)) {
    return Wrong(key, absl::StrCat("a number above ", above, ", at most ", most));
  }
  return d;
}

absl::StatusOr<double> ConfigReader::Number(absl::string_view key, double above, double most,
                                            double otherwise) const {
  if (!Has(key)) return otherwise;
  return RequiredNumber(key, above, most);
}

bool ConfigReader::IsOff(absl::string_view key) const {
  const Json* v = rep_->Find(key);
  return v == nullptr || *v == false || (v->is_number() && v->get<double>() == 0.0) ||
         ((v->is_structured() || v->is_string()) && (v->empty() || *v == ""));
}

absl::StatusOr<bool> ConfigReader::Bool(absl::string_view key, bool otherwise) const {
  const Json* v = rep_->Find(key);
  if (v == nullptr) return otherwise;
  if (!v->is_boolean()) return Wrong(key, "true or false");
  return v->get<bool>();
}

absl::StatusOr<std::string> ConfigReader::RequiredString(absl::string_view key) const {
  const Json* v = rep_->Find(key);
  if (v == nullptr || !v->is_string()) return Wrong(key, "a string");
  return v->get<std::string>();
}

absl::StatusOr<std::string> ConfigReader::String(absl::string_view key,
                                                 absl::string_view otherwise) const {
  if (!Has(key)) return std::string(otherwise);
  return RequiredString(key);
}

absl::StatusOr<std::vector<std::string>> ConfigReader::Strings(absl::string_view key) const {
  std::vector<std::string> out;
  const Json* v = rep_->Find(key);
  if (v == nullptr) return out;
  if (!v->is_array()) return Wrong(key, "a list of strings");
  for (const Json& item : *v) {
    if (!item.is_string()) return Wrong(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

absl::StatusOr<std::vector<double>> ConfigReader::Numbers(absl::string_view key, double least,
                                                          double most) const {
  std::vector<double> out;
  const Json* v = rep_->Find(key);
  if (v == nullptr) return out;
  const std::string wanted = absl::StrCat("a list of numbers from ", least, " to ", most);
  if (!v->is_array()) return Wrong(key, wanted);
  for (const Json& item : *v) {
    const double d = item.is_number() ? item.get<double>() : NAN;
    if (!(d >= least && d <= most)) return Wrong(key, wanted);
    out.push_back(d);
  }
  return out;
}

absl::StatusOr<int64_t> ConfigReader::TokenId(absl::string_view key, int64_t vocab) const {
  const Json* v = rep_->Find(key);
  if (v == nullptr) return -1;
  if (v->is_array() && v->empty()) return -1;
  const Json& id = v->is_array() ? v->front() : *v;
  if (!id.is_number_unsigned()) return Wrong(key, "a token id, or a list of them");
  // A class's default may lie beyond a small vocabulary (phi3): no such token exists.
  const uint64_t value = id.get<uint64_t>();
  return value < static_cast<uint64_t>(vocab) ? static_cast<int64_t>(value) : -1;
}

absl::StatusOr<std::optional<ConfigReader>> ConfigReader::Object(absl::string_view key) const {
  const Json* v = rep_->Find(key);
  if (v == nullptr) return std::optional<ConfigReader>();
  if (!v->is_object()) return Wrong(key, "an object");
  auto rep = std::make_unique<Rep>();
  rep->object = *v;
  rep->where = absl::StrCat(rep_->where, key, ".");
  return std::optional<ConfigReader>(ConfigReader(std::move(rep)));
}

}  // namespace soup::engine
