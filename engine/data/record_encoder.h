// One record to token ids and supervision flags. Rules: prepare.h. Not thread-safe (it remembers
// words); the tokenizer must outlive it.
#ifndef SOUP_ENGINE_DATA_RECORD_ENCODER_H_
#define SOUP_ENGINE_DATA_RECORD_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/record_format.h"
#include "engine/data/tokenizer.h"
#include "engine/data/tokenizer_config.h"
#include "engine/data/value.h"

namespace soup::engine {

struct EncodedRecord {
  TokenRecord tokens;                // of any length: FitRecord comes after
  std::vector<std::string> notices;  // what Notices::Add should be told
};

class RecordEncoder {
 public:
  struct Options {
    RecordFormat format = RecordFormat::kText;
    bool train_on_all = false;
    int64_t vocab_size = 0;  // 0: not checked
  };

  // Errors: InvalidArgument (no EOS for text rows, no chat template for messages and sharegpt, a
  // template that is not understood, with its line and column).
  static absl::StatusOr<std::unique_ptr<RecordEncoder>> Create(const Tokenizer* tokenizer,
                                                               const TokenizerConfig& config,
                                                               Options options);
  ~RecordEncoder();

  // How the records become text, where a format leaves a choice; else empty.
  std::string manner() const;

  // Errors: InvalidArgument (of this record); FailedPrecondition (of tokenizer and model together:
  // no record can be right).
  absl::StatusOr<EncodedRecord> Encode(const Value& record);

 private:
  RecordEncoder();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_RECORD_ENCODER_H_
