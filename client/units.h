// Sizes and durations as people write and read them. Pure functions; thread-safe.
//
// Sizes: 512MiB, 3GiB (powers of 1024), 3.4GB, 500MB (powers of 1000); B, K, M, G, T with B or iB;
// the unit is needed, because a bare number is as often meant in MB as in bytes.
// Durations: 90s, 15m, 12h, 2d, and sums in that order of size: 1h30m.
#ifndef SOUP_CLIENT_UNITS_H_
#define SOUP_CLIENT_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::client {

// Bytes, > 0; a fraction is rounded down. InvalidArgument names the text and what would be right.
absl::StatusOr<int64_t> ParseSize(absl::string_view text);
// Seconds, > 0.
absl::StatusOr<int64_t> ParseDuration(absl::string_view text);

// Exact: the shortest text that ParseSize, ParseDuration read back to the same number.
std::string ExactSize(int64_t bytes);
std::string ExactDuration(int64_t seconds);
// The shortest text that reads back to the same double ("0.0002", "1e-08").
std::string ExactReal(double value);

// For people: "3.2 GiB", "1h 02m", "4m 10s", "12.3s".
std::string HumanSize(double bytes);
std::string HumanDuration(double seconds);
// "1234", "12.3k", "4.56M": counts and rates.
std::string HumanCount(double value);
// Local time "2031-02-03 04:05:06"; "-" for 0.
std::string HumanTime(int64_t unix_ms);
// "4m", "3h", "2d": how long ago; "-" for 0.
std::string HumanAge(int64_t unix_ms, int64_t now_unix_ms);

}  // namespace soup::client

#endif  // SOUP_CLIENT_UNITS_H_
