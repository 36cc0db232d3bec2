// Python's str functions that methods and filters share. Pure; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_TEXT_OPS_H_
#define SOUP_ENGINE_DATA_JINJA_TEXT_OPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace soup::engine::jinja {

std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);
std::string Capitalize(absl::string_view text);
std::string TitleMethod(absl::string_view text);  // str.title()
std::string TitleFilter(absl::string_view text);  // jinja2's title

// White space, or the characters of `set`.
std::string Strip(absl::string_view text, const std::optional<std::string>& set, bool left,
                  bool right);
// At most `count` times; negative: all. `from` may be empty (between characters).
std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to,
                    int64_t count);
// `most` cuts at most; negative: all. Without a separator: runs of white space, none at the ends.
std::vector<std::string> Split(absl::string_view text, const std::optional<std::string>& separator,
                               int64_t most);
std::vector<std::string> SplitFromRight(absl::string_view text,
                                        const std::optional<std::string>& separator, int64_t most);
std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends);
// True when there is a character and all of them are so.
bool AllOf(absl::string_view text, bool (*predicate)(char32_t));

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_TEXT_OPS_H_
