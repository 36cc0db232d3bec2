#include "engine/data/fit_record.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace soup::engine {

absl::StatusOr<TooLong> TooLongFromName(const std::string& name) {
  if (name == "truncate") return TooLong::kTruncate;
  if (name == "drop") return TooLong::kDrop;
  if (name == "split") return TooLong::kSplit;
  return absl::InvalidArgumentError(
      absl::StrCat("data.too_long is '", name, "'; known: truncate, drop, split"));
}

int64_t CountTargets(const TokenRecord& record) {
  if (record.supervised.empty()) return 0;
  return std::accumulate(record.supervised.begin() + 1, record.supervised.end(), int64_t{0});
}

std::vector<TokenRecord> FitRecord(TokenRecord record, int32_t max_length, TooLong too_long) {
  const auto limit = static_cast<size_t>(max_length);
  std::vector<TokenRecord> out;
  if (record.ids.size() <= limit) {
    out.push_back(std::move(record));
    return out;
  }
  switch (too_long) {
    case TooLong::kDrop:
      break;
    case TooLong::kTruncate:
      record.ids.resize(limit);
      record.supervised.resize(limit);
      out.push_back(std::move(record));
      break;
    case TooLong::kSplit:
      for (size_t begin = 0; begin + 1 < record.ids.size(); begin += limit - 1) {
        const size_t end = std::min(begin + limit, record.ids.size());
        TokenRecord piece;
        piece.line = record.line;
        piece.ids.assign(record.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                         record.ids.begin() + static_cast<std::ptrdiff_t>(end));
        piece.supervised.assign(record.supervised.begin() + static_cast<std::ptrdiff_t>(begin),
                                record.supervised.begin() + static_cast<std::ptrdiff_t>(end));
        if (begin > 0) piece.supervised[0] = 0;  // it was trained as the last of the piece before
        out.push_back(std::move(piece));
      }
  }
  return out;
}

}  // namespace soup::engine
