// Log port: one line a message on stderr, `LEVEL time component message key=value`, as journald
// likes it.
//
//   SOUP_LOG(kInfo, "worker") << "started pid " << pid;
//
// Thread-safe: a line is written by one write(2). Level from SOUP_LOG_LEVEL (debug, info, warn,
// error).
#ifndef SOUP_ENGINE_BASE_LOG_H_
#define SOUP_ENGINE_BASE_LOG_H_

#include <sstream>

#include "absl/strings/string_view.h"

namespace soup::engine {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, absl::string_view component, absl::string_view message);

// Collects one message and writes it when it dies.
class LogMessage {
 public:
  LogMessage(LogLevel level, absl::string_view component) : level_(level), component_(component) {}
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;
  ~LogMessage() { LogLine(level_, component_, stream_.str()); }
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  absl::string_view component_;
  std::ostringstream stream_;
};

}  // namespace soup::engine

#define SOUP_LOG(level, component)                                    \
  if (!::soup::engine::LogEnabled(::soup::engine::LogLevel::level)) { \
  } else                                                              \
    ::soup::engine::LogMessage(::soup::engine::LogLevel::level, component).stream()

// For our own mistakes only; expected errors are absl::Status.
#define SOUP_CHECK(cond)                                                 \
  do {                                                                   \
    if (!(cond)) ::soup::engine::CheckFailed(#cond, __FILE__, __LINE__); \
  } while (0)

namespace soup::engine {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_LOG_H_
