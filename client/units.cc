#include "client/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace soup::client {
namespace {

struct SizeUnit {
  const char* name;
  int64_t bytes;
};
constexpr int64_t kKi = 1024, kK = 1000;
constexpr SizeUnit kSizeUnits[] = {{"TiB", kKi* kKi* kKi* kKi},
                                   {"GiB", kKi* kKi* kKi},
                                   {"MiB", kKi* kKi},
                                   {"KiB", kKi},
                                   {"TB", kK* kK* kK* kK},
                                   {"GB", kK* kK* kK},
                                   {"MB", kK* kK},
                                   {"KB", kK},
                                   {"B", 1}};
struct DurationUnit {
  char name;
  int64_t seconds;
};
constexpr DurationUnit kDurationUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};

// Splits "3.4GB" into "3.4" and "GB".
size_t NumberLength(absl::string_view text) {
  size_t n = 0;
  while (n < text.size() && (absl::ascii_isdigit(text[n]) || text[n] == '.')) ++n;
  return n;
}

}  // namespace

absl::StatusOr<int64_t> ParseSize(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a size; write it with a unit, e.g. 512MiB, 3GiB, 3.4GB"));
  const size_t digits = NumberLength(text);
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) return wrong;
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(text.substr(digits));
  for (const SizeUnit& u : kSizeUnits) {
    if (!absl::EqualsIgnoreCase(unit, u.name)) continue;
    const double bytes = number * static_cast<double>(u.bytes);
    if (!(bytes >= 1) || bytes > 9.0e18) return wrong;
    return static_cast<int64_t>(bytes);
  }
  return wrong;
}

absl::StatusOr<int64_t> ParseDuration(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not a duration; write it with a unit, e.g. 90s, 15m, 12h, 1h30m, 2d"));
  double total = 0;
  size_t next_unit = 0;  // units go from large to small, each once
  absl::string_view rest = text;
  if (rest.empty()) return wrong;
  while (!rest.empty()) {
    const size_t digits = NumberLength(rest);
    double number = 0;
    if (digits == 0 || digits == rest.size()) return wrong;
    if (!absl::SimpleAtod(rest.substr(0, digits), &number)) return wrong;
    const char unit = absl::ascii_tolower(rest[digits]);
    while (next_unit < std::size(kDurationUnits) && kDurationUnits[next_unit].name != unit) {
      ++next_unit;
    }
    if (next_unit == std::size(kDurationUnits)) return wrong;
    total += number * static_cast<double>(kDurationUnits[next_unit++].seconds);
    rest.remove_prefix(digits + 1);
  }
  if (!(total >= 1) || total > 1e12) return wrong;
  return static_cast<int64_t>(total);
}

std::string ExactSize(int64_t bytes) {
  for (const SizeUnit& u : kSizeUnits) {
    if (bytes % u.bytes == 0) return absl::StrCat(bytes / u.bytes, u.name);
  }
  return absl::StrCat(bytes, "B");
}

std::string ExactDuration(int64_t seconds) {
  std::string out;
  for (const DurationUnit& u : kDurationUnits) {
    if (const int64_t n = seconds / u.seconds; n > 0) {
      absl::StrAppend(&out, n, std::string(1, u.name));
      seconds %= u.seconds;
    }
  }
  return out;
}

std::string ExactReal(double value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), end.ptr);
}

std::string HumanSize(double bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t i = 0;
  while (i + 1 < std::size(kNames) && std::fabs(bytes) >= 1024) {
    bytes /= 1024;
    ++i;
  }
  if (i == 0) return absl::StrFormat("%.0f B", bytes);
  return absl::StrFormat("%.*f %s", std::fabs(bytes) < 100 ? 1 : 0, bytes, kNames[i]);
}

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0) seconds = 0;
  if (seconds < 1) return absl::StrFormat("%.*fms", seconds < 0.01 ? 1 : 0, seconds * 1000);
  if (seconds < 60) return absl::StrFormat("%.1fs", seconds);
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s < 3600) return absl::StrFormat("%dm %02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh %02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd %02dh", s / 86400, s / 3600 % 24);
}

std::string HumanCount(double value) {
  if (!std::isfinite(value)) return "-";
  if (std::fabs(value) < 10000) return absl::StrFormat("%.0f", value);
  if (std::fabs(value) < 1e6) return absl::StrFormat("%.1fk", value / 1e3);
  return absl::StrFormat("%.2fM", value / 1e6);
}

std::string HumanTime(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms),
                          absl::LocalTimeZone());
}

std::string HumanAge(int64_t unix_ms, int64_t now_unix_ms) {
  if (unix_ms == 0) return "-";
  const int64_t s = now_unix_ms > unix_ms ? (now_unix_ms - unix_ms) / 1000 : 0;
  if (s < 120) return absl::StrCat(s, "s");
  if (s < 7200) return absl::StrCat(s / 60, "m");
  if (s < 172800) return absl::StrCat(s / 3600, "h");
  return absl::StrCat(s / 86400, "d");
}

}  // namespace soup::client
