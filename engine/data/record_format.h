// The shapes of a user's record, and which one a record has. Pure functions; any thread.
#ifndef SOUP_ENGINE_DATA_RECORD_FORMAT_H_
#define SOUP_ENGINE_DATA_RECORD_FORMAT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/value.h"

namespace soup::engine {

enum class RecordFormat { kText, kPromptCompletion, kMessages, kAlpaca, kSharegpt, kInputIds };

// "text", "prompt_completion", "messages", "alpaca", "sharegpt", "input_ids"
const char* RecordFormatName(RecordFormat format);
// Those names, for messages.
std::string KnownRecordFormats();
// Errors: InvalidArgument (a format that is not supported, by name, with those that are).
absl::StatusOr<RecordFormat> RecordFormatFromName(absl::string_view name);

// The format whose keys the record has. Errors: InvalidArgument: none, this record's fault (naming
// the keys, and the format when it is one that is known but not supported); FailedPrecondition:
// several, which the job has to settle.
absl::StatusOr<RecordFormat> DetectRecordFormat(const Value& record);
// Why: "the first record has the keys 'prompt' and 'completion'".
std::string RecordFormatReason(RecordFormat format);

// Errors: InvalidArgument when the record lacks a key of the format. *ignored: keys that the format
// has no use for.
absl::Status CheckRecordKeys(const Value& record, RecordFormat format,
                             std::vector<std::string>* ignored);

// A string member. Errors: InvalidArgument "key 'text' is null where a string is expected".
absl::StatusOr<std::string> StringMember(const Value& record, absl::string_view key);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_RECORD_FORMAT_H_
