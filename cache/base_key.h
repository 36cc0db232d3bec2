// BaseKey: which frozen model in which storage format. Text form "fingerprint/format", as in the
// worker protocol and in the shard store's keys. Plain value; any thread.
#ifndef SOUP_CACHE_BASE_KEY_H_
#define SOUP_CACHE_BASE_KEY_H_

#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/layer_layout.h"

namespace soup::cache {

inline constexpr int kFingerprintChars = 32;  // XXH3-128 in lower-case hex

struct BaseKey {
  std::string fingerprint;
  engine::BaseFormat format = engine::BaseFormat::kBf16;

  std::string ToString() const;
  static absl::StatusOr<BaseKey> Parse(absl::string_view text);  // InvalidArgument
  friend bool operator==(const BaseKey&, const BaseKey&) = default;
  friend bool operator<(const BaseKey& a, const BaseKey& b) {
    return std::tie(a.fingerprint, a.format) < std::tie(b.fingerprint, b.format);
  }
};

}  // namespace soup::cache

#endif  // SOUP_CACHE_BASE_KEY_H_
