// Records of a CSV file (RFC 4180): the first line names the columns, every later row is a record
// with a text a column. Strict where readers disagree: a row with another number of cells, a quote
// inside a cell without quotes, and text after a closing quote are errors of that row. Blank lines
// are passed over. Behind RecordReader; not thread-safe.
#ifndef SOUP_ENGINE_DATA_CSV_READER_H_
#define SOUP_ENGINE_DATA_CSV_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/record_reader.h"
#include "engine/data/text_source.h"

namespace soup::engine {

class CsvReader final : public RecordReader {
 public:
  // Reads the header. Errors: InvalidArgument (names missing, empty or told twice; a separator that
  // is not `separator`).
  static absl::StatusOr<std::unique_ptr<CsvReader>> Create(std::unique_ptr<TextSource> source,
                                                           char separator,
                                                           int64_t max_record_bytes);

  absl::StatusOr<bool> Next() override;
  absl::StatusOr<Value> Parse() const override;
  int64_t line() const override { return row_.line; }
  std::string Where() const override;
  int64_t file_bytes() const override { return source_->file_bytes(); }
  int64_t bytes_read() const override { return source_->offset(); }

 private:
  struct Row {
    std::string text;  // without its line end; empty when too long
    int64_t line = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
    bool too_long = false;
    bool crlf = false;  // it ended so
  };

  CsvReader(std::unique_ptr<TextSource> source, char separator, int64_t max_record_bytes)
      : source_(std::move(source)), separator_(separator), max_record_bytes_(max_record_bytes) {}
  // The next row, blank or not; false at the end of the file.
  absl::StatusOr<bool> ReadRow(Row* row);
  // Errors without the place.
  absl::StatusOr<std::vector<std::string>> Cells(const Row& row) const;
  std::string ColumnName(size_t column) const;
  absl::Status ReadHeader();

  std::unique_ptr<TextSource> source_;
  const char separator_;
  const int64_t max_record_bytes_;
  std::vector<std::string> header_;
  bool crlf_ = false;  // the file's lines end so
  int64_t lines_ = 1;  // of what was taken
  Row row_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_CSV_READER_H_
