#include "engine/data/jsonl_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/json_value.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr absl::string_view kBom("\xef\xbb\xbf", 3);

bool IsBlank(absl::string_view text) {
  return text.find_first_not_of(" \t\r") == absl::string_view::npos;
}

// What a file that starts so is, when it is no UTF-8 text.
const char* ForeignFormat(absl::string_view start) {
  static constexpr std::pair<absl::string_view, const char*> kMagics[] = {
      {absl::string_view("\xff\xfe", 2), "UTF-16 text; save it as UTF-8"},
      {absl::string_view("\xfe\xff", 2), "UTF-16 text; save it as UTF-8"},
      {absl::string_view("\x1f\x8b", 2), "compressed by gzip; unpack it first"},
      {absl::string_view("(\xb5\x2f\xfd", 4), "compressed by zstd; unpack it first"},
      {absl::string_view("PK\x03\x04", 4), "a zip archive; unpack it first"},
      {absl::string_view("PAR1", 4), "Parquet; convert it to JSONL first"},
      {absl::string_view("ARROW1", 6), "Arrow; convert it to JSONL first"}};
  for (const auto& [magic, what] : kMagics)
    if (absl::StartsWith(start, magic)) return what;
  return nullptr;
}

}  // namespace

struct JsonlReader::Rep {
  std::string path, name;
  Options options;
  int fd = -1;
  int64_t size = 0;
  std::string buffer;
  size_t at = 0;         // in buffer
  int64_t consumed = 0;  // bytes of the file before buffer[at]
  int64_t lines = 0;
  std::string line;  // a line that spans buffers
  bool end = false;

  ~Rep() {
    if (fd >= 0) close(fd);
  }

  absl::Status Fill() {
    buffer.resize(kBufferBytes);
    at = 0;
    ssize_t n;
    do n = read(fd, buffer.data(), buffer.size());
    while (n < 0 && errno == EINTR);
    if (n < 0) {
      const int error = errno;
      buffer.clear();
      return ErrnoStatus(error, "read", path);
    }
    buffer.resize(static_cast<size_t>(n));
    end = n == 0;
    return absl::OkStatus();
  }

  // The next line, blank or not, without its line feed. False at the end of the file.
  absl::StatusOr<bool> ReadLine(Line* out) {
    *out = Line();
    out->offset = consumed;
    line.clear();
    bool any = false;
    for (;;) {
      if (at == buffer.size()) {
        if (!end) SOUP_RETURN_IF_ERROR(Fill());
        if (end) break;
      }
      any = true;
      const absl::string_view rest = absl::string_view(buffer).substr(at);
      const size_t newline = rest.find('\n');
      const absl::string_view part = rest.substr(0, newline);
      out->bytes += static_cast<int64_t>(part.size());
      out->too_long = out->bytes > options.max_line_bytes;
      const bool whole = newline != absl::string_view::npos;
      const size_t used = whole ? newline + 1 : rest.size();
      at += used;
      consumed += static_cast<int64_t>(used);
      if (out->too_long) {
        line.clear();  // its size is all that is told of it
      } else if (whole && line.empty()) {
        out->text = part;  // the whole line lies in the buffer
      } else {
        line.append(part.data(), part.size());
        out->text = line;
      }
      if (whole) break;
    }
    if (!any) return false;
    out->number = ++lines;
    if (out->too_long) out->text = {};
    return true;
  }
};

JsonlReader::JsonlReader() : rep_(std::make_unique<Rep>()) {}
JsonlReader::~JsonlReader() = default;

absl::StatusOr<std::unique_ptr<JsonlReader>> JsonlReader::Open(const std::string& path,
                                                               const std::string& name,
                                                               Options options) {
  std::unique_ptr<JsonlReader> out(new JsonlReader);
  Rep& rep = *out->rep_;
  rep.path = path;
  rep.name = name.empty() ? path : name;
  rep.options = options;
  rep.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (rep.fd < 0) return ErrnoStatus(errno, "open", rep.name);
  struct stat st;
  if (fstat(rep.fd, &st) != 0) return ErrnoStatus(errno, "stat", rep.name);
  if (!S_ISREG(st.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(rep.name, ": not a regular file"));
  rep.size = st.st_size;
  SOUP_RETURN_IF_ERROR(rep.Fill());
  if (const char* what = ForeignFormat(rep.buffer))
    return absl::InvalidArgumentError(absl::StrCat(rep.name, ": not JSONL but ", what));
  if (absl::StartsWith(rep.buffer, kBom)) {
    rep.at = kBom.size();
    rep.consumed = static_cast<int64_t>(kBom.size());
  }
  return out;
}

absl::StatusOr<bool> JsonlReader::Next(Line* line) {
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const bool more, rep_->ReadLine(line));
    if (!more) return false;
    if (!line->text.empty() && line->text.back() == '\r') {
      line->text.remove_suffix(1);
      --line->bytes;
    }
    if (line->too_long || !IsBlank(line->text)) return true;
  }
}

absl::StatusOr<Value> JsonlReader::Parse(const Line& line) const {
  const std::string where = absl::StrCat(rep_->name, " line ", line.number);
  if (line.too_long) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", line.bytes, " bytes long, over the limit of ",
                     rep_->options.max_line_bytes, "; cut the record into smaller ones"));
  }
  if (const auto bad = FindInvalidUtf8(line.text)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 0x%02X at offset %d of the file is not UTF-8; save the file as UTF-8", where,
        static_cast<unsigned char>(line.text[*bad]), line.offset + static_cast<int64_t>(*bad)));
  }
  const char* hint = line.text[0] == '[' ? "; JSONL holds one object a line, not an array" : "";
  auto value = ParseJsonValue(line.text);
  if (!value.ok()) {
    const absl::string_view what = value.status().message();
    return absl::InvalidArgumentError(
        absl::StrCat(where, absl::StartsWith(what, "column") ? " " : ": ", what, hint));
  }
  if (!value->is_dict()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", value->KindName(), " where a JSON object is expected", hint));
  }
  return value;
}

int64_t JsonlReader::file_bytes() const { return rep_->size; }
int64_t JsonlReader::bytes_read() const { return rep_->consumed; }

}  // namespace soup::engine
