#include "engine/data/csv_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status_macros.h"
#include "engine/data/unicode.h"

namespace soup::engine {
namespace {

// Whether a line feed ends the row, byte by byte. A quote opens a cell only at its beginning.
class Quoting {
 public:
  explicit Quoting(char separator) : separator_(separator) {}
  // True when `c` is the line feed that ends the row.
  bool Take(char c) {
    switch (state_) {
      case State::kCellBegin:
        if (c == '"') {
          state_ = State::kQuoted;
          return false;
        }
        break;
      case State::kQuoted:
        if (c == '"') state_ = State::kQuoteInQuoted;
        return false;
      case State::kQuoteInQuoted:
        if (c == '"') {
          state_ = State::kQuoted;
          return false;
        }
        break;
      case State::kPlain:
        break;
    }
    state_ = c == separator_ ? State::kCellBegin : State::kPlain;
    return c == '\n';
  }
  bool open() const { return state_ == State::kQuoted; }

 private:
  enum class State { kCellBegin, kQuoted, kQuoteInQuoted, kPlain };
  const char separator_;
  State state_ = State::kCellBegin;
};

const char* SeparatorName(char separator) {
  return separator == '\t' ? "tab" : separator == ';' ? "semicolon" : "comma";
}

}  // namespace

absl::StatusOr<bool> CsvReader::ReadRow(Row* row) {
  *row = Row();
  row->line = lines_;
  row->offset = source_->offset();
  Quoting quoting(separator_);
  bool any = false, ended = false;
  while (!ended) {
    SOUP_ASSIGN_OR_RETURN(const absl::string_view rest, source_->Rest());
    if (rest.empty()) break;
    any = true;
    size_t n = 0;
    while (n < rest.size() && !ended) {
      ended = quoting.Take(rest[n]);
      lines_ += rest[n++] == '\n';
    }
    const absl::string_view part = rest.substr(0, ended ? n - 1 : n);
    row->bytes += static_cast<int64_t>(part.size());
    row->too_long = row->bytes > max_record_bytes_;
    if (row->too_long) {
      row->text.clear();
    } else {
      row->text.append(part.data(), part.size());
    }
    source_->Take(n);
  }
  if (quoting.open()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_->name(), " line ", row->line,
                     ": a quote that is opened in this row is never closed; a quote inside a cell "
                     "is written twice"));
  }
  if (!row->text.empty() && row->text.back() == '\r') {
    row->text.pop_back();
    row->crlf = true;
    --row->bytes;
  }
  return any;
}

std::string CsvReader::ColumnName(size_t column) const {
  std::string out = absl::StrCat("column ", column + 1);
  if (column < header_.size())
    absl::StrAppend(&out, " ('", absl::string_view(header_[column]).substr(0, 40), "')");
  return out;
}

absl::StatusOr<std::vector<std::string>> CsvReader::Cells(const Row& row) const {
  const auto bad = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  std::vector<std::string> cells;
  const absl::string_view text = row.text;
  for (size_t at = 0;;) {
    std::string cell;
    if (at < text.size() && text[at] == '"') {
      for (++at;;) {
        const size_t quote = text.find('"', at);
        if (quote == absl::string_view::npos) return bad(ColumnName(cells.size()), ": open quote");
        cell.append(text.data() + at, quote - at);
        at = quote + 1;
        if (at == text.size() || text[at] != '"') break;
        cell.push_back('"');
        ++at;
      }
      if (at < text.size() && text[at] != separator_)
        return bad(ColumnName(cells.size()),
                   ": text after the closing quote; a quote inside a "
                   "cell is written twice");
      // The line breaks of the cell went through what gave the file its line ends.
      if (crlf_) cell = absl::StrReplaceAll(cell, {{"\r\n", "\n"}});
    } else {
      const size_t end = std::min(text.find(separator_, at), text.size());
      cell = std::string(text.substr(at, end - at));
      if (absl::StrContains(cell, '"')) {
        return bad(ColumnName(cells.size()),
                   ": a quote inside a cell without quotes; write the cell in quotes and each "
                   "quote in it twice");
      }
      if (absl::StrContains(cell, '\r'))
        return bad(ColumnName(cells.size()), ": a carriage return outside of quotes");
      at = end;
    }
    cells.push_back(std::move(cell));
    if (at >= text.size()) return cells;
    ++at;  // the separator
  }
}

