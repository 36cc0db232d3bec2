#include "engine/data/text_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/lfs_pointer.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr absl::string_view kBom("\xef\xbb\xbf", 3);
constexpr char kUtf16[] = "UTF-16 text; save it as UTF-8";

// What a file that starts so is, when it is no UTF-8 text; null: nothing speaks against text.
const char* ForeignFormat(absl::string_view start) {
  static constexpr std::pair<absl::string_view, const char*> kMagics[] = {
      {absl::string_view("\xff\xfe\0\0", 4), "UTF-32 text; save it as UTF-8"},
      {absl::string_view("\0\0\xfe\xff", 4), "UTF-32 text; save it as UTF-8"},
      {absl::string_view("\xff\xfe", 2), kUtf16},
      {absl::string_view("\xfe\xff", 2), kUtf16},
      {absl::string_view("\x1f\x8b", 2), "compressed by gzip; unpack it first"},
      {absl::string_view("(\xb5\x2f\xfd", 4), "compressed by zstd; unpack it first"},
      {absl::string_view("\xfd"
                         "7zXZ",
                         5),
       "compressed by xz; unpack it first"},
      {absl::string_view("BZh", 3), "compressed by bzip2; unpack it first"},
      {absl::string_view("7z\xbc\xaf", 4), "a 7z archive; unpack it first"},
      {absl::string_view("PK\x03\x04", 4),
       "a zip archive or an Excel workbook; unpack it, or save it as CSV"},
      {absl::string_view("PAR1", 4), "Parquet; convert it to JSONL first"},
      {absl::string_view("ARROW1", 6), "Arrow; convert it to JSONL first"},
      {absl::string_view("\x93NUMPY", 6), "a NumPy array; convert it to JSONL first"},
      {absl::string_view("SQLite format 3", 15), "a SQLite database; convert it to JSONL first"},
      {absl::string_view("%PDF-", 5), "a PDF; extract its text first"},
      {kLfsPointerStart, "a pointer of Git LFS; get the file itself (git lfs pull)"},
      {"<!DOCTYPE", "a web page; is the address that of the file itself?"},
      {"<!doctype", "a web page; is the address that of the file itself?"},
      {"<html", "a web page; is the address that of the file itself?"}};
  for (const auto& [magic, what] : kMagics)
    if (absl::StartsWith(start, magic)) return what;
  // Without a byte order mark: text of any format begins with an ASCII character.
  if (start.size() >= 2 && (start[0] == '\0') != (start[1] == '\0')) return kUtf16;
  if (start.size() >= 2 && start[0] == '\0') return "binary (it begins with zero bytes)";
  return nullptr;
}

}  // namespace

TextSource::~TextSource() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<TextSource>> TextSource::Open(const std::string& path,
                                                             const std::string& name) {
  std::unique_ptr<TextSource> out(new TextSource);
  out->path_ = path;
  out->name_ = name.empty() ? path : name;
  // O_NONBLOCK: a FIFO must not hold us before it is refused.
  out->fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (out->fd_ < 0) return ErrnoStatus(errno, "open", out->name_);
  struct stat st;
  if (fstat(out->fd_, &st) != 0) return ErrnoStatus(errno, "stat", out->name_);
  if (!S_ISREG(st.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        out->name_, S_ISDIR(st.st_mode) ? ": a folder, not a file" : ": not a regular file"));
  }
  out->file_bytes_ = st.st_size;
  SOUP_RETURN_IF_ERROR(out->Fill());
  if (const char* what = ForeignFormat(out->buffer_))
    return absl::InvalidArgumentError(absl::StrCat(out->name_, ": not text in UTF-8 but ", what));
  if (absl::StartsWith(out->buffer_, kBom)) out->Take(kBom.size());
  return out;
}

absl::Status TextSource::Fill() {
  buffer_.resize(kBufferBytes);
  at_ = 0;
  ssize_t n;
  do n = read(fd_, buffer_.data(), buffer_.size());
  while (n < 0 && errno == EINTR);
  if (n < 0) {
    const int error = errno;
    buffer_.clear();
    return ErrnoStatus(error, "read", path_);
  }
  buffer_.resize(static_cast<size_t>(n));
  end_ = n == 0;
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> TextSource::Rest() {
  if (at_ == buffer_.size() && !end_) SOUP_RETURN_IF_ERROR(Fill());
  return absl::string_view(buffer_).substr(at_);
}

}  // namespace soup::engine
