// A record that was tokenised elsewhere: {"input_ids": [...], "labels"?: [...], "attention_mask"?}.
// Nothing is added and nothing is decoded: the ids are the record. Labels are Hugging Face's: the
// same tokens at the same places, -100 where a token is not trained on; without labels every token
// is. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_TOKEN_RECORD_H_
#define SOUP_ENGINE_DATA_TOKEN_RECORD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/data/dataset.h"
#include "engine/data/value.h"

namespace soup::engine {

// `vocab_size`: ids must lie below; 0: not checked. Errors: InvalidArgument naming the key and the
// place in the list (ids out of range, labels of another length or of other tokens, padding,
// labels beside train_on: all).
absl::Status ReadTokenRecord(const Value& record, bool train_on_all, int64_t vocab_size,
                             TokenRecord* out);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_TOKEN_RECORD_H_
