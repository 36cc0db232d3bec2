// Reads the records of a user's file one by one in bounded memory, whatever holds them: JSON lines,
// a JSON array (alone, or the one array of an object), CSV with a header line. Which of them it is
// follows from the file's name and its first bytes, and is told with the reason. Not thread-safe.
//
// JSON: RFC 8259 and no more (no NaN, no comma too many, no key told twice). CSV: RFC 4180; every
// cell is a text, never a number, a null or a date; an empty cell is an empty text. A cell in
// quotes keeps its line breaks (CRLF becomes LF where the file's own lines end in CRLF).
#ifndef SOUP_ENGINE_DATA_RECORD_READER_H_
#define SOUP_ENGINE_DATA_RECORD_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/value.h"

namespace soup::engine {

enum class FileKind { kAuto, kJsonl, kJson, kCsv, kTsv };
const char* FileKindName(FileKind kind);  // "jsonl", ...
// kAuto for a word that names no kind of file.
FileKind FileKindFromName(absl::string_view word);

class RecordReader {
 public:
  struct Options {
    FileKind kind = FileKind::kAuto;
    int64_t max_record_bytes = 8 << 20;
  };

  // `name`: what messages call the file. Errors: of opening; InvalidArgument (no text; a file that
  // is neither of these; a CSV header that cannot be).
  static absl::StatusOr<std::unique_ptr<RecordReader>> Open(const std::string& path,
                                                            const std::string& name,
                                                            Options options);
  virtual ~RecordReader() = default;

  // Moves to the next record, read or not; false at the end. Errors: of reading; InvalidArgument
  // when where a record ends cannot be told (an array that is not closed, a quote left open).
  virtual absl::StatusOr<bool> Next() = 0;
  // The record. Errors: InvalidArgument of this one record, with its place; the next ones can be
  // read.
  virtual absl::StatusOr<Value> Parse() const = 0;
  virtual int64_t line() const = 0;  // where the record begins, from 1
  // "train.jsonl line 3"
  virtual std::string Where() const = 0;

  virtual int64_t file_bytes() const = 0;
  virtual int64_t bytes_read() const = 0;
  // What the file holds beside its records ("the key 'version' beside the records ..."); whole
  // after the last record.
  virtual std::vector<std::string> notices() const { return {}; }

  FileKind kind() const { return kind_; }
  const std::string& kind_reason() const { return kind_reason_; }

 private:
  FileKind kind_ = FileKind::kJsonl;
  std::string kind_reason_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_RECORD_READER_H_
