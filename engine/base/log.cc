#include "engine/base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace soup::engine {
namespace {

LogLevel LevelFromEnvironment() {
  const char* v = std::getenv("SOUP_LOG_LEVEL");
  if (v == nullptr) return LogLevel::kInfo;
  if (std::strcmp(v, "debug") == 0) return LogLevel::kDebug;
  if (std::strcmp(v, "warn") == 0) return LogLevel::kWarn;
  if (std::strcmp(v, "error") == 0) return LogLevel::kError;
  return LogLevel::kInfo;
}

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarn:
      return "WARN";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

}  // namespace

bool LogEnabled(LogLevel level) {
  static const LogLevel floor = LevelFromEnvironment();
  return level >= floor;
}

void LogLine(LogLevel level, absl::string_view component, absl::string_view message) {
  timespec ts{};
  clock_gettime(CLOCK_REALTIME, &ts);
  tm utc{};
  gmtime_r(&ts.tv_sec, &utc);
  char head[96];
  const int n = snprintf(head, sizeof head, "%-5s %04d-%02d-%02dT%02d:%02d:%02d.%03ldZ ",
                         Name(level), utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                         utc.tm_min, utc.tm_sec, ts.tv_nsec / 1'000'000);
  std::string line(head, static_cast<size_t>(n));
  line.append(component.data(), component.size()).append(": ");
  for (char c : message) line.push_back(c == '\n' ? ' ' : c);
  line.push_back('\n');
  const char* p = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t w = write(STDERR_FILENO, p, left);
    if (w <= 0) return;  // Nowhere left to complain.
    p += w;
    left -= static_cast<size_t>(w);
  }
}

void CheckFailed(const char* condition, const char* file, int line) {
  LogLine(LogLevel::kError, "check",
          std::string("CHECK failed: ") + condition + " at " + file + ":" + std::to_string(line));
  std::abort();
}

}  // namespace soup::engine
