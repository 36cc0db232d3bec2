#include "client/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace soup::client {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

const char* Sequence(Color color) {
  switch (color) {
    case Color::kNone:
      return "";
    case Color::kBold:
      return "\x1b[1m";
    case Color::kDim:
      return "\x1b[2m";
    case Color::kRed:
      return "\x1b[31m";
    case Color::kGreen:
      return "\x1b[32m";
    case Color::kYellow:
      return "\x1b[33m";
    case Color::kBlue:
      return "\x1b[34m";
  }
  return "";
}

winsize WindowSize(FILE* file) {
  winsize size = {};
  ioctl(fileno(file), TIOCGWINSZ, &size);
  return size;
}

}  // namespace

Terminal::Terminal(FILE* out, FILE* err) : out_(out), err_(err) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || absl::string_view(term) == "dumb";
  const bool color = (no_color == nullptr || *no_color == '\0') && !dumb;
  out_is_terminal_ = isatty(fileno(out)) == 1;
  err_is_terminal_ = isatty(fileno(err)) == 1;
  out_has_color_ = out_is_terminal_ && color;
  err_has_color_ = err_is_terminal_ && color;
}

int Terminal::columns() const {
  const int columns = WindowSize(err_is_terminal_ ? err_ : out_).ws_col;
  return columns > 0 ? columns : 80;
}

int Terminal::rows() const {
  const int rows = WindowSize(err_is_terminal_ ? err_ : out_).ws_row;
  return rows > 0 ? rows : 24;
}

void Terminal::Print(absl::string_view text) {
  if (out_is_terminal_) ClearStatus();
  fwrite(text.data(), 1, text.size(), out_);
  fflush(out_);
}

void Terminal::Say(absl::string_view line) {
  if (!quiet_) Error(line);
}

void Terminal::Error(absl::string_view line) {
  ClearStatus();
  const std::string text = absl::StrCat(line, "\n");
  fwrite(text.data(), 1, text.size(), err_);
  fflush(err_);
}

void Terminal::Status(absl::string_view line) {
  if (!err_is_terminal_ || quiet_) return;
  const std::string text =
      absl::StrCat("\r", CutToWidth(line, static_cast<size_t>(columns() - 1)), "\x1b[0m\x1b[K");
  fwrite(text.data(), 1, text.size(), err_);
  fflush(err_);
  status_shown_ = true;
}

void Terminal::ClearStatus() {
  if (!status_shown_) return;
  fputs("\r\x1b[K", err_);
  fflush(err_);
  status_shown_ = false;
}

std::string Terminal::Out(Color color, absl::string_view text) const {
  return out_has_color_ ? Colored(color, text) : std::string(text);
}

std::string Terminal::Err(Color color, absl::string_view text) const {
  return err_has_color_ ? Colored(color, text) : std::string(text);
}

bool Terminal::Flush() { return fflush(out_) == 0 && ferror(out_) == 0; }

std::string Colored(Color color, absl::string_view text) {
  if (color == Color::kNone) return std::string(text);
  return absl::StrCat(Sequence(color), text, "\x1b[0m");
}

std::string PrintableLines(absl::string_view text) {
  return absl::StrJoin(
      absl::StrSplit(text, '\n'), "\n",
      [](std::string* out, absl::string_view line) { out->append(Printable(line)); });
}

std::string Printable(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // C1 controls come as two bytes of UTF-8: c2 80 .. c2 9f.
    const bool c1 = c == 0xC2 && i + 1 < text.size() &&
                    static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                    static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(text[++i]));
    } else if (c == '\n' || c == '\t') {
      out += ' ';
    } else if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else {
      out += text[i];
    }
  }
  return out;
}

size_t DisplayWidth(absl::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if (!IsContinuation(text[i])) {
      ++width;
    }
  }
  return width;
}

std::string CutToWidth(absl::string_view text, size_t columns) {
  size_t width = 0;
  size_t i = 0;
  for (; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if (!IsContinuation(text[i]) && ++width > columns) {
      break;
    }
  }
  return std::string(text.substr(0, i));
}

std::string ProgressBar(double fraction, int width) {
  fraction = fraction >= 0 ? std::min(fraction, 1.0) : 0;  // NaN: 0
  const int inside = std::max(width - 2, 1);
  const int full = static_cast<int>(fraction * inside);
  std::string bar(static_cast<size_t>(inside), ' ');
  std::fill(bar.begin(), bar.begin() + full, '=');
  if (full < inside && full > 0) bar[static_cast<size_t>(full)] = '>';
  return absl::StrCat("[", bar, "]");
}

}  // namespace soup::client
