// Records longer than max_length: cut at the end, left out, or split into several. Pure; any
// thread.
//
// Pieces of a split record overlap by one token: the last of a piece is the first of the next,
// which has no prediction of its own. So every target of the record is a target of exactly one
// piece, and no token of the record is trained twice. BOS and EOS stay where the whole record has
// them: the first piece begins with the one, the last ends with the other.
#ifndef SOUP_ENGINE_DATA_FIT_RECORD_H_
#define SOUP_ENGINE_DATA_FIT_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace soup::engine {

enum class TooLong { kTruncate, kDrop, kSplit };
// Errors: InvalidArgument, with the words that are known.
absl::StatusOr<TooLong> TooLongFromName(const std::string& name);

// Targets: supervised tokens that are not the first of their record.
int64_t CountTargets(const TokenRecord& record);

// The record as those that are trained on: one, none (dropped) or several. max_length >= 2.
std::vector<TokenRecord> FitRecord(TokenRecord record, int32_t max_length, TooLong too_long);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_FIT_RECORD_H_
