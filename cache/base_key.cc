#include "cache/base_key.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::cache {

std::string BaseKey::ToString() const {
  return absl::StrCat(fingerprint, "/", engine::BaseFormatName(format));
}

absl::StatusOr<BaseKey> BaseKey::Parse(absl::string_view text) {
  const size_t slash = text.find('/');
  const absl::string_view fingerprint = text.substr(0, slash);
  const bool hex = std::all_of(fingerprint.begin(), fingerprint.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  if (slash == absl::string_view::npos || fingerprint.size() != kFingerprintChars || !hex) {
    return absl::InvalidArgumentError(absl::StrCat("'", text.substr(0, 100),
                                                   "' is not a base: <fingerprint of ",
                                                   kFingerprintChars, " hex digits>/<format>"));
  }
  BaseKey key;
  key.fingerprint = std::string(fingerprint);
  SOUP_ASSIGN_OR_RETURN(key.format, engine::ParseBaseFormat(text.substr(slash + 1)));
  return key;
}

}  // namespace soup::cache
