// Records of a JSON file: an array of objects, or an object that holds one such array. The file is
// scanned for where each element ends, so that memory holds one record however long the array is.
// Behind RecordReader; not thread-safe.
#ifndef SOUP_ENGINE_DATA_JSON_READER_H_
#define SOUP_ENGINE_DATA_JSON_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/record_reader.h"
#include "engine/data/text_source.h"

namespace soup::engine {

class JsonReader final : public RecordReader {
 public:
  JsonReader(std::unique_ptr<TextSource> source, int64_t max_record_bytes)
      : source_(std::move(source)), max_record_bytes_(max_record_bytes) {}

  absl::StatusOr<bool> Next() override;
  absl::StatusOr<Value> Parse() const override;
  int64_t line() const override { return element_.line; }
  std::string Where() const override;
  int64_t file_bytes() const override { return source_->file_bytes(); }
  int64_t bytes_read() const override { return source_->offset(); }
  std::vector<std::string> notices() const override { return notices_; }

 private:
  struct Element {
    std::string text;  // empty when too long
    int64_t line = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
    bool too_long = false;
  };

  absl::Status Broken(absl::string_view what) const;
  // The next byte that is no white space, not taken; '\0' at the end of the file.
  absl::StatusOr<char> Peek();
  void TakeOne() { source_->Take(1); }
  absl::Status Expect(char c, absl::string_view where);
  // One value, up to the comma or bracket after it, which is not taken.
  absl::Status Scan(Element* out);
  absl::Status Begin();
  // Members of the object around the records, up to the next array (true) or its end (false).
  absl::StatusOr<bool> NextArray();
  absl::StatusOr<std::string> ReadKey();
  absl::Status End();

  std::unique_ptr<TextSource> source_;
  const int64_t max_record_bytes_;
  enum class State { kBefore, kInside, kAfter } state_ = State::kBefore;
  bool in_object_ = false;
  bool in_array_ = false;  // the array was found
  std::string array_key_;
  int64_t members_ = 0;  // of that object, seen so far
  int64_t lines_ = 1;    // of what was taken
  int64_t index_ = 0;    // of the record, from 1
  Element element_;
  std::vector<std::string> notices_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_JSON_READER_H_
