// What goes to the two streams: data on stdout, chatter on stderr, one line that is redrawn in
// place on stderr when that is a terminal. Colours only on a terminal and without NO_COLOR. Used by
// one thread.
#ifndef SOUP_CLIENT_TERMINAL_H_
#define SOUP_CLIENT_TERMINAL_H_

#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"

namespace soup::client {

enum class Color { kNone, kBold, kDim, kRed, kGreen, kYellow, kBlue };

class Terminal {
 public:
  // Finds out by isatty and NO_COLOR.
  Terminal(FILE* out, FILE* err);
  ~Terminal() { ClearStatus(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void set_quiet(bool quiet) { quiet_ = quiet; }
  bool out_is_terminal() const { return out_is_terminal_; }
  bool err_is_terminal() const { return err_is_terminal_; }
  // Columns of the terminal; 80 when there is none.
  int columns() const;
  int rows() const;

  // Data: text as it is, on stdout. Text of others goes through Printable first.
  void Print(absl::string_view text);
  // Chatter: one line on stderr; nothing with --quiet.
  void Say(absl::string_view line);
  // An error: one line on stderr, always.
  void Error(absl::string_view line);
  // Redraws the status line, cut to the terminal's width; nothing when stderr is no terminal.
  void Status(absl::string_view line);
  void ClearStatus();

  // `text` in a colour for stdout or stderr; as it is when that has no colours.
  std::string Out(Color color, absl::string_view text) const;
  std::string Err(Color color, absl::string_view text) const;
  bool out_has_color() const { return out_has_color_; }

  // False when something could not be written to stdout (a full disk, a closed pipe).
  bool Flush();

 private:
  FILE* const out_;
  FILE* const err_;
  bool out_is_terminal_, err_is_terminal_, out_has_color_, err_has_color_;
  bool quiet_ = false;
  bool status_shown_ = false;
};

std::string Colored(Color color, absl::string_view text);
// Text of others (job names, messages, paths) without bytes that a terminal would obey.
std::string Printable(absl::string_view text);
// The same of a text of several lines: its line breaks stay.
std::string PrintableLines(absl::string_view text);
// Columns that `text` takes: its code points, colour sequences not counted.
size_t DisplayWidth(absl::string_view text);
// The first `columns` code points.
std::string CutToWidth(absl::string_view text, size_t columns);
// "[=====>    ]" of `width` columns.
std::string ProgressBar(double fraction, int width);

}  // namespace soup::client

#endif  // SOUP_CLIENT_TERMINAL_H_
