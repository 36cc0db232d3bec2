// Reads a JSONL file line by line in bounded memory, whatever its bytes: a byte order mark, CRLF,
// blank lines and a missing last newline make no difference; a line that is too long, is no UTF-8
// or no JSON is told with its number and place. Not thread-safe.
#ifndef SOUP_ENGINE_DATA_JSONL_READER_H_
#define SOUP_ENGINE_DATA_JSONL_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/text_source.h"
#include "engine/data/value.h"

namespace soup::engine {

class JsonlReader {
 public:
  struct Options {
    int64_t max_line_bytes = 8 << 20;
  };
  struct Line {
    int64_t number = 0;      // from 1, blank ones counted
    int64_t offset = 0;      // of its first byte in the file
    int64_t bytes = 0;       // without the line end
    absl::string_view text;  // valid until the next call; empty when the line is too long
    bool too_long = false;
  };

  // `name`: what messages call the file. Errors: those of TextSource::Open.
  static absl::StatusOr<std::unique_ptr<JsonlReader>> Open(const std::string& path,
                                                           const std::string& name,
                                                           Options options);
  // Of a file that is open already, from where it stands.
  static std::unique_ptr<JsonlReader> Over(std::unique_ptr<TextSource> source, Options options);
  ~JsonlReader();

  // The next line that is not blank; false at the end of the file. Errors: of reading only.
  absl::StatusOr<bool> Next(Line* line);

  // The record of a line. Errors: InvalidArgument "<name> line N ...": over the limit (with its
  // size), no UTF-8 (with the byte and its offset in the file), no JSON (with the column), no
  // object.
  absl::StatusOr<Value> Parse(const Line& line) const;

  const std::string& name() const;  // of the file, in messages
  int64_t file_bytes() const;
  int64_t bytes_read() const;  // of the lines given out so far

 private:
  JsonlReader();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_JSONL_READER_H_