absl::Status CsvReader::ReadHeader() {
  const auto bad = [this](auto... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_->name(), " line ", row_.line, ": ", parts...));
  };
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const bool any, ReadRow(&row_));
    if (!any) return absl::InvalidArgumentError(absl::StrCat(source_->name(), ": no records"));
    if (!row_.text.empty() || row_.too_long) break;
  }
  constexpr int64_t kMaxHeaderBytes = 64 << 10;
  if (row_.bytes > kMaxHeaderBytes)
    return bad("the first line has ", row_.bytes, " bytes; it should name the columns");
  if (FindInvalidUtf8(row_.text)) return bad("the header is not UTF-8; save the file as UTF-8");
  crlf_ = row_.crlf;
  auto names = Cells(row_);
  if (!names.ok()) return bad("header: ", names.status().message());
  std::set<std::string> seen;
  for (size_t i = 0; i < names->size(); ++i) {
    const std::string& name = (*names)[i];
    if (name.empty()) {
      return bad("column ", i + 1,
                 " of the header has no name; name it, or take it out (an index column?)");
    }
    if (!seen.insert(name).second) return bad("the header has the column '", name, "' twice");
  }
  for (const char other : {',', ';', '\t'}) {
    if (names->size() == 1 && other != separator_ && absl::StrContains((*names)[0], other)) {
      return bad("the header is the one column '", (*names)[0].substr(0, 80), "': the file seems ",
                 "to have a ", SeparatorName(other), " between its cells; this kind of file has a ",
                 SeparatorName(separator_), other == '\t' ? " (name it .tsv)" : "");
    }
  }
  header_ = *std::move(names);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CsvReader>> CsvReader::Create(std::unique_ptr<TextSource> source,
                                                             char separator,
                                                             int64_t max_record_bytes) {
  std::unique_ptr<CsvReader> out(new CsvReader(std::move(source), separator, max_record_bytes));
  SOUP_RETURN_IF_ERROR(out->ReadHeader());
  return out;
}

absl::StatusOr<bool> CsvReader::Next() {
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const bool any, ReadRow(&row_));
    if (!any) return false;
    if (!row_.text.empty() || row_.too_long) return true;
  }
}

std::string CsvReader::Where() const { return absl::StrCat(source_->name(), " line ", row_.line); }

absl::StatusOr<Value> CsvReader::Parse() const {
  const std::string where = Where();
  if (row_.too_long) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", row_.bytes, " bytes long, over the limit of ",
                     max_record_bytes_, "; cut the record into smaller ones"));
  }
  if (const auto bad = FindInvalidUtf8(row_.text)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: byte 0x%02X at offset %d of the file is not UTF-8; save the file as UTF-8", where,
        static_cast<unsigned char>(row_.text[*bad]), row_.offset + static_cast<int64_t>(*bad)));
  }
  if (const size_t zero = row_.text.find('\0'); zero != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": a zero byte at offset ",
                                                   row_.offset + static_cast<int64_t>(zero),
                                                   " of the file; is it text?"));
  }
  auto cells = Cells(row_);
  if (!cells.ok())
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", cells.status().message()));
  if (cells->size() != header_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": ", cells->size(), " cell(s) where the header has ", header_.size(),
        "; a cell with a ", SeparatorName(separator_), " or a line break stands in quotes"));
  }
  Value::Items items;
  for (size_t i = 0; i < header_.size(); ++i)
    items.emplace_back(header_[i], Value::String(std::move((*cells)[i])));
  return Value::Dict(std::move(items));
}

}  // namespace soup::engine
