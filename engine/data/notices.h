// Collects what people should know about their records, one sentence a kind with the lines it
// concerns, in bounded memory however many records there are. Not thread-safe.
#ifndef SOUP_ENGINE_DATA_NOTICES_H_
#define SOUP_ENGINE_DATA_NOTICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace soup::engine {

class Notices {
 public:
  static constexpr size_t kMaxKinds = 31;  // one more warning says that there were others
  static constexpr size_t kMaxLines = 10;

  // `what` is the kind and its sentence: "record(s) cut to 512 tokens".
  void Add(absl::string_view file, absl::string_view what, int64_t line);
  // A whole sentence that is about no record.
  void AddGeneral(absl::string_view sentence);
  // "train.jsonl: 12 record(s) cut to 512 tokens (lines 3, 9, 12, ...)".
  std::vector<std::string> ToWarnings() const;

 private:
  struct Kind {
    std::string file, what;
    int64_t count = 0;
    std::vector<int64_t> lines;
  };
  std::vector<Kind> kinds_;
  int64_t others_ = 0;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_NOTICES_H_
