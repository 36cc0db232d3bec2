// The bytes of a user's text file, a buffer at a time: opens it, refuses what is no text (UTF-16,
// archives, tables of other programs) by name, and passes over a byte order mark. Not thread-safe.
#ifndef SOUP_ENGINE_DATA_TEXT_SOURCE_H_
#define SOUP_ENGINE_DATA_TEXT_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

class TextSource {
 public:
  static constexpr size_t kBufferBytes = 256 << 10;

  // `name`: what messages call the file. Errors: of opening; InvalidArgument (not a regular file;
  // a file that is no text, saying what it is and what to do).
  static absl::StatusOr<std::unique_ptr<TextSource>> Open(const std::string& path,
                                                          const std::string& name);
  ~TextSource();
  TextSource(const TextSource&) = delete;
  TextSource& operator=(const TextSource&) = delete;

  // Bytes in the buffer that were not taken yet; reads on when there are none. Empty only at the
  // end of the file. Errors: of reading.
  absl::StatusOr<absl::string_view> Rest();
  // Takes the first `bytes` of Rest(). Views given out before stay valid until the next Rest().
  void Take(size_t bytes) {
    at_ += bytes;
    offset_ += static_cast<int64_t>(bytes);
  }

  const std::string& name() const { return name_; }
  int64_t offset() const { return offset_; }  // of Rest() in the file
  int64_t file_bytes() const { return file_bytes_; }

 private:
  TextSource() = default;
  absl::Status Fill();

  std::string path_, name_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  std::string buffer_;
  size_t at_ = 0;
  int64_t offset_ = 0;
  bool end_ = false;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_TEXT_SOURCE_H_
