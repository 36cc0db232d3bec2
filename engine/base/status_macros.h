// Early-return macros for absl::Status and absl::StatusOr. Thread-safe: they hold no state.
#ifndef SOUP_ENGINE_BASE_STATUS_MACROS_H_
#define SOUP_ENGINE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SOUP_CONCAT_INNER_(a, b) a##b
#define SOUP_CONCAT_(a, b) SOUP_CONCAT_INNER_(a, b)

// Returns from the calling function when `expr` is not OK.
#define SOUP_RETURN_IF_ERROR(expr)               \
  do {                                           \
    absl::Status soup_status_ = (expr);          \
    if (!soup_status_.ok()) return soup_status_; \
  } while (0)

// SOUP_ASSIGN_OR_RETURN(auto x, MakeX()): assigns, or returns the error.
#define SOUP_ASSIGN_OR_RETURN(lhs, expr) \
  SOUP_ASSIGN_OR_RETURN_IMPL_(SOUP_CONCAT_(soup_statusor_, __LINE__), lhs, expr)
#define SOUP_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = std::move(tmp).value()

#endif  // SOUP_ENGINE_BASE_STATUS_MACROS_H_
